"""A bucket mounted by a real kernel: what shells, tools and two mounts of one bucket make of it."""

import errno
import json
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidemount.host.readiness import wait_readable
from tests.sidecar.directory.harness import Mounted, outcome, run_as

pytestmark = [pytest.mark.fuse, pytest.mark.root]

_REPOSITORY = Path(__file__).parents[3]
_START_S = 20.0


@contextmanager
def mounted(
    scratch: Path, name: str, *arguments: str, allowed: tuple[str, ...] = (), **options: Any
) -> Iterator[Mounted]:
    """Serve the directory of objects for a block; fail if the daemon died or complained."""
    store, place = scratch / "objects", scratch / name
    store.mkdir(exist_ok=True)
    for directory in (place, place / "mountpoint", place / "cache"):
        directory.mkdir()
        directory.chmod(0o777)
    of_pytest = [above for above in scratch.parents if above.name.startswith(("pytest-", "popen-"))]
    for directory in (scratch, *of_pytest):
        directory.chmod(0o755)
    store.chmod(0o777)
    options = {"stagingBytes": 64 << 20, **options}
    command = [sys.executable, "-m", "tests.sidecar.objects.daemon", "--source", f"file://{store}"]
    command += ["--mountpoint", str(place / "mountpoint"), "--cache", str(place / "cache")]
    command += ["--options", json.dumps(options), *arguments]
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=_REPOSITORY)
    volume = Mounted(
        process, Path(f"/proc/{process.pid}/root{place}/mountpoint"), store, place / "log", set(allowed)
    )
    try:
        assert process.stdout is not None
        ready = wait_readable(process.stdout.fileno(), _START_S)
        line = process.stdout.readline() if ready else b""
        assert line == b"ready\n", (place / "log").read_text()
        yield volume
        assert volume.is_alive(), (place / "log").read_text()
        assert volume.alarms() == []
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One mount for most tests."""
    with mounted(tmp_path_factory.mktemp("bucket"), "one") as volume:
        yield volume


def shell(command: str, where: Path) -> str:
    """Return what a command prints; it must succeed and complain of nothing."""
    done = subprocess.run(["sh", "-ec", command], cwd=where, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def place(volume: Mounted, name: str) -> tuple[Path, Path]:
    """Return a directory of one's own in the mount, and where its objects are."""
    (volume.path / name).mkdir()
    return volume.path / name, volume.source / name


