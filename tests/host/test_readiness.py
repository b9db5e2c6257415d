"""Waiting for a descriptor."""

import fcntl
import os
import resource
import time
from collections.abc import Iterator

import pytest

from sidemount.host.readiness import wait_readable

BEYOND_SELECT = 2000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose end to read has a number that select(2) does not know."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, BEYOND_SELECT + 1), hard))
    low, writer = os.pipe()
    reader = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, BEYOND_SELECT)
    os.close(low)
    yield reader, writer
    os.close(reader)
    os.close(writer)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_can_be_read_is_told_at_once(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"x")
    assert wait_readable(reader, 0)
    assert wait_readable(reader)


def test_time_that_is_up_is_told(pipe: tuple[int, int]) -> None:
    began = time.monotonic()
    assert not wait_readable(pipe[0], 0.05)
    assert time.monotonic() - began >= 0.05
    assert not wait_readable(pipe[0], -1)
