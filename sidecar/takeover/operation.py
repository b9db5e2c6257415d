"""The operations that may not be done twice, as both the kernel's message and the filesystem's handler name them.

An operation is its kind, the node it is sent to and what tells it from others on that node: no two with all three equal are
ever in flight at once, because the kernel locks the directory, or the inode whose attributes change. (Opens are the exception: equal ones
are interchangeable.) Kinds are the opcodes of <linux/fuse.h>.
"""

import struct
from typing import NamedTuple

SYMLINK = 6
MKNOD = 8
MKDIR = 9
UNLINK = 10
RMDIR = 11
RENAME = 12
LINK = 13
OPEN = 14
SETXATTR = 21
REMOVEXATTR = 24
OPENDIR = 27
CREATE = 35

_RENAME = struct.Struct("=QI")
_LINK = struct.Struct("=Q")
_OPEN = struct.Struct("=I")


class Operation(NamedTuple):
    """One operation. `node` is the directory where names change, else the file itself."""

    kind: int
    node: int
    arguments: bytes


def rename(parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> Operation:
    """Return the operation of a rename."""
    return Operation(RENAME, parent, _RENAME.pack(new_parent, flags) + name + b"\0" + new_name)


def link(node: int, parent: int, name: bytes) -> Operation:
    """Return the operation of a link."""
    return Operation(LINK, parent, _LINK.pack(node) + name)


def open_file(node: int, flags: int) -> Operation:
    """Return the operation of an open. Python's flags may be negative: pyfuse3 gives them as a C int."""
    return Operation(OPEN, node, _OPEN.pack(flags & 0xFFFFFFFF))