def until(condition: Callable[[], bool]) -> None:
    """Wait for what comes a moment after a close."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_shells_and_tools_work(volume: Mounted) -> None:
    here, behind = place(volume, "shell")
    assert shell("echo one > a; echo two >> a; cat a", here) == "one\ntwo\n"
    assert (behind / "a").read_bytes() == b"one\ntwo\n"
    assert (
        shell("(echo x; /bin/echo y; echo z) > b; cat b", here) == "x\ny\nz\n"
    )  # dup, fork, flush in between
    shell(": > empty; touch touched; touch a", here)
    until(lambda: (behind / "empty").exists() and (behind / "touched").exists())
    shell("mkdir -p d/e/f; cp a d/e/f/copy; cp -r d d2; mv d2 d3; mv a d3/e/moved", here)
    assert (behind / "d3/e/f/copy").read_bytes() == (behind / "d3/e/moved").read_bytes() == b"one\ntwo\n"
    assert shell("find . | sort", here).split() == [
        *(".", "./b", "./d", "./d/e", "./d/e/f", "./d/e/f/copy", "./d3", "./d3/e", "./d3/e/f"),
        *("./d3/e/f/copy", "./d3/e/moved", "./empty", "./touched"),
    ]
    shell("dd if=/dev/zero of=zeros bs=1M count=9 conv=fsync status=none; truncate -s 5 b", here)
    assert (behind / "zeros").stat().st_size == 9 << 20
    assert (behind / "b").read_bytes() == b"x\ny\nz"
    assert shell("tar cf - d3 | tar tf - | wc -l", here).strip() == "5"
    shell("rm -r d d3 b empty touched zeros", here)
    assert os.listdir(here) == []


def test_large_directory_is_listed_and_removed_while_it_is_listed(volume: Mounted) -> None:
    here, behind = place(volume, "many")
    for number in range(2500):
        (behind / f"f{number:05}").touch()
    assert len(os.listdir(here)) == 2500
    assert shell("ls -l | tail -n +2 | wc -l", here).strip() == "2500"
    shell("rm -r many", here.parent)
    assert not behind.exists() or [*behind.iterdir()] == []
    assert outcome(os.stat, here) == "ENOENT"


def test_positions_of_an_open_directory_can_be_gone_back_to(volume: Mounted) -> None:
    here, behind = place(volume, "positions")
    for number in range(300):
        (behind / f"f{number:03}").touch()
    script = (
        "my @n; opendir(D, '.'); my @t; while (defined(my $p = telldir(D)) and defined(my $n = readdir(D)))"
        " { push @t, $p; push @n, $n } for my $i (250, 3, 120) { seekdir(D, $t[$i]);"
        " die unless readdir(D) eq $n[$i] } print scalar(@n)"
    )
    done = subprocess.run(["perl", "-e", script], cwd=here, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "302"), done.stderr


def test_who_copies_owners_modes_and_times_is_served(volume: Mounted) -> None:
    here, _ = place(volume, "copies")
    (here / "f").write_bytes(b"x")
    (here / "f").chmod(0o600)
    os.chown(here / "f", 1, 1)
    os.utime(here / "f", (1, 2))
    shutil.copy2(__file__, here / "copied")
    for command in (["cp", "-a", "f", "archived"], ["tar", "-cf", "t.tar", "f"], ["tar", "-xpf", "t.tar"]):
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), command
    assert {stat.S_IMODE(path.stat().st_mode) for path in here.iterdir()} == {0o666}


def test_what_no_store_can_do_is_refused_by_name(volume: Mounted) -> None:
    here, _ = place(volume, "refused")
    (here / "f").write_bytes(b"x")
    assert outcome(os.symlink, "f", here / "l") == "EPERM"
    assert outcome(os.link, here / "f", here / "l") == "EPERM"
    assert outcome(os.mkfifo, here / "p") == "EPERM"
    assert outcome(os.setxattr, here / "f", "user.a", b"b") == errno.errorcode[errno.ENOTSUP]
    assert outcome(os.mkdir, os.fsencode(here) + b"/\xff") == "EILSEQ"
    assert outcome(os.posix_fallocate, os.open(here / "f", os.O_RDWR), 0, 10) in (None, "ENOTSUP")
    status = os.statvfs(here)
    assert status.f_bavail * status.f_frsize > 1 << 40
    assert status.f_namemax == 255


def test_files_can_be_mapped(volume: Mounted) -> None:
    here, behind = place(volume, "mapped")
    (here / "f").write_bytes(b"a" * 10_000)
    with open(here / "f", "r+b") as file:
        with mmap.mmap(file.fileno(), 0) as mapping:
            mapping[5000:5003] = b"new"
            mapping.flush()
        os.fsync(file.fileno())
    assert (behind / "f").read_bytes() == b"a" * 5000 + b"new" + b"a" * 4997


def test_anybody_in_the_pod_may_write(volume: Mounted) -> None:
    here, behind = place(volume, "anybody")

    def scenario() -> str:
        with open("f", "wb") as file:
            file.write(b"mine")
        os.mkdir("d")
        os.rename("f", "d/g")
        return " ".join(os.listdir("d"))

    assert run_as(1234, 1234, here, scenario) == "g"
    assert (behind / "d/g").read_bytes() == b"mine"


def test_two_mounts_agree_from_close_to_open(volume: Mounted) -> None:
    scratch = volume.source.parent
    with mounted(scratch, "two", "--read-only", "--sub-path", "shared") as other:
        here, _ = place(volume, "shared")
        for content in (b"first", b"the second", b"3"):
            (here / "f").write_bytes(content)
            assert (other.path / "f").read_bytes() == content  # an open asks the store
        with open(other.path / "f", "rb") as old:
            assert old.read(1) == b"3"
            (here / "f").write_bytes(b"the fourth")
            assert (other.path / "f").read_bytes() == b"the fourth"
            assert os.fstat(old.fileno()).st_size == 1
            assert os.pread(old.fileno(), 10, 0) == b"3"
        os.rename(here / "f", here / "g")
        assert outcome((other.path / "f").read_bytes) == "ENOENT"
        assert (other.path / "g").read_bytes() == b"the fourth"
        (here / "g").unlink()
        assert outcome((other.path / "g").read_bytes) == "ENOENT"
        assert outcome((other.path / "new").write_bytes, b"x") == "EROFS"


def test_exclusive_files_are_made_by_one_of_two_mounts(volume: Mounted) -> None:
    here, _ = place(volume, "locks")
    with mounted(volume.source.parent, "three") as other:
        there = other.path / "locks"
        assert os.listdir(there) == []
        os.close(os.open(here / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        until(lambda: (volume.source / "locks" / "lock").exists())
        assert outcome(os.open, there / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == "EEXIST"


def test_daemon_needs_no_privilege(tmp_path: Path) -> None:
    """It serves as user 65532 without any capability."""
    with mounted(tmp_path, "four", "--uid", "65532") as volume:
        (volume.path / "f").write_bytes(b"x")
        assert os.listdir(volume.path) == ["f"]
        assert (volume.path / "f").read_bytes() == (volume.source / "f").read_bytes() == b"x"


def test_a_close_of_what_was_only_read_waits_for_nobody(tmp_path: Path) -> None:
    """The daemon stands still, so whoever had to ask it would wait."""
    with mounted(tmp_path, "five") as volume:
        (volume.path / "f").write_bytes(b"x")
        opened = os.open(volume.path / "f", os.O_RDONLY)
        assert os.read(opened, 1) == b"x"
        volume.process.send_signal(signal.SIGSTOP)
        closing = threading.Thread(target=os.close, args=(opened,), daemon=True)
        try:
            closing.start()
            closing.join(20)
            was_closed = not closing.is_alive()
        finally:
            volume.process.send_signal(signal.SIGCONT)
        assert was_closed
        assert (volume.path / "f").read_bytes() == b"x"
