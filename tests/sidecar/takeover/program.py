"""Random programs of system calls on one directory: the same seed makes the same calls, so two directories can be compared."""

import errno
import os
import random
import stat
from collections.abc import Callable
from typing import Any

from sidecar.directory import syscalls

_NAMES = (b"a", b"b", b"c", b"d", b"e", b"A", b" ", b"n" * 255, b"\xff\xfe")
_USERS = (0, 0, 0, 1234, 1235)
_MODES = (0o644, 0o600, 0o700, 0, 0o444, 0o755, 0o4755, 0o6777, 0o1777)
_OFFSETS = (0, 1, 4095, 4096, 10_000, (1 << 40) + 3, (1 << 63) - 1)
_SIZES = (0, 1, 5, 5000, 1 << 33, (1 << 63) - 1)
_TIMES = ((0, 0), (-5_000_000_001, 7), (2**33 * 10**9 + 1, 2**32 * 10**9 + 999_999_999))
_ATTRIBUTES = ("user.a", "user.b", "user." + "x" * 200, "bogus.x")
_FLAGS = (
    (os.O_CREAT, 0.6),
    (os.O_EXCL, 0.2),
    (os.O_TRUNC, 0.15),
    (os.O_APPEND, 0.2),
    (os.O_DIRECTORY, 0.05),
    (os.O_NOFOLLOW, 0.1),
    (os.O_SYNC, 0.05),
    (os.O_PATH, 0.04),
)
_FILES = 6
_DIRECTORIES = 3
_OFTEN = ("open", "open", "open", "make_directory", "make_directory", "rename", "rename", "write", "beneath")


