"""A directory as a store: keys are its files. For tests, and for trying things out without a server.

A key that ends with "/" is a file of the name `.marker` in that directory: directories themselves are no keys, as in any store of
objects. What is no path, or would be two things at once, is refused.
"""

import contextlib
import errno
import fcntl
import io
import itertools
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence

from sidemount.stores.faults import fault, plain
from sidemount.stores.s3_values import is_text
from sidemount.stores.store import Abilities, Buffer, FaultKind, Got, ObjectInfo, Page, Part, StoreFault

_MARKER = ".marker"
_OWN = ".store"
_TAG = "user.sidemount.tag"
_KINDS = {
    errno.ENOENT: FaultKind.MISSING,
    errno.ENOTDIR: FaultKind.MISSING,
    errno.EISDIR: FaultKind.CONFLICT,
    errno.ENOTEMPTY: FaultKind.CONFLICT,
    errno.EACCES: FaultKind.DENIED,
    errno.EPERM: FaultKind.DENIED,
    errno.EEXIST: FaultKind.EXISTS,
    errno.EFBIG: FaultKind.TOO_LARGE,
}


class LocalStore:
    """Source of the interface: `sidemount.stores.store.ObjectStore`. Several processes may use one directory."""

    abilities = Abilities(part_bytes=(1, 5 << 30))

    def __init__(self, directory: str) -> None:
        self._root = directory.rstrip("/")
        self._own = f"{self._root}/{_OWN}"
        self._lock = threading.Lock()

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        with _faults("HEAD", key):
            return _info(key, os.stat(self._path(key)))

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key and its tag."""
        with _faults("HEAD", key), _opened(self._path(key)) as file:
            info = _info(key, os.fstat(file.fileno()))
            try:
                return info, os.getxattr(file.fileno(), _TAG).decode("utf-8")
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                    raise
                return info, ""

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read."""
        with _faults("GET", key), _opened(self._path(key)) as file:
            info = _info(key, os.fstat(file.fileno()))
            if etag and info.etag != etag:
                raise fault(
                    FaultKind.CHANGED, f"GET {key!r}: another version than the one that was asked for"
                )
            if unless and info.etag == unless:
                return Got(None, 0)
            file.seek(offset)
            size = 0
            while size < len(buffer) and (count := file.readinto(buffer[size:])):
                size += count
            if _info(key, os.fstat(file.fileno())) != info:
                raise fault(FaultKind.CHANGED, f"GET {key!r}: it is being written")
            return Got(info, size)

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Return a page."""
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        last = ""
        with _faults("LIST", prefix):
            for key, found in self._keys(prefix, token, delimiter):
                if len(objects) + len(prefixes) == most:
                    return Page(objects, prefixes, last)
                last = key
                if found is None:
                    prefixes.append(key)
                else:
                    objects.append(_info(key, found))
        return Page(objects, prefixes, "")

    def put(
        self,
        key: str,
        content: Sequence[Buffer],
        *,
        if_absent: bool = False,
        if_match: str = "",
        tag: str = "",
    ) -> ObjectInfo:
        """Make an object."""
        with _faults("PUT", key):
            return self._place(self._written(content, tag), key, if_absent, if_match)

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy an object."""
        with _faults("COPY", source):
            info, tag = self.tag_of(source)
            if etag and info.etag != etag:
                raise fault(
                    FaultKind.CHANGED, f"COPY {source!r}: another version than the one that was asked for"
                )
            made = self._written([], tag)
            shutil.copyfile(self._path(source), made)
        with _faults("COPY", key):
            return self._place(made, key, if_absent, "")

    def delete(self, key: str) -> None:
        """Remove an object, and the directories that nothing is left in."""
        with _faults("DELETE", key), self._alone():
            self._remove(key)

    def delete_version(self, key: str, etag: str) -> None:
        """Remove an object if it is that version still."""
        with _faults("DELETE", key), self._alone():
            found = _etag(self._path(key))
            if found and found != etag:
                raise fault(FaultKind.CHANGED, f"DELETE {key!r}: another version than the one that was named")
            self._remove(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        for key in keys:
            self.delete(key)

    def begin_upload(self, key: str, *, tag: str = "") -> str:
        """Begin an upload: a directory of its parts, and a file that says what it is for."""
        with _faults("CREATE UPLOAD", key):
            self._path(key)
            upload = secrets.token_hex(16)
            os.makedirs(f"{self._own}/{upload}")
            with open(f"{self._own}/{upload}/key", "w", encoding="utf-8", newline="") as file:
                file.write(f"{key}\0{tag}")
            return upload

    def put_part(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part."""
        with _faults("PUT PART", key):
            path = f"{self._upload(key, upload)[0]}/{number:05d}"
            os.rename(self._written(content, ""), path)
            found = _info(key, os.stat(path))
            return Part(number, found.size, found.etag)

    def copy_part(
        self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int
    ) -> Part:
        """Take a part from an object."""
        buffer = memoryview(bytearray(size))
        got = self.get(source.key, offset, buffer, etag=source.etag)
        return self.put_part(key, upload, number, [buffer[: got.size]])

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that are there."""
        with _faults("LIST PARTS", key):
            directory, _ = self._upload(key, upload)
            found = []
            for name in sorted(os.listdir(directory)):
                if name.isdigit():
                    info = _info(key, os.stat(f"{directory}/{name}"))
                    found.append(Part(int(name), info.size, info.etag))
            return found

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], *, if_absent: bool = False, if_match: str = ""
    ) -> ObjectInfo:
        """Make the object of its parts."""
        there = {part.number: part for part in self.parts(key, upload)}
        if not parts or any(there.get(part.number) != part for part in parts):
            raise fault(FaultKind.REQUEST, f"COMPLETE UPLOAD {key!r}: a part is not there")
        with _faults("COMPLETE UPLOAD", key):
            directory, tag = self._upload(key, upload)
            made = self._written([], tag)
            with open(made, "ab") as whole:
                for part in parts:
                    with open(f"{directory}/{part.number:05d}", "rb") as file:
                        shutil.copyfileobj(file, whole, 1 << 20)
                whole.flush()
                os.fsync(whole.fileno())
            info = self._place(made, key, if_absent, if_match)
        self.abort(key, upload)
        return info

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up."""
        with contextlib.suppress(StoreFault), _faults("ABORT UPLOAD", key):
            shutil.rmtree(self._upload(key, upload)[0], ignore_errors=True)

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return unfinished uploads."""
        found = []
        for upload in sorted(os.listdir(self._own)) if os.path.isdir(self._own) else ():
            with contextlib.suppress(OSError, UnicodeError):
                with open(f"{self._own}/{upload}/key", encoding="utf-8", newline="") as file:
                    key = file.read().partition("\0")[0]
                    begun_ns = os.fstat(file.fileno()).st_mtime_ns
                if key.startswith(prefix):
                    found.append((key, upload, begun_ns))
        return found

    def close(self) -> None:
        """Keep everything: there is no connection."""

    def _path(self, key: str) -> str:
        names = key.split("/")
        if names[-1] == "":
            names[-1] = _MARKER
        if any(name in ("", ".", "..") or "\0" in name for name in names) or names[0] == _OWN:
            raise fault(FaultKind.REQUEST, f"{key!r} is no path in a directory", number=errno.EINVAL)
        return "/".join([self._root, *names])

    def _upload(self, key: str, upload: str) -> tuple[str, str]:
        """Return the directory of an upload and the tag of what it will make."""
        if not upload.isalnum():
            raise plain(FaultKind.MISSING, f"upload {upload!r}")
        with open(f"{self._own}/{upload}/key", encoding="utf-8", newline="") as file:
            found, _, tag = file.read().partition("\0")
        if found != key:
            raise plain(FaultKind.MISSING, f"upload {upload!r} of {key!r}")
        return f"{self._own}/{upload}", tag

    def _written(self, content: Sequence[Buffer], tag: str) -> str:
        """Write a file that is no key yet, and return its path."""
        os.makedirs(self._own, exist_ok=True)
        path = f"{self._own}/{secrets.token_hex(16)}.new"
        with open(path, "xb") as file:
            for one in content:
                file.write(one)
            file.flush()
            if tag:
                with contextlib.suppress(OSError):
                    os.setxattr(file.fileno(), _TAG, tag.encode("utf-8"))
            os.fsync(file.fileno())
        return path

    def _place(self, made: str, key: str, if_absent: bool, if_match: str) -> ObjectInfo:
        """Give a written file its key, under a lock of all processes that use the directory."""
        try:
            path = self._path(key)
            with self._alone():
                before = _etag(path)
                if if_absent and before:
                    raise fault(FaultKind.EXISTS, f"PUT {key!r}: it exists")
                if if_match and before != if_match:
                    raise fault(
                        FaultKind.CHANGED, f"PUT {key!r}: another version than the one that was named"
                    )
                try:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                except (FileExistsError, NotADirectoryError):
                    raise fault(FaultKind.CONFLICT, f"PUT {key!r}: a part of its path is a key") from None
                os.rename(made, path)
                return _info(key, os.stat(path))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made)

    def _remove(self, key: str) -> None:
        path = self._path(key)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        with contextlib.suppress(OSError):
            while (path := os.path.dirname(path)) != self._root:
                os.rmdir(path)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of all processes that use the directory."""
        os.makedirs(self._own, exist_ok=True)
        with self._lock, open(f"{self._own}/lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _keys(self, prefix: str, after: str, delimiter: bool) -> Iterator[tuple[str, os.stat_result | None]]:
        """Walk the keys behind `after` in the order of their bytes; what stands for several comes without a status."""
        base = prefix.rpartition("/")[0]
        base = f"{base}/" if base else ""
        directory = os.path.dirname(self._path(f"{base}x"))
        try:
            entries = list(os.scandir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        shown = {}
        for entry in entries:
            is_directory = entry.is_dir()
            name = "" if entry.name == _MARKER and base else f"{entry.name}/" if is_directory else entry.name
            if not (base == "" and entry.name == _OWN) and is_text(name):
                shown[base + name] = entry
        for key in sorted(shown, key=os.fsencode):
            if not key.startswith(prefix):
                continue
            if key.endswith("/") and key != base:
                yield from self._beneath(key, after, delimiter)
            elif os.fsencode(key) > os.fsencode(after):
                with contextlib.suppress(FileNotFoundError):
                    yield key, shown[key].stat()

    def _beneath(self, key: str, after: str, delimiter: bool) -> Iterator[tuple[str, os.stat_result | None]]:
        """Walk what is in a directory, or name it if anything is."""
        if delimiter:
            if os.fsencode(key) > os.fsencode(after) and any(itertools.islice(self._keys(key, "", False), 1)):
                yield key, None
        elif os.fsencode(key) > os.fsencode(after) or after.startswith(key):
            yield from self._keys(key, after, False)


def _etag(path: str) -> str:
    try:
        return _info("", os.stat(path)).etag
    except OSError:
        return ""


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    if not found.st_nlink or not stat.S_ISREG(found.st_mode):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    etag = f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
    return ObjectInfo(key, found.st_size, etag, found.st_mtime_ns)


def _opened(path: str) -> io.FileIO:
    """Open a file. A directory is no key."""
    try:
        return open(path, "rb", buffering=0)
    except IsADirectoryError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


@contextlib.contextmanager
def _faults(operation: str, key: str) -> Iterator[None]:
    try:
        yield
    except StoreFault:
        raise
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, FaultKind.SERVER)
        number = 0 if kind is not FaultKind.SERVER else error.errno or 0
        raise fault(kind, f"{operation} {key!r}: {error.strerror}", number=number) from error
