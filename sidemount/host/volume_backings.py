"""The files of a volume that the kernel reads without asking its daemon (FUSE_PASSTHROUGH): registered here, on the daemon's behalf.

Registering takes CAP_SYS_ADMIN, which the keeper has and a daemon has not. What is registered could be written to through the
mount, as the kernel opens it anew for each open and checks nothing; so it is done only where the whole filesystem is read-only. Numbers belong
to the connection: they outlive the daemon and the keeper. Source: <linux/fuse.h>, fs/fuse/backing.c.
"""

import fcntl
import os
import struct
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from sidemount.host.foreign_descriptors import do_aside, is_read_only_file
from sidemount.host.handover import BACKING_MAX, BACKINGS_MAX
from sidemount.model.errors import HostFailure

if TYPE_CHECKING:
    from sidemount.host.volume_state import VolumeState

PASSING_FILESYSTEM = "directory"
_OPEN = 0x4010E501  # FUSE_DEV_IOC_BACKING_OPEN
_CLOSE = 0x4004E502  # FUSE_DEV_IOC_BACKING_CLOSE
_MAP = struct.Struct("=iIQ")  # struct fuse_backing_map: descriptor, flags, padding
_NUMBER = struct.Struct("=I")


class Backings:
    """Of one connection."""

    def __init__(self, state: "VolumeState") -> None:
        self._state = state
        self._numbers: set[int] = set()
        self._is_read_only = False

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def are_offered(self) -> bool:
        """Tell whether the volume is of a kind whose files are registered."""
        spec = self._state.spec
        return spec.read_only and spec.filesystem == PASSING_FILESYSTEM and spec.descriptor

    def settle(self, held: Iterable[int]) -> None:
        """Know what the daemon knows. What else was registered nobody can use: who had asked for it is dead, or did not hear."""
        known = set(held)
        for number in self._numbers - known:
            self._close(number)
        self._numbers = known

    def register(self, descriptor: int) -> int:
        """Return the kernel's number for a file, 0 if it takes none or we do not ask it. The descriptor stays the caller's."""
        connection = self._state.connection
        if connection is None or len(self._numbers) >= BACKINGS_MAX or not self._may_register():
            return 0
        try:
            if not is_read_only_file(descriptor):
                return 0
            number: int = fcntl.ioctl(connection.device, _OPEN, bytearray(_MAP.pack(descriptor, 0, 0)))
        except (HostFailure, OSError):
            return 0  # the kernel's no: not settled in INIT, a stacked filesystem, no capability
        if not 0 < number <= BACKING_MAX:
            self._close(number)
            return 0
        self._numbers.add(number)
        return number

    def unregister(self, number: int) -> None:
        """Have the kernel forget a file. Whoever has it open goes on."""
        if number in self._numbers:
            self._numbers.discard(number)
            self._close(number)

    def clear(self) -> None:
        """Forget all: the connection is over, and its numbers with it."""
        self._numbers.clear()
        self._is_read_only = False

    def _may_register(self) -> bool:
        """Tell whether nobody can write to the filesystem. A mount that was found is believed only what the kernel says of it."""
        state = self._state
        if self._is_read_only or not self.are_offered:
            return self._is_read_only
        if state.connection is not None and state.connection.mount >= 0:
            return True  # made by us, and shown nowhere yet
        found = state.places.find()
        if found is not None and found.minor == state.number:
            self._is_read_only = "ro" in found.super_options
        return self._is_read_only

    def _close(self, number: int) -> None:
        """Have it closed aside: the last close of a file may have to wait for its filesystem."""
        connection = self._state.connection
        if connection is not None:
            device = fcntl.fcntl(connection.device, fcntl.F_DUPFD_CLOEXEC, 0)
            do_aside(partial(_close_backing, device, number))


def _close_backing(device: int, number: int) -> None:
    try:
        fcntl.ioctl(device, _CLOSE, _NUMBER.pack(number))
    finally:
        os.close(device)