class Program:
    """Works in the current directory, as several users. All that a call takes is drawn before it is made."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._files: list[int | None] = [None] * _FILES
        self._directories: list[int | None] = [None] * _DIRECTORIES
        prefix = "_do_"
        names = sorted(name for name in dir(self) if name.startswith(prefix))
        self._calls: list[Callable[[], Callable[[], Any]]] = [getattr(self, name) for name in names]
        self._calls += [getattr(self, prefix + name) for name in _OFTEN]

    def step(self) -> tuple[str, int, Any]:
        """Make one call. Return its name, the user and what came of it."""
        draw, user = self._dice.choice(self._calls), self._dice.choice(_USERS)
        call = draw()
        os.setegid(user)
        os.seteuid(user)
        try:
            outcome = call()
        except OSError as error:
            outcome = errno.errorcode[error.errno or 0]
        finally:
            os.seteuid(0)
            os.setegid(0)
        return draw.__name__, user, outcome

    def end(self) -> None:
        """Close everything."""
        for descriptor in self._files + self._directories:
            if descriptor is not None:
                os.close(descriptor)

    def _path(self) -> bytes:
        depth = self._dice.choice((1, 1, 1, 2, 2, 3))
        path = b"/".join(self._dice.choice(_NAMES) for _ in range(depth))
        return path + b"/" if self._dice.random() < 0.03 else path

    def _bytes(self) -> bytes:
        return self._dice.randbytes(1) * self._dice.choice((0, 1, 7, 5000, 70_000))

    def _file(self, place: int) -> int:
        return _open_one(self._files[place])

    # Open files.

    def _do_open(self) -> Callable[[], Any]:
        path, mode, place = self._path(), self._dice.choice(_MODES), self._dice.randrange(_FILES)
        flags = self._dice.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR)) | os.O_NONBLOCK
        for flag, likely in _FLAGS:
            flags |= flag if self._dice.random() < likely else 0

        def call() -> Any:
            descriptor = os.open(path, flags, mode)
            old, self._files[place] = self._files[place], descriptor
            if old is not None:
                os.close(old)
            return _described(os.fstat(descriptor))

        return call

    def _do_close(self) -> Callable[[], Any]:
        place = self._dice.randrange(_FILES)

        def call() -> None:
            descriptor = self._file(place)
            self._files[place] = None
            os.close(descriptor)

        return call

    def _do_read(self) -> Callable[[], Any]:
        place, size, offset = self._dice.randrange(_FILES), 20_000, self._dice.choice(_OFFSETS)
        return lambda: os.pread(self._file(place), size, offset)

    def _do_write(self) -> Callable[[], Any]:
        place, content, offset = self._dice.randrange(_FILES), self._bytes(), self._dice.choice(_OFFSETS)
        return lambda: os.pwrite(self._file(place), content, offset)

    def _do_write_on(self) -> Callable[[], Any]:
        place, content = self._dice.randrange(_FILES), self._bytes()
        return lambda: (os.write(self._file(place), content), os.lseek(self._file(place), 0, os.SEEK_CUR))

    def _do_resize(self) -> Callable[[], Any]:
        place, size = self._dice.randrange(_FILES), self._dice.choice(_SIZES)
        return lambda: os.ftruncate(self._file(place), size)

    def _do_describe(self) -> Callable[[], Any]:
        place = self._dice.randrange(_FILES)
        return lambda: _described(os.fstat(self._file(place)))

    def _do_link_open(self) -> Callable[[], Any]:
        place, path = self._dice.randrange(_FILES), self._path()
        return lambda: os.link(f"/proc/self/fd/{self._file(place)}", path, follow_symlinks=True)

    # Names.

    def _do_make_directory(self) -> Callable[[], Any]:
        path, mode = self._path(), self._dice.choice(_MODES)
        return lambda: _both(lambda: os.mkdir(path, mode), lambda: _described(os.lstat(path)))

    def _do_make_node(self) -> Callable[[], Any]:
        path, kind = self._path(), self._dice.choice((stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK))
        mode = self._dice.choice(_MODES)
        return lambda: _both(lambda: os.mknod(path, kind | mode), lambda: _described(os.lstat(path)))

    def _do_make_symlink(self) -> Callable[[], Any]:
        target, path = self._dice.choice((b"a", b"d/e", b"", b"t" * 4095, b"/absent/x")), self._path()
        return lambda: _both(lambda: os.symlink(target, path), lambda: os.readlink(path))

    def _do_link(self) -> Callable[[], Any]:
        path, other = self._path(), self._path()
        return lambda: _both(
            lambda: os.link(path, other, follow_symlinks=False), lambda: _described(os.lstat(other))
        )

    def _do_rename(self) -> Callable[[], Any]:
        path, other, flags = self._path(), self._path(), self._dice.choice((0, 0, 0, 1, 2, 3, 8))
        return lambda: syscalls.renameat2(syscalls.AT_FDCWD, path, syscalls.AT_FDCWD, other, flags)

    def _do_unlink(self) -> Callable[[], Any]:
        path = self._path()
        return lambda: os.unlink(path)

    def _do_remove_directory(self) -> Callable[[], Any]:
        path = self._path()
        return lambda: os.rmdir(path)

    def _do_list(self) -> Callable[[], Any]:
        path = self._dice.choice((b".", self._path()))
        return lambda: sorted(os.listdir(path))

    # Attributes.

    def _do_change_mode(self) -> Callable[[], Any]:
        path, mode = self._path(), self._dice.choice(_MODES)
        return lambda: _both(lambda: os.chmod(path, mode), lambda: _described(os.stat(path)))

    def _do_change_owner(self) -> Callable[[], Any]:
        path, user, group = self._path(), self._dice.choice((-1, 0, 1234)), self._dice.choice((-1, 0, 1235))
        if (
            user == group == -1
        ):  # of a set-id file only its owner may, but FUSE's part of the kernel lets everybody
            user = 1234
        return lambda: _both(
            lambda: os.chown(path, user, group, follow_symlinks=False), lambda: _described(os.lstat(path))
        )

    def _do_change_times(self) -> Callable[[], Any]:
        path, times = self._path(), self._dice.choice(_TIMES)
        return lambda: _both(
            lambda: os.utime(path, ns=times, follow_symlinks=False), lambda: os.lstat(path).st_mtime_ns
        )

    def _do_truncate(self) -> Callable[[], Any]:
        path, size = self._path(), self._dice.choice(_SIZES)
        return lambda: os.truncate(path, size)

    def _do_ask_access(self) -> Callable[[], Any]:
        path, mode = self._path(), self._dice.choice((os.R_OK, os.W_OK, os.X_OK))
        return lambda: os.access(path, mode, effective_ids=True)

    def _do_set_attribute(self) -> Callable[[], Any]:
        path, name, flags = self._path(), self._dice.choice(_ATTRIBUTES), self._dice.choice((0, 1, 2))
        value = self._dice.choice((b"", b"v", b"w" * 100, b"z" * 3000, b"q" * 65_537))
        return lambda: _both(lambda: os.setxattr(path, name, value, flags), lambda: os.getxattr(path, name))

    def _do_get_attributes(self) -> Callable[[], Any]:
        path, name = self._path(), self._dice.choice(_ATTRIBUTES)
        return lambda: (sorted(os.listxattr(path)), os.getxattr(path, name))

    def _do_remove_attribute(self) -> Callable[[], Any]:
        path, name = self._path(), self._dice.choice(_ATTRIBUTES)
        return lambda: os.removexattr(path, name)

    # Open directories.

    def _do_open_directory(self) -> Callable[[], Any]:
        path, place = self._dice.choice((b".", self._path())), self._dice.randrange(_DIRECTORIES)

        def call() -> None:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            old, self._directories[place] = self._directories[place], descriptor
            if old is not None:
                os.close(old)

        return call

    def _do_beneath(self) -> Callable[[], Any]:
        place, name, what = (
            self._dice.randrange(_DIRECTORIES),
            self._dice.choice(_NAMES),
            self._dice.randrange(5),
        )

        def call() -> Any:
            at = _open_one(self._directories[place])
            match what:
                case 0:
                    return os.mkdir(name, 0o755, dir_fd=at)
                case 1:
                    return sorted(os.listdir(at))
                case 2:
                    return os.unlink(name, dir_fd=at)
                case 3:
                    return os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640, dir_fd=at))
                case _:
                    return _described(os.stat(name, dir_fd=at, follow_symlinks=False))

        return call


def run_program(directory: str, seed: int, calls: int) -> list[Any]:
    """Return what came of every call, and what is there afterwards. For a process of its own."""
    os.chdir(directory)
    os.umask(0o022)
    program = Program(seed)
    outcomes: list[Any] = [(number, *program.step()) for number in range(calls)]
    program.end()
    return [*outcomes, *_tree()]


def _tree() -> list[Any]:
    found: list[Any] = []
    for above, directories, files in os.walk(b"."):
        directories.sort()
        for name in sorted(directories + files):
            path = above + b"/" + name
            status = os.lstat(path)
            content: Any = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read(100_000)
            attributes = os.listxattr(path, follow_symlinks=False)
            values = {key: os.getxattr(path, key, follow_symlinks=False) for key in sorted(attributes)}
            found.append((path, _described(status), content, values))
    return found


def _described(status: os.stat_result) -> tuple[Any, ...]:
    """Return what must be the same. Set-id bits of files are not: whose write takes them away is known only for who opened."""
    is_file, is_directory = stat.S_ISREG(status.st_mode), stat.S_ISDIR(status.st_mode)
    mode = status.st_mode & ~(stat.S_ISUID | stat.S_ISGID if is_file else 0)
    size = 0 if is_directory else status.st_size
    return oct(mode), status.st_nlink, status.st_uid, status.st_gid, size, status.st_rdev


def _both(change: Callable[[], None], look: Callable[[], Any]) -> Any:
    change()
    return look()


def _open_one(descriptor: int | None) -> int:
    if descriptor is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return descriptor
