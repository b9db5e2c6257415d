"""The memory that requests are read into, and what becomes of a session whose INIT cannot be answered."""

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

from sidecar.daemon_session import FuseSession, keep_buffers_in_memory, make_buffer_resident
from sidecar.poll_runtime import PollRuntime
from sidecar.protocol import FilesystemOperations, ProtocolSettings
from sidecar.takeover.memory import Memory
from tests.host.mount_node import ROOT

_BUFFER_BYTES = (1 << 20) + (1 << 12)  # what libfuse asks malloc for
_PRESENT = 1 << 63


def present_pages(address: int, length: int) -> list[bool]:
    """Return of each page of a range whether it is in this process's memory. Source: pagemap in the kernel's documentation."""
    page = os.sysconf("SC_PAGESIZE")
    first, last = address // page, (address + length - 1) // page
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(first * 8)
        entries = file.read((last - first + 1) * 8)
    return [bool(entry & _PRESENT) for (entry,) in struct.iter_unpack("<Q", entries)]


def report(*, prepared: bool) -> None:
    """Print how many pages of eight buffers are present, each prepared just before it is made."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = (ctypes.c_size_t,)
    keep_buffers_in_memory()
    absent = 0
    for _ in range(8):
        if prepared:
            make_buffer_resident()
        absent += present_pages(libc.malloc(_BUFFER_BYTES), _BUFFER_BYTES).count(False)
    print(absent)


def absent_pages(*, prepared: bool) -> int:
    """Return what `report` prints in a process of its own, whose heap nobody has used yet."""
    script = f"from tests.sidecar.test_daemon_session import report; report(prepared={prepared})"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_every_page_of_a_buffer_is_present_before_anything_is_read_into_it() -> None:
    """A process killed while the kernel copies into a page that is not there makes the kernel answer EIO."""
    assert absent_pages(prepared=True) == 0
    assert absent_pages(prepared=False) > 8 * 200, "the test could not fail"


def serve_a_device_that_takes_nothing() -> None:
    """Print what came of a session on /dev/full: what was wrong, and how often anybody was told that it is served."""
    init = struct.pack("<IIQQIIIHH", 104, 26, 2, 0, 0, 0, 0, 0, 0)
    init += struct.pack("<IIIII44x", 7, 45, 1 << 17, 0x73FFFFFB, 0x5FD)
    operations = FilesystemOperations(_Nothing(), ProtocolSettings())  # type: ignore[arg-type]  # nobody calls it
    served: list[bool] = []
    device = os.open("/dev/full", os.O_RDWR)
    session = FuseSession(operations, operations, device, init, lambda: served.append(True))
    with contextlib.suppress(OSError):  # there is nothing more to be read
        PollRuntime().run(session.main)  # type: ignore[arg-type]  # an awaitable of pyfuse3's
    print(type(session.init_error).__name__, len(served))


class _Nothing:
    """A filesystem that is never reached."""

    def __init__(self) -> None:
        self.memory = Memory()


def test_session_ends_whose_answer_to_init_the_kernel_does_not_take() -> None:
    script = (
        "from tests.sidecar.test_daemon_session import serve_a_device_that_takes_nothing as serve; serve()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["OSError", "0"]
