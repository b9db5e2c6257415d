"""Whether the caller's umask counts for a new file."""

import errno
from typing import Any

import pytest

from sidecar.protocol_filesystem import OperationAbsent
from sidecar.protocol_umask import without_umask
from tests.sidecar.directory.core import run

DEFAULT_ACL = b"\x02\0\0\0"


class Asked:
    """A filesystem of one directory."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[int, bytes]] = []

    async def getxattr(self, node: int, name: bytes) -> bytes:
        """Return the directory's default ACL, or fail."""
        self.asked.append((node, name))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def mode(filesystem: Any, mode: int, umask: int, *, acl: bool = True) -> int:
    """Return what is left of a mode."""
    return run(without_umask(filesystem, 7, mode, umask, acl=acl))


def test_default_acl_takes_the_umasks_place() -> None:
    assert mode(Asked(DEFAULT_ACL), 0o6777, 0o077) == 0o6777
    assert mode(Asked(DEFAULT_ACL), 0o6777, 0o077, acl=False) == 0o6700


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(OSError(errno.ENODATA, "none"), id="none"),
        pytest.param(b"", id="empty"),
        pytest.param(OSError(errno.EIO, "broken"), id="unknown"),
        pytest.param(OperationAbsent(), id="no extended attributes"),
    ],
)
def test_umask_counts_where_no_default_acl_is_known(answer: bytes | Exception) -> None:
    filesystem = Asked(answer)
    assert mode(filesystem, 0o1777, 0o027) == 0o1750
    assert filesystem.asked == [(7, b"system.posix_acl_default")]


def test_nothing_is_asked_where_the_umask_takes_nothing() -> None:
    filesystem = Asked(DEFAULT_ACL)
    assert mode(filesystem, 0o640, 0o027) == 0o640
    assert mode(filesystem, 0o777, 0) == 0o777
    assert filesystem.asked == []
