"""An application on a bucket: makes, writes, renames, lists, reads and removes, and knows what each call must answer.

    python -m tests.sidecar.objects.application DIRECTORY SECONDS SEED

Works until it is told to end, then prints what it has done and what went wrong as one JSON line.
"""

import errno
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

_NAMES = tuple("abcdef")
_PLACES = ("", "one", "two", "one/deep")
MANY = 2600  # files beside the directory
LEAST = 20  # operations, however early it is told to end


class Model:
    """A directory in the filesystem and in mind."""

    def __init__(self, place: str, seed: int) -> None:
        self.wrong: list[str] = []
        self.operations = 0
        self._place = place
        self._dice = random.Random(seed)
        self._files: dict[str, bytes] = {}
        self._directories: set[str] = {""}
        self._held: list[tuple[int, bytes]] = []
        self._serial = 0
        os.mkdir(place)

    def step(self) -> None:
        """Do one thing, and compare its outcome."""
        path, other = self._path(), self._path()
        what = self._dice.choice(_OPERATIONS)
        self.operations += 1
        what(self, path, other)

    def check(self) -> None:
        """Compare everything."""
        for directory in sorted(self._directories):
            wanted = sorted(
                {name[len(directory) :].lstrip("/").split("/")[0] for name in self._below(directory)}
            )
            self._expect(f"names in {directory!r}", wanted, partial(self._names, directory))
        for path, content in self._files.items():
            self._expect(f"content of {path}", content, partial(self._content, path))
        for descriptor, content in self._held:
            self._expect("what is held open", content, partial(os.pread, descriptor, 1 << 20, 0))

    def _below(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        return [
            path
            for path in (*self._files, *self._directories)
            if path != directory and path.startswith(prefix)
        ]

    # Operations.

    def make_directory(self, path: str, _: str) -> None:
        wanted: Any = None
        if path in self._files or path in self._directories:
            wanted = "EEXIST"
        elif not self._has_parent(path):
            wanted = self._missing(path)
        else:
            self._directories.add(path)
        self._expect(f"mkdir {path}", wanted, lambda: os.mkdir(self._at(path)))

    def make_file(self, path: str, _: str) -> None:
        content = self._content_anew()
        wanted: Any = None
        if path in self._files or path in self._directories:
            wanted = "EEXIST"
        elif not self._has_parent(path):
            wanted = self._missing(path)
        else:
            self._files[path] = content
        self._expect(f"create {path}", wanted, lambda: self._write(path, content, os.O_EXCL))

    def overwrite(self, path: str, _: str) -> None:
        if path not in self._files:
            return
        self._files[path] = content = self._content_anew()
        self._expect(f"overwrite {path}", None, lambda: self._write(path, content, os.O_TRUNC))

    def append(self, path: str, _: str) -> None:
        if path not in self._files:
            return
        more = self._content_anew()[:1000]
        self._files[path] += more
        self._expect(f"append {path}", None, lambda: self._write(path, more, os.O_APPEND))

    def read(self, path: str, _: str) -> None:
        if path in self._files:
            self._expect(f"read {path}", self._files[path], lambda: self._content(path))

    def hold(self, path: str, _: str) -> None:
        """Keep a file open that is not changed any more, whatever becomes of its name."""
        if path not in self._files or len(self._held) > 3:
            return
        content = self._files.pop(path)
        descriptor = os.open(self._at(path), os.O_RDONLY)
        self._held.append((descriptor, content))
        self._expect(f"read held {path}", content, lambda: os.pread(descriptor, 1 << 20, 0))
        kept = f"{path}.kept{self._serial}"
        self._expect(f"rename held {path}", None, lambda: os.rename(self._at(path), self._at(kept)))
        self._files[kept] = content

    def let_go(self, _: str, __: str) -> None:
        for descriptor, content in self._held:
            self._expect("what is held open", content, partial(os.pread, descriptor, 1 << 20, 0))
            os.close(descriptor)
        self._held.clear()

    def unlink(self, path: str, _: str) -> None:
        wanted: Any = None
        if path in self._directories:
            wanted = "EISDIR"
        elif path not in self._files:
            wanted = "ENOENT" if self._has_parent(path) else self._missing(path)
        else:
            del self._files[path]
        self._expect(f"unlink {path}", wanted, lambda: os.unlink(self._at(path)))

    def remove_directory(self, path: str, _: str) -> None:
        wanted: Any = None
        if path in self._files:
            wanted = "ENOTDIR"
        elif path not in self._directories:
            wanted = "ENOENT" if self._has_parent(path) else self._missing(path)
        elif self._below(path):
            wanted = "ENOTEMPTY"
        else:
            self._directories.discard(path)
        self._expect(f"rmdir {path}", wanted, lambda: os.rmdir(self._at(path)))

    def rename_file(self, path: str, other: str) -> None:
        if path not in self._files or other in self._directories or not self._has_parent(other):
            return
        content = self._files.pop(path)
        self._files[other] = content
        self._expect(f"rename {path} {other}", None, lambda: os.rename(self._at(path), self._at(other)))

    def rename_directory(self, path: str, other: str) -> None:
        if path not in self._directories or not path or not self._has_parent(other):
            return
        if other in self._files or f"{other}/".startswith(f"{path}/") or self._below(other):
            return
        if f"{path}/".startswith(f"{other}/"):
            return
        below = self._below(path)
        self._directories = {
            other + one[len(path) :] if one == path or one in below else one for one in self._directories
        }
        self._files = {
            other + one[len(path) :] if one in below else one: what for one, what in self._files.items()
        }
        self._expect(f"rename {path}/ {other}/", None, lambda: os.rename(self._at(path), self._at(other)))

    def list_many(self, _: str, __: str) -> None:
        """List a directory of many pages that was there before."""
        names = self._outcome(lambda: os.listdir(f"{os.path.dirname(self._place)}/many"))
        self._expect("names of many", MANY, lambda: len(names))
        self._expect("different names of many", MANY, lambda: len(set(names)))

    # Means.

    def _path(self) -> str:
        above = self._dice.choice(_PLACES)
        name = self._dice.choice((*_NAMES, "one", "two", "deep") if self._dice.random() < 0.4 else _NAMES)
        return f"{above}/{name}" if above else name

    def _has_parent(self, path: str) -> bool:
        return path.rpartition("/")[0] in self._directories

    def _missing(self, path: str) -> str:
        above = path.rpartition("/")[0]
        while above:
            if above in self._files:
                return "ENOTDIR"
            above = above.rpartition("/")[0]
        return "ENOENT"

    def _content_anew(self) -> bytes:
        self._serial += 1
        return f"{self._serial} ".encode() * self._dice.choice((0, 1, 50, 20_000))

    def _at(self, path: str) -> str:
        return f"{self._place}/{path}" if path else self._place

    def _write(self, path: str, content: bytes, flags: int) -> None:
        flags |= os.O_WRONLY | (os.O_CREAT if flags & os.O_EXCL else 0)
        descriptor = os.open(self._at(path), flags)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view[:65_536]) :]
        finally:
            os.close(descriptor)

    def _names(self, path: str) -> list[str]:
        return sorted(os.listdir(self._at(path)))

    def _content(self, path: str) -> bytes:
        with open(self._at(path), "rb", buffering=0) as file:
            return file.readall()

    def _outcome(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _expect(self, what: str, wanted: Any, work: Callable[[], Any]) -> None:
        found = self._outcome(work)
        if found != wanted:
            self.wrong.append(f"{self.operations} {what}: {_short(found)}, not {_short(wanted)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 100 else f"{text[:60]}… ({len(value)})"


_OPERATIONS: tuple[Callable[[Model, str, str], None], ...] = (
    Model.make_directory,
    Model.make_directory,
    Model.make_file,
    Model.make_file,
    Model.overwrite,
    Model.append,
    Model.read,
    Model.hold,
    Model.let_go,
    Model.unlink,
    Model.remove_directory,
    Model.rename_file,
    Model.rename_directory,
    Model.list_many,
)


def main() -> None:
    """Work to the end."""
    place, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    model = Model(place, seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (told and model.operations > LEAST) and len(model.wrong) < 10:
        model.step()
        if model.operations % 100 == 0:
            model.check()
    model.check()
    print(json.dumps({"kind": "objects", "operations": model.operations, "errors": [], "wrong": model.wrong}))


if __name__ == "__main__":
    main()
