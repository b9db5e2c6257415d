"""The random operations, each done to the directory and to the shadow, then compared."""

import mmap
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.fsx.shadow import Mismatch, Shadow, ShadowFile, ShadowHandle

_MOST_HANDLES = 8
_MOST_NAMES = 6
_LONGEST_PIECE = 200_000
_LOG_LENGTH = 200


class Exerciser:
    """Works on the files of one directory that nobody else touches.

    The same seed gives the same operations. Contents are random, so that no wrong byte can look right. Without `maps` files are
    not mapped: some mounts cannot.
    """

    def __init__(self, directory: Path, seed: int, largest: int, *, maps: bool = True) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._largest = largest
        self._shadow = Shadow()
        self.log: deque[str] = deque(maxlen=_LOG_LENGTH)
        self.operations = 0
        self._weighted: list[tuple[Callable[[], None], int]] = [
            (self._read, 20),
            (self._write, 20),
            (self._append, 5),
            (self._map_read, 8 if maps else 0),
            (self._map_write, 8 if maps else 0),
            (self._resize, 5),
            (self._punch, 4),
            (self._resize_by_name, 4),
            (self._open, 8),
            (self._close, 6),
            (self._rename, 4),
            (self._exchange_roles, 2),
            (self._link, 3),
            (self._unlink, 4),
            (self._sync, 2),
            (self._stat, 6),
            (self._list, 2),
            (self._read_whole, 2),
        ]

    def step(self) -> None:
        """Do one operation. Raises Mismatch, or OSError if the directory refuses what it must not."""
        operations, weights = zip(*self._weighted, strict=True)
        operation: Callable[[], None] = self._chance.choices(operations, weights)[0]
        operation()
        self.operations += 1

    def check_all(self, directory: Path | None = None) -> None:
        """Compare every name and every byte, in the directory or in another view of it."""
        place = directory or self._directory
        self._note(f"check all of {place}")
        names = sorted(os.listdir(place))
        if names != sorted(self._shadow.names):
            raise Mismatch(f"names are {names}, not {sorted(self._shadow.names)}")
        for name, file in self._shadow.names.items():
            content = (place / name).read_bytes()
            file.check(0, content, max(len(content), len(file.content)))

    def close(self) -> None:
        """Close every descriptor."""
        for handle in self._shadow.handles:
            os.close(handle.fd)
        self._shadow.handles.clear()

    # Content.

    def _read(self) -> None:
        for handle in self._a_handle():
            offset, length = self._span(handle.file)
            self._note(f"read fd={handle.fd} offset={offset} length={length}")
            handle.file.check(offset, os.pread(handle.fd, length, offset), length)

    def _write(self) -> None:
        for handle in self._a_handle(writable=True):
            offset, length = self._span(handle.file, beyond=True)
            piece = self._chance.randbytes(length)
            where = len(handle.file.content) if handle.append else offset
            self._note(f"write fd={handle.fd} offset={offset} (at {where}) length={length}")
            self._all(os.pwrite(handle.fd, piece, offset), piece)
            handle.file.write(where, piece)

    def _append(self) -> None:
        for handle in self._a_handle(writable=True):
            if not handle.append or len(handle.file.content) > self._largest:
                return
            piece = self._chance.randbytes(self._chance.randrange(1, 5000))
            self._note(f"append fd={handle.fd} at={len(handle.file.content)} length={len(piece)}")
            self._all(os.write(handle.fd, piece), piece)
            handle.file.write(len(handle.file.content), piece)

    def _map_read(self) -> None:
        for handle in self._a_handle():
            size = len(handle.file.content)
            if not size:
                return
            offset, length = self._span(handle.file)
            self._note(f"map and read fd={handle.fd} offset={offset} length={length} size={size}")
            with mmap.mmap(handle.fd, size, access=mmap.ACCESS_READ) as mapping:
                handle.file.check(offset, mapping[offset : offset + length], length)

    def _map_write(self) -> None:
        for handle in self._a_handle(writable=True):
            size = len(handle.file.content)
            if not size:
                return
            offset, length = self._span(handle.file)
            piece = self._chance.randbytes(min(length, size - offset))
            flush = self._chance.random() < 0.5
            self._note(f"map and write fd={handle.fd} offset={offset} length={len(piece)} flush={flush}")
            with mmap.mmap(handle.fd, size) as mapping:
                mapping[offset : offset + len(piece)] = piece
                if flush:
                    mapping.flush()
            handle.file.write(offset, piece)

    def _resize(self) -> None:
        for handle in self._a_handle(writable=True):
            size = self._chance.randrange(self._largest)
            self._note(f"resize fd={handle.fd} from={len(handle.file.content)} to={size}")
            os.ftruncate(handle.fd, size)
            handle.file.resize(size)

    def _punch(self) -> None:
        for handle in self._a_handle(writable=True):
            size = len(handle.file.content)
            keep = self._chance.randrange(size + 1)
            self._note(f"cut fd={handle.fd} from={size} to={keep} and back")
            os.ftruncate(handle.fd, keep)
            os.ftruncate(handle.fd, size)
            handle.file.resize(keep)
            handle.file.resize(size)

    def _resize_by_name(self) -> None:
        for name in self._a_name():
            size = self._chance.randrange(self._largest)
            self._note(f"resize {name} to={size}")
            os.truncate(self._directory / name, size)
            self._shadow.names[name].resize(size)

    def _sync(self) -> None:
        for handle in self._a_handle():
            self._note(f"sync fd={handle.fd}")
            os.fsync(handle.fd)

    def _read_whole(self) -> None:
        for name in self._a_name():
            self._note(f"read whole {name}")
            content = (self._directory / name).read_bytes()
            file = self._shadow.names[name]
            file.check(0, content, max(len(content), len(file.content)))

    # Names and descriptors.

    def _open(self) -> None:
        if len(self._shadow.handles) >= _MOST_HANDLES:
            self._close()
        name = f"file{self._chance.randrange(_MOST_NAMES)}"
        append = self._chance.random() < 0.2
        empty = self._chance.random() < 0.1
        access = self._chance.choice((os.O_RDWR, os.O_RDWR, os.O_RDONLY)) if not empty else os.O_RDWR
        flags = access | os.O_CREAT | (os.O_APPEND if append else 0) | (os.O_TRUNC if empty else 0)
        self._note(f"open {name} flags={flags:o}")
        fd = os.open(self._directory / name, flags | os.O_CLOEXEC, 0o644)
        self._note(f"…is fd={fd}")
        if name not in self._shadow.names:
            self._shadow.put(name, ShadowFile())
        file = self._shadow.names[name]
        if empty:
            file.resize(0)
        self._shadow.handles.append(ShadowHandle(fd, file, append, access == os.O_RDWR))

    def _close(self) -> None:
        for handle in self._a_handle():
            self._note(f"close fd={handle.fd}")
            self._shadow.handles.remove(handle)
            os.close(handle.fd)

    def _rename(self) -> None:
        for name in self._a_name():
            new = f"file{self._chance.randrange(_MOST_NAMES)}"
            self._note(f"rename {name} {new}")
            os.rename(self._directory / name, self._directory / new)
            file = self._shadow.names[name]
            if self._shadow.names.get(new) is not file:  # two names of one file: nothing happens
                self._shadow.drop(name)
                self._shadow.put(new, file)

    def _exchange_roles(self) -> None:
        """Replace a file the way editors do: write a new one, sync it, rename it over the old one."""
        for name in self._a_name():
            piece = self._chance.randbytes(self._chance.randrange(self._largest))
            self._note(f"replace {name} with {len(piece)} bytes")
            temporary = self._directory / "temporary"
            with open(temporary, "xb") as file:
                file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self._directory / name)
            self._shadow.put(name, ShadowFile(bytearray(piece)))

    def _link(self) -> None:
        for name in self._a_name():
            new = f"file{self._chance.randrange(_MOST_NAMES)}"
            if new in self._shadow.names:
                return
            self._note(f"link {name} {new}")
            os.link(self._directory / name, self._directory / new)
            self._shadow.put(new, self._shadow.names[name])

    def _unlink(self) -> None:
        for name in self._a_name():
            self._note(f"unlink {name}")
            os.unlink(self._directory / name)
            self._shadow.drop(name)

    def _stat(self) -> None:
        for handle in self._a_handle():
            self._note(f"stat fd={handle.fd}")
            found = os.fstat(handle.fd)
            right = (len(handle.file.content), handle.file.links)
            if (found.st_size, found.st_nlink) != right:
                raise Mismatch(f"size and links are {(found.st_size, found.st_nlink)}, not {right}")

    def _list(self) -> None:
        self._note("list")
        names = sorted(os.listdir(self._directory))
        if names != sorted(self._shadow.names):
            raise Mismatch(f"names are {names}, not {sorted(self._shadow.names)}")

    # Choosing.

    def _a_handle(self, *, writable: bool = False) -> Iterator[ShadowHandle]:
        handle = self._shadow.some_handle(self._chance, writable=writable)
        if handle is not None:
            yield handle

    def _a_name(self) -> Iterator[str]:
        name = self._shadow.some_name(self._chance)
        if name is not None:
            yield name

    def _span(self, file: ShadowFile, *, beyond: bool = False) -> tuple[int, int]:
        end = self._largest if beyond else max(1, len(file.content))
        offset = self._chance.randrange(end)
        if self._chance.random() < 0.3:
            offset = offset // mmap.PAGESIZE * mmap.PAGESIZE
        length = self._chance.choice((1, 17, 511, 4096, 4097, 65536, _LONGEST_PIECE))
        length = self._chance.randrange(1, length + 1)
        return offset, min(length, self._largest - offset) if beyond else length

    def _all(self, count: int, piece: bytes) -> None:
        if count != len(piece):
            raise Mismatch(f"wrote {count} of {len(piece)} bytes")

    def _note(self, text: str) -> None:
        self.log.append(f"{self.operations:8d} {text}")
