"""Attributes as pyfuse3's EntryAttributes, with the inode number that applications see kept apart from the node id.

The protocol has two fields, the node id and `attr.ino`; pyfuse3 has one property that sets both. But node ids of ours are never
used twice, so a file that the kernel forgot and found again would change its inode number, and whatever knows files by it
(tar's and rsync's hard links, `tail -F`, log shippers, git's index) would be misled. So the second field is
written in place. Where it lies is found out by looking for a value written through the property; if pyfuse3 ever lays the
object out otherwise, the inode number is the node id again.
"""

import ctypes
import errno
import logging
import sys

import pyfuse3

from sidecar.protocol_filesystem import Attributes

_LOG = logging.getLogger(__name__)
_PROBE = 0x51D7A3B1C9D1E7F1
_WORD = 8
_DOTS = (b".", b"..")
_reply = pyfuse3.readdir_reply


class EntryRenderer:
    """Makes EntryAttributes. Timeouts are how long the kernel may believe attributes and names."""

    def __init__(self, *, attribute_timeout_s: float, entry_timeout_s: float) -> None:
        self._attribute_timeout_s = attribute_timeout_s
        self._entry_timeout_s = entry_timeout_s
        self._ino_offset = find_ino_offset()
        if self._ino_offset is None:
            _LOG.warning("inode_numbers_unstable", extra={"pyfuse3": pyfuse3.__version__})

    def render(self, node: int, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """Return the entry of a node."""
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = node
        if self._ino_offset is not None:
            ctypes.c_uint64.from_address(id(entry) + self._ino_offset).value = attributes.ino
        entry.st_mode = attributes.mode
        entry.st_nlink = attributes.nlink
        entry.st_uid = attributes.uid
        entry.st_gid = attributes.gid
        entry.st_rdev = attributes.rdev
        entry.st_size = attributes.size
        entry.st_blksize = attributes.blksize
        entry.st_blocks = attributes.blocks
        entry.st_atime_ns = attributes.atime_ns
        entry.st_mtime_ns = attributes.mtime_ns
        entry.st_ctime_ns = attributes.ctime_ns
        entry.attr_timeout = self._attribute_timeout_s
        entry.entry_timeout = self._entry_timeout_s
        return entry

    def answer(self, token: pyfuse3.ReaddirToken) -> "ListingAnswer":
        """Return what takes the entries of one answer to a readdir."""
        return ListingAnswer(self, token, self._ino_offset)


class ListingAnswer:
    """Takes the entries of one answer to a readdir. Source: `sidecar.protocol_filesystem.Emit`.

    A name alone is an entry of node 0: the kernel takes name, type and inode number of it, and asks for the rest when somebody
    wants to know (fs/fuse/readdir.c, fuse_direntplus_link). All of them are written into one object.
    """

    __slots__ = ("_ino", "_name", "_renderer", "_token", "takes_names")

    def __init__(self, renderer: EntryRenderer, token: pyfuse3.ReaddirToken, ino_offset: int | None) -> None:
        self._renderer = renderer
        self._token = token
        self._name = pyfuse3.EntryAttributes()
        self._name.st_ino = 0
        self.takes_names = ino_offset is not None
        if ino_offset is not None:
            self._ino = ctypes.c_uint64.from_address(id(self._name) + ino_offset)

    def __call__(self, name: bytes, node: int, attributes: Attributes, position: int) -> bool:
        """Take a name with its node."""
        return _reply(self._token, name, self._renderer.render(node, attributes), position)

    def name_alone(self, name: bytes, ino: int, kind: int, position: int) -> bool:
        """Take a name alone."""
        entry = self._name
        if self.takes_names:
            self._ino.value = ino
        elif name in _DOTS:
            entry.st_ino = (
                ino  # as its node, which the kernel ignores; an inode number of 0 would say "deleted"
            )
        else:
            raise OSError(errno.EIO, "a name cannot be listed without its attributes")
        entry.st_mode = kind << 12
        return _reply(self._token, name, entry, position)


def find_ino_offset() -> int | None:
    """Return where `attr.ino` lies in an EntryAttributes object, None if that cannot be told for sure."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = _PROBE
    content = ctypes.string_at(id(entry), type(entry).__basicsize__)
    pattern = _PROBE.to_bytes(_WORD, sys.byteorder)
    places = [at for at in range(0, len(content) - _WORD + 1, _WORD) if content[at : at + _WORD] == pattern]
    if len(places) != 2:
        return None
    for place in places:
        word = ctypes.c_uint64.from_address(id(entry) + place)
        word.value = 1
        if entry.st_ino == _PROBE:  # the property reads the node id, so this is the other one
            return place
        word.value = _PROBE
    return None
