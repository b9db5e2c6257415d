"""What the store tells about a file: attributes, and an identity that no other file ever has."""

import os
import stat
import struct
import time
from typing import NamedTuple

from sidecar.protocol_filesystem import Attributes

# struct statx of <linux/stat.h> up to stx_dev_minor.
_STATX = struct.Struct("=IIQIIIH2xQQQQqI4xqI4xqI4xqI4xIIQ")
_STATX_BTIME = 0x800
_NANOS = 1_000_000_000
_SETTLED_NS = 1_000_000_000
_MASK_64 = (1 << 64) - 1
_KIND_SHIFT = 64
_BIRTH_SHIFT = 68
_DEVICE_SHIFT = 132
_GOLDEN = 0x9E3779B97F4A7C15  # spreads device numbers over 64 bits

DIRECTORY = stat.S_IFDIR >> 12
REGULAR = stat.S_IFREG >> 12


class Found(NamedTuple):
    """A file of the store.

    `identity` packs device (0: the root's), time of birth, kind and inode number into one integer. An inode number is used again as
    soon as a file is gone; the time of birth tells the two apart where the store keeps one.
    """

    identity: int
    attributes: Attributes

    @property
    def links(self) -> int:
        """How many names it can have: a directory has one, whatever its link count says."""
        return 1 if kind_of(self.identity) == DIRECTORY else max(self.attributes.nlink, 1)


def parse_statx(content: bytes, root_device: int, with_birth: bool) -> Found:
    """Return what struct statx says. Files of other devices than the root's get inode numbers that do not collide with its."""
    (
        mask,
        blksize,
        _,
        nlink,
        uid,
        gid,
        mode,
        ino,
        size,
        blocks,
        _,
        atime,
        atime_nsec,
        btime,
        btime_nsec,
        ctime,
        ctime_nsec,
        mtime,
        mtime_nsec,
        rdev_major,
        rdev_minor,
        device,
    ) = _STATX.unpack_from(content)
    identity = ino | (mode >> 12) << _KIND_SHIFT
    if with_birth and mask & _STATX_BTIME:
        identity |= ((btime * _NANOS + btime_nsec) & _MASK_64) << _BIRTH_SHIFT
    if device != root_device:
        identity |= device << _DEVICE_SHIFT
        ino = (ino + device * _GOLDEN) & _MASK_64 or 1
    return Found(
        identity,
        Attributes(
            ino,
            mode,
            nlink,
            uid,
            gid,
            os.makedev(rdev_major, rdev_minor) if rdev_major or rdev_minor else 0,
            size,
            blksize,
            blocks,
            atime * _NANOS + atime_nsec,
            mtime * _NANOS + mtime_nsec,
            ctime * _NANOS + ctime_nsec,
        ),
    )


def is_settled(found: Found) -> bool:
    """Tell whether the change time cannot hide a second change: it is no more within a tick, or a clock's error, of now."""
    return time.time_ns() - found.attributes.ctime_ns > _SETTLED_NS


def device_of(content: bytes) -> int:
    """Return the device in a struct statx: both numbers as one integer."""
    device: int = _STATX.unpack_from(content)[-1]
    return device


def kind_of(identity: int) -> int:
    """Return the file type bits (`mode >> 12`) of an identity."""
    return identity >> _KIND_SHIFT & 0xF


def birth_ns_of(identity: int) -> int:
    """Return the time of birth in an identity, 0 if the store keeps none."""
    return identity >> _BIRTH_SHIFT & _MASK_64
