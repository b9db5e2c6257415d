"""Where whoever settles an operation finds its file, should its author die: a path beneath the data, or a further name.

A path is checked before it is relied on. It stays good until the operation is settled, because names of files, and of the directories
above them, change under the budget's lock only. A file whose path is too long to be noted gets a name in the volume's own directory for as long.
"""

import contextlib
import os
from typing import NamedTuple

from sidemount.host.budget_file import LONGEST_PATH


class Place(NamedTuple):
    """A path beneath the data, or a name in the volume's directory, which is to be made first."""

    path: bytes
    is_linked: bool = False


class Places:
    """Finds the places of one volume's files."""

    def __init__(self, volume: int, data: int, link_name: bytes) -> None:
        """`volume` and `data` are descriptors of the two directories; `link_name` is this mount's alone."""
        self._volume = volume
        self._data = data
        self._link_name = link_name
        self._prefix = b""

    def of_file(self, fd: int, inode: int) -> Place:
        """Return the place of an open file."""
        return self._checked(self._beneath(fd), inode)

    def of_name(self, directory: int, name: bytes, inode: int) -> Place:
        """Return the place of a file by one of its names."""
        above = self._beneath(directory)
        path = None if above is None else above + b"/" + name if above else name
        return self._checked(path, inode)

    def _checked(self, path: bytes | None, inode: int) -> Place:
        if path is not None and len(path) <= LONGEST_PATH:
            with contextlib.suppress(OSError):
                if os.stat(path, dir_fd=self._data, follow_symlinks=False).st_ino == inode:
                    return Place(path)
        return Place(self._link_name, is_linked=True)

    def link(self, fd: int) -> bool:
        """Give a file its further name. Return whether that works: not every store can, for every file."""
        try:
            os.link(f"/proc/self/fd/{fd}", self._link_name, dst_dir_fd=self._volume, follow_symlinks=True)
        except FileExistsError:
            os.unlink(self._link_name, dir_fd=self._volume)
            return self.link(fd)
        except OSError:
            return False
        return True

    def _beneath(self, fd: int) -> bytes | None:
        """Return the path of a descriptor beneath the data, as the kernel knows it."""
        try:
            path = os.readlink(b"/proc/self/fd/%d" % fd)
            if not self._prefix or not path.startswith(self._prefix):
                self._prefix = os.readlink(b"/proc/self/fd/%d" % self._data)
        except OSError:
            return None  # longer than a page
        if path == self._prefix:
            return b""
        above = self._prefix.rstrip(b"/") + b"/"
        return path[len(above) :] if path.startswith(above) else None
