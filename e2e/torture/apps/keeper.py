"""An application that keeps what has no name, or another one."""

import mmap
import os
import random
import time
from pathlib import Path

from e2e.torture.apps.tally import GoesOn, Tally


def keeper(place: Path, goes_on: GoesOn, dice: random.Random, tally: Tally) -> None:
    """Keep things that have no name, or another: some from beginning to end, others for a while."""
    from_the_beginning = Heirlooms(place, dice, tally)
    turn = 0
    while goes_on():
        turn += 1
        tally.operations += 1
        _keep_removed(place, turn, dice, tally)
        _keep_directory(place, turn, tally)
        _keep_inside(place, turn, tally)
        from_the_beginning.check()
    from_the_beginning.end()


class Heirlooms:
    """Files and directories that are open from the beginning: removed, replaced, renamed, with one of two names gone."""

    def __init__(self, place: Path, dice: random.Random, tally: Tally) -> None:
        self._tally = tally
        self._dice = dice
        self._files: dict[str, int] = {}
        self._contents: dict[str, bytearray] = {}
        for fate in ("removed", "replaced", "renamed", "linked"):
            path = place / f"old-{fate}"
            self._files[fate] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self._contents[fate] = bytearray(dice.randbytes(9000))
            os.write(self._files[fate], self._contents[fate])
        (place / "old-removed").unlink()
        (place / "young").write_text("young")
        (place / "young").rename(place / "old-replaced")
        (place / "old-renamed").rename(place / "renamed")
        os.link(place / "old-linked", place / "linked")
        (place / "old-linked").unlink()
        self._names = {"renamed": place / "renamed", "linked": place / "linked"}
        self._replaced = place / "old-replaced"
        (place / "gone").mkdir()
        self._directory = os.open(place / "gone", os.O_RDONLY | os.O_DIRECTORY)
        (place / "gone").rmdir()

    def check(self) -> None:
        """Write and read each of them."""
        for fate, file in self._files.items():
            at, what = self._dice.randrange(9000), self._dice.randbytes(200)
            content = self._contents[fate]
            self._tally.expect("written", os.pwrite(file, what, at), len(what))
            content[at : at + len(what)] = what
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            self._tally.expect(f"a file {fate} long ago", os.pread(file, 10_000, 0), bytes(content))
            links = 1 if fate in self._names else 0
            status = os.fstat(file)
            self._tally.expect(
                f"size, links of {fate}", (status.st_size, status.st_nlink), (len(content), links)
            )
        self._tally.expect("a directory removed long ago", os.listdir(self._directory), [])

    def end(self) -> None:
        """Close them, and look what is there by name."""
        for fate, file in self._files.items():
            os.close(file)
            if fate in self._names:
                path = self._names[fate]
                self._tally.expect(f"what is {fate}", path.read_bytes(), bytes(self._contents[fate]))
                self._tally.leave(path, bytes(self._contents[fate]))
        self._tally.expect("what replaced it", self._replaced.read_text(), "young")
        os.close(self._directory)


def _keep_removed(place: Path, turn: int, dice: random.Random, tally: Tally) -> None:
    first, second = place / f"removed{turn}", place / f"replaced{turn}"
    one = os.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    two = os.open(second, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    content = dice.randbytes(5000)
    os.write(one, content)
    os.write(two, content)
    mapped = mmap.mmap(two, 5000)
    first.unlink()
    third = place / f"new{turn}"
    third.write_bytes(b"new")
    third.rename(second)
    for step in range(8):
        what = b"%d" % step * 10
        os.pwrite(one, what, step * 100)
        mapped[step * 100 : step * 100 + len(what)] = what
        content = content[: step * 100] + what + content[step * 100 + len(what) :]
        time.sleep(dice.random() * 0.02)
        tally.expect("a removed file", os.pread(one, 6000, 0), content)
        tally.expect("its size and links", (os.fstat(one).st_size, os.fstat(one).st_nlink), (5000, 0))
    mapped.flush()
    tally.expect("a mapping", mapped[:], content)
    mapped.close()
    tally.expect("a replaced file", os.pread(two, 6000, 0), content)
    tally.expect("what replaced it", second.read_bytes(), b"new")
    os.close(one)
    os.close(two)
    second.unlink()


def _keep_directory(place: Path, turn: int, tally: Tally) -> None:
    """Have a directory open while it is renamed: what is done by its descriptor reaches it all the same."""
    path, moved = place / f"open{turn}", place / f"opened{turn}"
    path.mkdir()
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    path.rename(moved)
    for name in ("a", "b", "c"):
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=directory))
        os.fsync(directory)
    tally.expect("an open directory", sorted(os.listdir(directory)), ["a", "b", "c"])
    tally.expect("its new name", sorted(os.listdir(moved)), ["a", "b", "c"])
    os.rename("a", "d", src_dir_fd=directory, dst_dir_fd=directory)
    for name in ("b", "c", "d"):
        os.unlink(name, dir_fd=directory)
    tally.expect("an emptied directory", os.listdir(directory), [])
    moved.rmdir()
    os.close(directory)


def _keep_inside(place: Path, turn: int, tally: Tally) -> None:
    directory = place / f"inside{turn}"
    directory.mkdir()
    before = os.getcwd()
    os.chdir(directory)
    pinned = os.open(directory, os.O_PATH)
    Path("here").write_text("here")
    moved = directory.with_name(f"moved{turn}")
    directory.rename(moved)
    time.sleep(0.01)
    tally.expect("what is here", Path("here").read_text(), "here")
    Path("here").unlink()
    moved.rmdir()
    for _ in range(5):
        tally.expect(
            "a removed directory", (os.stat(".").st_ino, os.listdir(".")), (os.fstat(pinned).st_ino, [])
        )
        time.sleep(0.004)
    os.chdir(before)
    os.close(pinned)
