"""What we add to libfuse's answer to FUSE_INIT: what the kernel offers, our filesystems can do and pyfuse3 does not know.

Source: <linux/fuse.h>, structs fuse_init_in and fuse_init_out.
"""

import struct
from enum import IntFlag

_IN_FLAGS = struct.Struct("<I")
_IN_FLAGS_AT = 40 + 12  # after the header: major, minor, max_readahead
_IN_FLAGS2_AT = _IN_FLAGS_AT + 4
_OUT_HEADER = struct.Struct("<IiQ")
_OUT_FLAGS = struct.Struct("<I")
_OUT_FLAGS_AT = _OUT_HEADER.size + 12
_OUT_MORE = struct.Struct("<II")  # flags2, max_stack_depth
_OUT_MORE_AT = _OUT_HEADER.size + 32
_INIT_EXT = 1 << 30
_PASSTHROUGH = 1 << 5  # of flags2
_STACK_DEPTH = 1  # nothing stacked is passed through, and something may still be stacked on the volume
_FORGET = struct.Struct("<IIQQIIIHHQ")
_OPCODE_FORGET = 2


class InitFlag(IntFlag):
    """What is settled with the kernel for the life of a connection.

    `DONT_MASK`: the caller's umask is left to us, because a default ACL takes its place. `PARALLEL_DIROPS`: lookups and
    listings of one directory at the same time. `HANDLE_KILLPRIV_V2`: the kernel does not ask for a file's capabilities
    before each write; what it finds to be dropped it asks for in a SETATTR that changes nothing else.
    """

    DONT_MASK = 1 << 6
    PARALLEL_DIROPS = 1 << 18
    HANDLE_KILLPRIV_V2 = 1 << 28


def add_flags(init: bytes, answer: bytes, wanted: InitFlag) -> bytes:
    """Return libfuse's answer with those of the flags that the kernel has offered. A refusal stays as it is."""
    if len(init) < _IN_FLAGS_AT + _IN_FLAGS.size or len(answer) < _OUT_FLAGS_AT + _OUT_FLAGS.size:
        return answer
    if _OUT_HEADER.unpack_from(answer)[1]:
        return answer
    (offered,) = _IN_FLAGS.unpack_from(init, _IN_FLAGS_AT)
    (agreed,) = _OUT_FLAGS.unpack_from(answer, _OUT_FLAGS_AT)
    changed = bytearray(answer)
    _OUT_FLAGS.pack_into(changed, _OUT_FLAGS_AT, agreed | offered & wanted)
    return bytes(changed)


def offer_passthrough(init: bytes, answer: bytes) -> bytes:
    """Return libfuse's answer with which the kernel takes files to be passed through, if it has offered to. A refusal stays as it is."""
    if len(init) < _IN_FLAGS2_AT + _IN_FLAGS.size or len(answer) < _OUT_MORE_AT + _OUT_MORE.size:
        return answer
    (offered,) = _IN_FLAGS.unpack_from(init, _IN_FLAGS_AT)
    (offered2,) = _IN_FLAGS.unpack_from(init, _IN_FLAGS2_AT)
    if _OUT_HEADER.unpack_from(answer)[1] or not offered & _INIT_EXT or not offered2 & _PASSTHROUGH:
        return answer
    (agreed,) = _OUT_FLAGS.unpack_from(answer, _OUT_FLAGS_AT)
    # Without the flag that says they count, the kernel has passed over whatever stands there.
    agreed2 = _OUT_MORE.unpack_from(answer, _OUT_MORE_AT)[0] if agreed & _INIT_EXT else 0
    changed = bytearray(answer)
    _OUT_FLAGS.pack_into(changed, _OUT_FLAGS_AT, agreed | _INIT_EXT)
    _OUT_MORE.pack_into(changed, _OUT_MORE_AT, agreed2 | _PASSTHROUGH, _STACK_DEPTH)
    return bytes(changed)


def idle_request() -> bytes:
    """Return a request that asks for nothing, and is not answered: to forget a node that does not exist, no times."""
    return _FORGET.pack(_FORGET.size, _OPCODE_FORGET, 1, 0, 0, 0, 0, 0, 0, 0)
