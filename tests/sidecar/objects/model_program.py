"""An application on two mounts of one bucket, and the bucket itself: knows from the stated semantics what each call must answer.

    python -m tests.sidecar.objects.model_program MOUNT MOUNT BUCKET OPERATIONS SEED

One thing is done after the other, now through this mount, now through that one, with files open in both for long. What a file is
for those who open it changes with its commits alone: at a close, an fsync, a change of size or of name. Only a file that was made or
emptied, and never written to, is committed a little after its close. Prints what went wrong as one JSON line.
"""

import contextlib
import errno
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

_NAMES = ("a", "b", "c", "place/d", "place/e", "place/deep/f")
_SIZES = (0, 1, 100, 4096, 12_295, 300_000)
_LARGE = (6 << 20) + 17
_MOST_WRITERS = 3
_RELEASE_S = 30.0


@dataclass
class Writer:
    """A file that is open for writing in one mount. Nobody else writes to its path meanwhile."""

    path: str
    mount: int
    descriptor: int
    content: bytearray
    is_named: bool = True


@dataclass
class Reader:
    """A file that is open for reading in one mount: the version of then, or none, but never a mix."""

    path: str
    mount: int
    descriptor: int
    content: bytes


class Model:
    """A bucket in two mounts and in mind."""

    def __init__(self, mounts: tuple[str, str], bucket: str, seed: int) -> None:
        self.wrong: list[str] = []
        self.operations = 0
        self._mounts = mounts
        self._bucket = bucket
        self._dice = random.Random(seed)
        self._serial = 0
        self._files: dict[str, bytes] = {}
        self._writers: list[Writer] = []
        self._readers: list[Reader] = []
        os.makedirs(f"{mounts[0]}/place/deep")

    def step(self) -> None:
        """Do one thing, and compare its outcome."""
        self.operations += 1
        self._dice.choice(_OPERATIONS)(self)

    def finish(self) -> None:
        """Close everything and compare all there is, in both mounts and in the bucket."""
        while self._writers:
            self._end(self._writers[0])
        while self._readers:
            self._let_go(self._readers[0])
        for mount in self._mounts:
            for path in _NAMES:
                self._expect(f"{path} in the end", self._wanted(path), partial(self._cat, mount, path))
        found = {}
        for directory, names, files in os.walk(self._bucket):
            if ".store" in names:
                names.remove(".store")
            for name in files:
                if name != ".marker":
                    path = os.path.join(directory, name)
                    with open(path, "rb") as file:
                        found[os.path.relpath(path, self._bucket)] = file.read()
        self._expect("names in the bucket", sorted(self._files), lambda: sorted(found))
        for path, content in self._files.items():
            self._expect(f"{path} in the bucket", content, partial(found.get, path))

    # Operations.

    def write_whole(self) -> None:
        path, mount = self._free(), self._mount()
        content = self._anew()
        self._spoil_readers(path, mount)

        def work() -> None:
            descriptor = os.open(self._at(mount, path), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
            self._in_pieces(descriptor, content)

        self._expect(f"write {path} by {mount}", None, work)
        self._files[path] = content
        self._wait_if_empty(path)

    def make_exclusively(self) -> None:
        path, mount = self._free(), self._mount()
        content = self._anew()

        def work() -> None:
            descriptor = os.open(self._at(mount, path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            self._in_pieces(descriptor, content)

        self._expect(f"make {path} by {mount}", "EEXIST" if path in self._files else None, work)
        self._files.setdefault(path, content)
        self._wait_if_empty(path)

    def make_exclusively_in_both(self) -> None:
        """One of the two succeeds, wherever the other one fails."""
        path = self._free()
        if path in self._files:
            return
        first, other = self._dice.sample((0, 1), 2)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        content = self._anew()[:1000] + b"."
        descriptor = os.open(self._at(first, path), flags, 0o644)

        def work() -> None:
            self._in_pieces(os.open(self._at(other, path), flags, 0o644), b"other")

        os.write(descriptor, content)
        os.close(descriptor)
        self._expect(f"make {path} by {other}, too", "EEXIST", work)
        self._files[path] = content

    def append(self) -> None:
        path, mount = self._existing(), self._mount()
        if not path:
            return
        more = self._anew()[:5000] + b"."
        self._spoil_readers(path, mount)

        def work() -> None:
            descriptor = os.open(self._at(mount, path), os.O_APPEND | os.O_WRONLY)
            self._in_pieces(descriptor, more)

        self._expect(f"append to {path} by {mount}", None, work)
        self._files[path] += more

    def write_within(self) -> None:
        path, mount = self._existing(), self._mount()
        if not path:
            return
        content = bytearray(self._files[path])
        self._spoil_readers(path, mount)

        def work() -> None:
            descriptor = os.open(self._at(mount, path), os.O_RDWR)
            try:
                for _ in range(self._dice.randrange(1, 4)):
                    offset, more = self._dice.randrange(len(content) + 3000), self._anew()[:3000] + b"."
                    content.extend(bytes(max(offset - len(content), 0)))
                    content[offset : offset + len(more)] = more
                    os.pwrite(descriptor, more, offset)
                    self._expect("what was written", content, lambda: _read(descriptor))
            finally:
                os.close(descriptor)

        self._expect(f"write within {path} by {mount}", None, work)
        self._files[path] = bytes(content)

    def truncate(self) -> None:
        path, mount = self._existing(), self._mount()
        if not path:
            return
        before = self._files[path]
        size = self._dice.choice((0, len(before), self._dice.randrange(len(before) + 5000)))
        self._spoil_readers(path, mount)
        self._expect(f"truncate {path} by {mount}", None, lambda: os.truncate(self._at(mount, path), size))
        self._files[path] = before[:size] + bytes(max(size - len(before), 0))

    def read(self) -> None:
        path, mount = self._dice.choice(_NAMES), self._mount()
        if any(one.path == path and one.mount == mount for one in self._writers):
            return
        self._expect(
            f"read {path} by {mount}", self._wanted(path), lambda: self._cat(self._mounts[mount], path)
        )

    def hold(self) -> None:
        path, mount = self._existing(), self._mount()
        if path and len(self._readers) < 4:
            descriptor = os.open(self._at(mount, path), os.O_RDONLY)
            self._readers.append(Reader(path, mount, descriptor, self._files[path]))

    def read_held(self) -> None:
        if self._readers:
            self._let_go(self._dice.choice(self._readers))

    def begin(self) -> None:
        path, mount = self._free(), self._mount()
        if len(self._writers) < _MOST_WRITERS:
            self._spoil_readers(path, mount)
            flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR
            descriptor = os.open(self._at(mount, path), flags, 0o644)
            self._writers.append(Writer(path, mount, descriptor, bytearray()))

    def go_on(self) -> None:
        writer = self._writer()
        if writer is not None:
            more = self._anew()
            self._expect(f"go on with {writer.path}", len(more), lambda: _write(writer.descriptor, more))
            writer.content += more

    def look_at_own(self) -> None:
        writer = self._writer()
        if writer is not None:
            found = self._outcome(lambda: _read(writer.descriptor))
            if found != writer.content and (writer.is_named or found != "ESTALE"):
                self.wrong.append(
                    f"{self.operations} own {writer.path}: {_short(found)}, not {_short(writer.content)}"
                )

    def sync(self) -> None:
        writer = self._writer()
        if writer is not None:
            self._expect(f"fsync {writer.path}", None, lambda: os.fsync(writer.descriptor))
            if writer.is_named:
                self._files[writer.path] = bytes(writer.content)
                self._expect(
                    f"{writer.path} in the bucket",
                    self._files[writer.path],
                    lambda: self._stored(writer.path),
                )

    def end(self) -> None:
        writer = self._writer()
        if writer is not None:
            self._end(writer)

    def unlink(self) -> None:
        path, mount = self._existing(), self._mount()
        if path:
            self._spoil_readers(path, mount)
            self._expect(f"unlink {path} by {mount}", None, lambda: os.unlink(self._at(mount, path)))
            del self._files[path]

    def unlink_open(self) -> None:
        writer = self._writer()
        if writer is not None and writer.is_named:
            self._spoil_readers(writer.path, writer.mount)
            at = self._at(writer.mount, writer.path)
            self._expect(f"unlink {writer.path}, open", None, lambda: os.unlink(at))
            self._files.pop(writer.path, None)
            writer.is_named = False

    def rename(self) -> None:
        path, other, mount = self._existing(), self._free(), self._mount()
        if path and path != other:
            for one in (path, other):
                self._spoil_readers(one, mount)
            old, new = self._at(mount, path), self._at(mount, other)
            self._expect(f"rename {path} {other} by {mount}", None, lambda: os.rename(old, new))
            self._files[other] = self._files.pop(path)

    def rename_open(self) -> None:
        writer, other = self._writer(), self._free()
        if writer is not None and writer.is_named:
            for one in (writer.path, other):
                self._spoil_readers(one, writer.mount)
            old, new = self._at(writer.mount, writer.path), self._at(writer.mount, other)
            self._expect(f"rename {writer.path} {other}, open", None, lambda: os.rename(old, new))
            self._files.pop(writer.path, None)
            self._files[other] = bytes(writer.content)
            writer.path = other

    def edit_in_both(self) -> None:
        """The first that is closed is what there is; the other one began from what is not there any more."""
        path = self._existing()
        if not path or not self._files[path]:
            return
        first, other = self._dice.sample((0, 1), 2)
        for mount in (first, other):
            self._spoil_readers(path, mount)
        descriptors = [os.open(self._at(mount, path), os.O_RDWR) for mount in (first, other)]
        for number, descriptor in enumerate(descriptors):
            os.pwrite(descriptor, b"%d" % number, 0)
        self._expect(f"edit {path} by {first}", None, lambda: os.close(descriptors[0]))
        self._expect(f"edit {path} by {other}, too", "ESTALE", lambda: os.close(descriptors[1]))
        self._files[path] = b"0" + self._files[path][1:]

    def overwrite_in_both(self) -> None:
        """The last that is closed is what there is."""
        path = self._free()
        first, other = self._dice.sample((0, 1), 2)
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        descriptors, contents = [], []
        for mount in (first, other):
            self._spoil_readers(path, mount)
            descriptors.append(os.open(self._at(mount, path), flags, 0o644))
            contents.append(self._anew() + b".")
            _write(descriptors[-1], contents[-1])
        for number, mount in enumerate((first, other)):
            self._expect(f"overwrite {path} by {mount}", None, partial(os.close, descriptors[number]))
            self._files[path] = contents[number]
            self._expect(f"{path} in the bucket", contents[number], lambda: self._stored(path))

    # Means.

    def _end(self, writer: Writer) -> None:
        self._writers.remove(writer)
        self._expect(f"close {writer.path}", None, lambda: os.close(writer.descriptor))
        if writer.is_named:
            self._files[writer.path] = bytes(writer.content)
            self._wait_if_empty(writer.path)

    def _wait_if_empty(self, path: str) -> None:
        """Wait for the release of a file that nothing was written to: nobody waits for that at a close."""
        until = time.monotonic() + _RELEASE_S
        while not self._files[path] and self._outcome(lambda: self._stored(path)) != b"":
            if time.monotonic() > until:
                self.wrong.append(f"{self.operations} {path} is not there, or not empty")
                return
            time.sleep(0.001)

    def _let_go(self, reader: Reader) -> None:
        self._readers.remove(reader)
        found = self._outcome(lambda: _read(reader.descriptor))
        if found not in (reader.content, "ESTALE"):
            self.wrong.append(
                f"{self.operations} held {reader.path}: {_short(found)}, not {_short(reader.content)}"
            )
        os.close(reader.descriptor)

    def _spoil_readers(self, path: str, mount: int) -> None:
        """Close who reads a file through the mount that now writes to it: they would see the draft."""
        for reader in [one for one in self._readers if (one.path, one.mount) == (path, mount)]:
            self._let_go(reader)

    def _free(self) -> str:
        held = {one.path for one in self._writers if one.is_named}
        return self._dice.choice([path for path in _NAMES if path not in held])

    def _existing(self) -> str:
        held = {one.path for one in self._writers if one.is_named}
        paths = [path for path in sorted(self._files) if path not in held]
        return self._dice.choice(paths) if paths else ""

    def _writer(self) -> Writer | None:
        return self._dice.choice(self._writers) if self._writers else None

    def _mount(self) -> int:
        return self._dice.randrange(2)

    def _at(self, mount: int, path: str) -> str:
        return f"{self._mounts[mount]}/{path}"

    def _wanted(self, path: str) -> Any:
        return self._files.get(path, "ENOENT")

    def _anew(self) -> bytes:
        self._serial += 1
        size = _LARGE if self._dice.random() < 0.03 else self._dice.choice(_SIZES)
        word = b"%d %d\n" % (self._serial, size)
        return (word * (size // len(word) + 1))[:size]

    def _in_pieces(self, descriptor: int, content: bytes) -> None:
        try:
            step = self._dice.choice((1000, 65_536, 1 << 20))
            for at in range(0, min(len(content), 40 * step), step):
                _write(descriptor, content[at : at + step])
            _write(descriptor, content[40 * step :])
        finally:
            os.close(descriptor)

    def _cat(self, mount: str, path: str) -> bytes:
        descriptor = os.open(f"{mount}/{path}", os.O_RDONLY)
        try:
            return _read(descriptor)
        finally:
            os.close(descriptor)

    def _stored(self, path: str) -> bytes:
        with open(f"{self._bucket}/{path}", "rb") as file:
            return file.read()

    def _outcome(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _expect(self, what: str, wanted: Any, work: Callable[[], Any]) -> None:
        found = self._outcome(work)
        if found != wanted:
            self.wrong.append(f"{self.operations} {what}: {_short(found)}, not {_short(wanted)}")


def _write(descriptor: int, content: bytes) -> int:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    return len(content)


def _read(descriptor: int) -> bytes:
    content = bytearray()
    while more := os.pread(descriptor, 1 << 20, len(content)):
        content += more
    return bytes(content)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:60]}… ({len(value)})"


_OPERATIONS: tuple[Callable[[Model], None], ...] = (
    Model.write_whole,
    Model.write_whole,
    Model.make_exclusively,
    Model.make_exclusively_in_both,
    Model.append,
    Model.write_within,
    Model.write_within,
    Model.truncate,
    *(Model.read,) * 4,
    Model.hold,
    Model.hold,
    Model.read_held,
    Model.begin,
    Model.begin,
    *(Model.go_on,) * 4,
    Model.look_at_own,
    Model.sync,
    Model.end,
    Model.unlink,
    Model.unlink_open,
    Model.rename,
    Model.rename_open,
    Model.edit_in_both,
    Model.overwrite_in_both,
)


def main() -> None:
    """Work to the end."""
    first, other, bucket, operations, seed = sys.argv[1:]
    model = Model((first, other), bucket, int(seed))
    try:
        while model.operations < int(operations) and len(model.wrong) < 10:
            model.step()
        model.finish()
    except OSError as error:
        model.wrong.append(f"{model.operations}: {error!r}")
        with contextlib.suppress(OSError):
            model.finish()
    print(json.dumps({"operations": model.operations, "wrong": model.wrong}))


if __name__ == "__main__":
    main()
