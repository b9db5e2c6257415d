"""The kernel's FUSE requests as a successor reads them from the device, before libfuse gets them again.

Source: <linux/fuse.h>, protocol 7.31 and later; every number is in the machine's own byte order.
"""

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sidecar.takeover import operation
from sidecar.takeover.operation import Operation
from sidemount.model.errors import BadMessage

FORGET = 2
INIT = 26
INTERRUPT = 36
BATCH_FORGET = 42
_RENAME2 = 45
RESENT = 1 << 63  # in `unique`: the kernel has sent this request before

_HEADER = struct.Struct("=IIQQIIIHH")
_EXTENSION_UNIT = 8
_PAIR = struct.Struct("=QQ")
_QUAD = struct.Struct("=Q")
_WORD = struct.Struct("=I")
_RENAME2_IN = struct.Struct("=QII")
_SETXATTR_IN = struct.Struct("=II")
_SETXATTR_EXTENSION = 8
_XATTR_CREATE = 1
_NAME_AT = {
    operation.SYMLINK: 0,
    operation.MKNOD: 16,
    operation.MKDIR: 8,
    operation.UNLINK: 0,
    operation.RMDIR: 0,
    operation.REMOVEXATTR: 0,
    operation.CREATE: 16,
}


class Request(NamedTuple):
    """A request. `pid` is the calling thread's id, 0 if it is in another pid namespace; `body` is all after the header."""

    opcode: int
    unique: int
    node: int
    pid: int
    body: bytes

    @property
    def is_resent(self) -> bool:
        """Tell whether an earlier daemon has read it."""
        return bool(self.unique & RESENT)


def parse_request(message: bytes | bytearray | memoryview) -> Request:
    """Return the request in a message. Raises BadMessage if it is not one whole request."""
    if len(message) < _HEADER.size:
        raise BadMessage(f"a FUSE request of {len(message)} bytes is shorter than its header")
    length, opcode, unique, node, _, _, pid, extensions, _ = _HEADER.unpack_from(message)
    end = length - extensions * _EXTENSION_UNIT
    if length != len(message) or end < _HEADER.size:
        raise BadMessage(f"a FUSE request (opcode {opcode}) of {len(message)} bytes says it has {length}")
    return Request(opcode, unique, node, pid, bytes(message[_HEADER.size : end]))


def forgets_of(request: Request) -> tuple[tuple[int, int], ...]:
    """Return node and lookups of every forget in a request; none if it is another. Raises BadMessage."""
    if request.opcode == FORGET:
        return ((request.node, _unpack(_QUAD, request)[0]),)
    if request.opcode != BATCH_FORGET:
        return ()
    count = _unpack(_WORD, request)[0]
    pairs = request.body[_QUAD.size : _QUAD.size + count * _PAIR.size]
    if len(pairs) != count * _PAIR.size:
        raise BadMessage(f"a batch of {count} forgets has {len(request.body)} bytes")
    return tuple(_PAIR.iter_unpack(pairs))


def operation_of(request: Request) -> Operation | None:
    """Return which operation a request asks for, None if it may simply be done again. Raises BadMessage."""
    read = _READERS.get(request.opcode)
    if read is not None:
        return read(request)
    at = _NAME_AT.get(request.opcode)
    return None if at is None else Operation(request.opcode, request.node, _names(request, at, 1)[0])


def must_not_exist(request: Request) -> bool:
    """Tell whether a request is to set an extended attribute only if there is none (XATTR_CREATE)."""
    return request.opcode == operation.SETXATTR and bool(_unpack(_SETXATTR_IN, request)[1] & _XATTR_CREATE)


def _rename(request: Request) -> Operation:
    old, new = _names(request, _QUAD.size, 2)
    return operation.rename(request.node, old, _unpack(_QUAD, request)[0], new, 0)


def _rename2(request: Request) -> Operation:
    old, new = _names(request, _RENAME2_IN.size, 2)
    new_parent, flags, _ = _unpack(_RENAME2_IN, request)
    return operation.rename(request.node, old, new_parent, new, flags)


def _link(request: Request) -> Operation:
    name = _names(request, _QUAD.size, 1)[0]
    return operation.link(_unpack(_QUAD, request)[0], request.node, name)


def _open(request: Request) -> Operation:
    return operation.open_file(request.node, _unpack(_WORD, request)[0])


def _opendir(request: Request) -> Operation:
    return Operation(operation.OPENDIR, request.node, b"")


def _setxattr(request: Request) -> Operation:
    # With FUSE_SETXATTR_EXT a small number follows where the name is otherwise, which never begins with one.
    at = _SETXATTR_IN.size
    if request.body[at : at + 1] in (b"\0", b"\1"):
        at += _SETXATTR_EXTENSION
    return Operation(operation.SETXATTR, request.node, _names(request, at, 1)[0])


def _unpack(layout: struct.Struct, request: Request) -> tuple[int, ...]:
    if len(request.body) < layout.size:
        raise BadMessage(
            f"a FUSE request (opcode {request.opcode}) has {len(request.body)} of {layout.size} bytes"
        )
    return layout.unpack_from(request.body)


def _names(request: Request, at: int, count: int) -> list[bytes]:
    names = request.body[at:].split(b"\0", count)
    if len(names) <= count:
        raise BadMessage(f"a FUSE request (opcode {request.opcode}) lacks a name")
    return names[:count]


_READERS: Mapping[int, Callable[[Request], Operation]] = {
    operation.RENAME: _rename,
    _RENAME2: _rename2,
    operation.LINK: _link,
    operation.OPEN: _open,
    operation.OPENDIR: _opendir,
    operation.SETXATTR: _setxattr,
}
