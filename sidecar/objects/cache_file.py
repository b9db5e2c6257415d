"""One block in a file of the cache volume: what it is of, its size, a checksum, the content.

A file is written under another name and renamed, so a kill leaves a whole one or none; the checksum is for what a crash of the
machine or a bad disk leaves. What it is of is in the file as well: a name alone proves nothing.
"""

import binascii
import contextlib
import errno
import hashlib
import os
import struct

from sidecar.objects.blocks import BlockKey

_HEADER = struct.Struct("<8s32sQIxxxx")  # what this is, of what, size of the content, its checksum
_MAGIC = b"SMblock1"
_UNIT_BYTES = 4096  # what filesystems give files room in

HEADER_BYTES = _HEADER.size


def identity(key: BlockKey, block_bytes: int) -> bytes:
    """Return what no other block of any object or version has."""
    path, version, number = key
    text = f"{number}/{block_bytes}/{len(path)}/{path}{version}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def room_of(size: int) -> int:
    """Return how much room of the volume a block of that size takes."""
    return -(-(size + HEADER_BYTES) // _UNIT_BYTES) * _UNIT_BYTES


def write_block(temporary: str, name: str, of: bytes, content: memoryview) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600)
    try:
        try:
            header = _HEADER.pack(_MAGIC, of, len(content), binascii.crc32(content))
            written = os.writev(fd, [header, content]) - HEADER_BYTES
            while written < len(content):
                if written < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                written += os.pwrite(fd, content[written:], HEADER_BYTES + written)
        finally:
            os.close(fd)
        os.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_block(name: str, of: bytes, content: memoryview) -> bool:
    """Read a whole block. False: the file is not what it should be. Raises OSError."""
    header = bytearray(HEADER_BYTES)
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        got = os.preadv(fd, [header, content], 0)
        os.utime(fd)  # a successor gives up first what was last used before all others
        while HEADER_BYTES <= got < HEADER_BYTES + len(content):
            more = os.preadv(fd, [content[got - HEADER_BYTES :]], got)
            if not more:
                break
            got += more
    finally:
        os.close(fd)
    if got != HEADER_BYTES + len(content):
        return False
    magic, found_of, size, checksum = _HEADER.unpack(header)
    return (magic, found_of, size) == (_MAGIC, of, len(content)) and checksum == binascii.crc32(content)


def read_part(name: str, of: bytes, offset: int, content: memoryview) -> bool:
    """Read a part of a block whose checksum has been found right before. False: the file is not what it should be. Raises OSError."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.pread(fd, len(_MAGIC) + len(of), 0) != _MAGIC + of:
            return False
        return os.preadv(fd, [content], HEADER_BYTES + offset) == len(content)
    finally:
        os.close(fd)
