"""Removing directories: one way that is as dangerous as kubelet's, one that is as careful."""

import errno
import os
import stat
from pathlib import Path

_GO_ON = (errno.EISDIR, errno.EPERM, errno.EACCES)


def remove_all(path: Path) -> None:
    """Remove a tree as Go's os.RemoveAll does: it walks INTO whatever is mounted below and deletes that too.

    kubelet tears a disk emptyDir down with it, which is how a leftover mount costs its files.
    """
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove_at(parent, path.name, path)
    finally:
        os.close(parent)


def _remove_at(parent: int, name: str, path: Path) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in _GO_ON:
            raise OSError(error.errno, f"unlinkat {path}: {error.strerror}") from error
    else:
        return
    failure = _empty(parent, name, path)
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise failure or OSError(error.errno, f"unlinkat {path}: {error.strerror}") from error


def _empty(parent: int, name: str, path: Path) -> OSError | None:
    try:
        directory = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        return OSError(error.errno, f"openfdat {path}: {error.strerror}")
    failure: OSError | None = None
    try:
        for child in os.listdir(directory):
            try:
                _remove_at(directory, child, path / child)
            except OSError as error:
                failure = failure or error
    except OSError as error:
        failure = failure or error
    finally:
        os.close(directory)
    return failure


def remove_one_filesystem(path: Path) -> None:
    """Remove a tree, refusing to cross into another filesystem: kubelet's way with a whole pod directory."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        path.unlink()
        return
    if found.st_dev != os.lstat(path.parent).st_dev:
        raise OSError(errno.EXDEV, f"{path} is another filesystem: not removed")
    for child in sorted(path.iterdir()):
        remove_one_filesystem(child)
    path.rmdir()
