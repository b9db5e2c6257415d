"""How far the kernel reads ahead on a mount, which is also how much it asks for at a time.

FUSE cannot ask for more than the kernel's own 128 KiB (max_readahead of FUSE_INIT only ever lowers it); its device in sysfs can.
Source: https://www.kernel.org/doc/html/latest/admin-guide/abi-testing.html#abi-sys-class-bdi-bdi-read-ahead-kb
"""

import contextlib
import os

_DEVICES = "/sys/class/bdi"


def widen_read_ahead(number: int, kib: int) -> None:
    """Have the kernel read so much ahead on a mount, `number` being the minor of its device. Where sysfs is read-only all stays as it was."""
    with contextlib.suppress(OSError):
        fd = os.open(f"{_DEVICES}/0:{number}/read_ahead_kb", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % kib)
        finally:
            os.close(fd)
