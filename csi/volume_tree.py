"""Directories of a volume's data, opened so that nothing planted in it leads elsewhere: no link, no mount, whatever is renamed."""

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator

from csi.faults import WrongState
from sidemount.host.mount_table import read_mount_table
from sidemount.host.openat2 import open_directory_beneath
from sidemount.model.errors import HostFailure, NotReady, shown

_STEP_BYTES = 3000  # of a path longer than the kernel takes at once
_ROUNDS = 4

Stop = threading.Event


def check_going_on(stop: Stop) -> None:
    """Raise NotReady if what is being done shall end, to be continued later."""
    if stop.is_set():
        raise NotReady("the controller is ending", hint="try again: it goes on where it was")


def check_no_mounts(directory: str) -> None:
    """See that nothing is mounted in a volume's directory: no file of another filesystem is ours. Raises WrongState."""
    real = os.path.realpath(directory)
    for mount in read_mount_table():
        if mount.mount_point == real or mount.mount_point.startswith(f"{real}/"):
            raise WrongState(
                f"something is mounted at {shown(mount.mount_point)}, in the volume", hint="unmount it"
            )


@contextlib.contextmanager
def opened(root: int, path: str) -> Iterator[int]:
    """Yield a descriptor of the directory `path` beneath `root`, "" is the root itself. Raises HostFailure."""
    descriptor = _open(root, path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_root(path: str) -> Iterator[int]:
    """Yield a descriptor of a directory that only we name. Raises HostFailure."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise HostFailure(f"{path}: {error.strerror}", errno=error.errno or 0) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_directories(root: int, path: str, mode: int) -> None:
    """Make a directory and those above it, what is there already remaining as it is. Raises WrongState, HostFailure."""
    made = ""
    for part in path.split("/"):
        try:
            with opened(root, made) as parent:
                if not _made(parent, part, mode):
                    _open_checked(parent, part, path)
        except OSError as error:
            raise HostFailure(f"mkdir {path}: {error.strerror}", errno=error.errno or 0) from error
        made = f"{made}/{part}" if made else part


def remove_tree(
    parent: int, name: str, stop: Stop, tell: Callable[[int], None] = lambda removed: None
) -> None:
    """Remove whatever has that name in the open directory `parent`; gone already is fine. Others may do so at once.

    `tell` hears of every removed entry's number. Raises HostFailure (EXDEV, EBUSY: something is mounted in it), NotReady.
    """
    removed = 0
    for _ in range(_ROUNDS):
        for _ in _removals(parent, name):
            removed += 1
            tell(removed)
            check_going_on(stop)
        if not _is_there(parent, name):
            return
    raise HostFailure(f"{name} fills while it is removed", errno=errno.ENOTEMPTY)


def _removals(parent: int, name: str) -> Iterator[None]:
    """Remove step by step what is there now; directories that others fill meanwhile remain."""
    pending = [(name, False)]
    while pending:
        path, is_empty = pending.pop()
        above, _, last = path.rpartition("/")
        try:
            with opened(parent, above) as directory:
                if is_empty or not stat.S_ISDIR(
                    os.stat(last, dir_fd=directory, follow_symlinks=False).st_mode
                ):
                    _remove_entry(directory, last, is_directory=is_empty)
                    yield
                    continue
                pending.append((path, True))
                with opened(directory, last) as entered:
                    for found in _entries(entered):
                        if found.is_dir(follow_symlinks=False):
                            pending.append((f"{path}/{found.name}", False))
                        else:
                            _remove_entry(entered, found.name, is_directory=False)
                            yield
        except HostFailure as error:
            if error.errno != errno.ENOENT:
                raise
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HostFailure(f"removing {last}: {error.strerror}", errno=error.errno or 0) from error


def _remove_entry(directory: int, name: str, *, is_directory: bool) -> None:
    try:
        if is_directory:
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        if not (is_directory and error.errno == errno.ENOTEMPTY):
            raise HostFailure(f"removing {name}: {error.strerror}", errno=error.errno or 0) from error


def _is_there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _entries(directory: int) -> "list[os.DirEntry[str]]":
    with os.scandir(directory) as found:
        return list(found)


def _open(root: int, path: str) -> int:
    """Open for reading, in steps: a tree may be deeper than any path that the kernel takes."""
    here = os.dup(root)
    rest = path
    while True:
        part, rest = _step(rest)
        try:
            further = open_directory_beneath(here, part, shown(path))
        finally:
            os.close(here)
        here = further
        if not rest:
            break
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        raise HostFailure(f"{shown(path)}: {error.strerror}", errno=error.errno or 0) from error
    finally:
        os.close(here)


def _step(path: str) -> tuple[str, str]:
    if len(os.fsencode(path)) <= _STEP_BYTES:
        return path, ""
    parts = path.split("/")
    size, count = 0, 0
    while size + len(os.fsencode(parts[count])) < _STEP_BYTES:
        size += len(os.fsencode(parts[count])) + 1
        count += 1
    return "/".join(parts[:count]), "/".join(parts[count:])


def _made(parent: int, name: str, mode: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        return False
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.fchmod(descriptor, mode)  # whatever the umask
    finally:
        os.close(descriptor)
    return True


def _open_checked(parent: int, name: str, path: str) -> None:
    try:
        os.close(open_directory_beneath(parent, name, name))
    except HostFailure as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EXDEV):
            raise WrongState(f"{shown(path)}: {shown(name)} is a link, a mount, or no directory") from error
        raise
