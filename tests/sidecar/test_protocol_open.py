"""Answers to OPEN that have the kernel not tell of closes: right to the bit, and left out where pyfuse3 is not what we know."""

import ctypes
import gc

import pyfuse3
import pytest

from sidecar import protocol_open
from sidecar.protocol_filesystem import Opened
from sidecar.protocol_open import quiet_file_info, quiet_table

_NO_FLUSH = 1 << 7
_KEEP_CACHE = 1 << 2
_DIRECT = 1 << 1


def _sent(info: pyfuse3.FileInfo) -> tuple[int, int]:
    """Return bits and handle as pyfuse3 would have libfuse send them: by the table that the object has."""
    table = ctypes.c_uint64.from_address(id(info) + 16).value
    fill = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)(
        ctypes.c_uint64.from_address(table).value
    )
    out = (ctypes.c_uint8 * 256)()
    assert fill(info, ctypes.addressof(out)) is None
    return ctypes.c_uint32.from_buffer(out, 4).value, ctypes.c_uint64.from_buffer(out, 16).value


@pytest.mark.parametrize(
    ("opened", "bits"),
    [
        pytest.param(Opened(5), _NO_FLUSH, id="plain"),
        pytest.param(Opened(2**64 - 1, keep_cache=True), _NO_FLUSH | _KEEP_CACHE, id="keep"),
        pytest.param(Opened(7, direct=True), _NO_FLUSH | _DIRECT, id="direct"),
    ],
)
def test_all_that_was_to_be_said_is_said_besides(opened: Opened, bits: int) -> None:
    assert _sent(quiet_file_info(opened)) == (bits, opened.handle)


def test_others_still_have_their_closes_told() -> None:
    quiet = quiet_file_info(Opened(5))
    assert _sent(pyfuse3.FileInfo(fh=6, keep_cache=True)) == (_KEEP_CACHE, 6)
    del quiet
    gc.collect()
    assert _sent(quiet_file_info(Opened(7))) == (_NO_FLUSH, 7)


@pytest.mark.parametrize(
    "name", ["_TABLE_AT", "_HANDLE_AT", "_HANDLE_OUT_AT", "_KEEP_CACHE", "_OBJECT_BYTES"]
)
def test_an_object_that_is_laid_out_otherwise_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol_open, name, getattr(protocol_open, name) + 8)
    assert quiet_table() is None


def test_where_it_cannot_be_said_closes_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_open, "_table", lambda: None)
    assert _sent(quiet_file_info(Opened(5, keep_cache=True))) == (_KEEP_CACHE, 5)
