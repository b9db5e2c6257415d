"""Open files of which the kernel need not tell that somebody closes them.

A close waits for the answer to a FLUSH. Where no close has anything to report, that is half of what it takes to open a file of which the
kernel has the content. The protocol can leave it out (FOPEN_NOFLUSH, Linux 5.16), libfuse can, too (`fuse_file_info.noflush`, 3.11),
and pyfuse3 has no name for it. So an object that is to say it has a table of methods of ours, in which the one that fills in
libfuse's structure sets that bit besides. Where everything lies is tried out first; if pyfuse3 ever lays it out otherwise, closes are told
of as before. Source: <fuse3/fuse_common.h>, struct fuse_file_info.
"""

import ctypes
import functools
import logging
from collections.abc import Callable

import pyfuse3

from sidecar.protocol_filesystem import Opened

_LOG = logging.getLogger(__name__)
_TABLE_AT = 16  # in the object, after what every object begins with
_HANDLE_AT = 24
_OBJECT_BYTES = 48
_BITS_AT, _HANDLE_OUT_AT, _OUT_BYTES = 4, 16, 256
_KEEP_CACHE, _NO_FLUSH = 1 << 2, 1 << 7
_PROBE = 0x51D7A3B1C9D1E7F1
_FILL = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)  # returns None
_TRIED_OUT = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def quiet_file_info(opened: Opened) -> pyfuse3.FileInfo:
    """Return the answer to an OPEN that has the kernel not tell of closes, as far as that can be said."""
    info = pyfuse3.FileInfo(fh=opened.handle, keep_cache=opened.keep_cache, direct_io=opened.direct)
    table = _table()
    if table is not None:
        ctypes.c_void_p.from_address(id(info) + _TABLE_AT).value = ctypes.addressof(table)
    return info


class QuietTable(ctypes.Structure):
    """The methods of a FileInfo that has the kernel not tell of closes."""

    _fields_ = (("fill", _FILL),)


def quiet_table() -> QuietTable | None:
    """Return the table, None if it cannot be told for sure where everything lies."""
    try:
        theirs = _pointer_in(pyfuse3.FileInfo.__dict__["__pyx_vtable__"], None)
    except (KeyError, ValueError):
        return None
    probe = pyfuse3.FileInfo(fh=_PROBE, keep_cache=True)
    if not theirs or pyfuse3.FileInfo.__basicsize__ != _OBJECT_BYTES:
        return None
    if (_word(id(probe) + _TABLE_AT), _word(id(probe) + _HANDLE_AT)) != (theirs, _PROBE):
        return None
    if _filled(_word(theirs), probe) != (id(None), _KEEP_CACHE, _PROBE):
        return None
    try:
        table = QuietTable(_FILL(_quietly(_FILL(_word(theirs)))))
    except MemoryError:  # where memory may not be run
        return None
    is_right = _filled(_word(ctypes.addressof(table)), probe) == (id(None), _KEEP_CACHE | _NO_FLUSH, _PROBE)
    return table if is_right else None


@functools.cache
def _table() -> QuietTable | None:
    table = quiet_table()
    if table is None:
        _LOG.warning("closes_told", extra={"pyfuse3": pyfuse3.__version__})
    return table


def _quietly(fill: Callable[[pyfuse3.FileInfo, int], None]) -> Callable[[pyfuse3.FileInfo, int], None]:
    at = ctypes.c_uint32.from_address

    def quietly(info: pyfuse3.FileInfo, place: int) -> None:
        fill(info, place)
        at(place + _BITS_AT).value |= _NO_FLUSH

    return quietly


def _filled(method: int, info: pyfuse3.FileInfo) -> tuple[int, int, int]:
    """Return what a method returns, and the bits and the handle that it writes where it has found nothing."""
    out = (ctypes.c_uint8 * _OUT_BYTES)()
    returned = _TRIED_OUT(method)(info, ctypes.addressof(out)) or 0
    bits = ctypes.c_uint32.from_buffer(out, _BITS_AT).value
    return returned, bits, ctypes.c_uint64.from_buffer(out, _HANDLE_OUT_AT).value


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
