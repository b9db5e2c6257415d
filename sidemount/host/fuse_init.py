"""What the kernel says of itself in FUSE_INIT. Source: <linux/fuse.h>, struct fuse_init_in."""

import struct

_IN_HEADER = struct.Struct("<IIQQIIIHH")
_BODY = struct.Struct("<IIIII")  # major, minor, max_readahead, flags, flags2
_FUSE_INIT = 26
_HAS_RESEND = 1 << 7  # of flags2: 1 << 39 of both


def is_init(message: bytes) -> bool:
    """Tell whether the bytes are one whole FUSE_INIT request."""
    if len(message) < _IN_HEADER.size:
        return False
    length, opcode = _IN_HEADER.unpack_from(message)[:2]
    return bool(length == len(message) and opcode == _FUSE_INIT)


def can_resend(init: bytes) -> bool:
    """Tell whether the kernel can send again what a dead daemon has read (FUSE_NOTIFY_RESEND, since Linux 6.9)."""
    if not is_init(init) or len(init) < _IN_HEADER.size + _BODY.size:
        return False
    flags2: int = _BODY.unpack_from(init, _IN_HEADER.size)[4]
    return bool(flags2 & _HAS_RESEND)
