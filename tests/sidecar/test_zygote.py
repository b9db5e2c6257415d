"""What the first process of a daemon holds on to, and what it must not."""

import os
from typing import Any

import pytest

from sidecar.daemon_settings import Order
from sidecar.zygote import Zygote
from sidemount.host import logs
from sidemount.host.handover import Serve
from tests.host.keeper_pod import directory_spec


def _zygote(kept: int) -> Zygote:
    """Return one that waits for so many kept descriptors of a connection that it is to continue."""
    serve = Serve(
        spec=directory_spec(takeover=True),
        generation=2,
        continued=True,
        init=b"",
        heartbeat_ms=1000,
        kept=kept,
    )
    nobody: Any = None
    return Zygote(Order(serve, os.open("/dev/null", os.O_RDONLY)), nobody, nobody, logs.log("test"))


def _null() -> int:
    return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def _open_count() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("keys", [[0, 0, 0, 0], [0] * 100, [0, 1, 1, 0]], ids=["same", "many", "both-again"])
def test_a_descriptor_that_comes_twice_is_held_once(keys: list[int]) -> None:
    before = _open_count()
    zygote = _zygote(kept=5)
    for key in keys:
        zygote.take_kept(key, _null())
    assert _open_count() == before + 1 + len(set(keys))
    zygote._let_go()
    assert _open_count() == before


def test_a_descriptor_that_comes_when_all_is_over_is_closed() -> None:
    before = _open_count()
    zygote = _zygote(kept=5)
    zygote._let_go()
    zygote.take_kept(0, _null())
    assert _open_count() == before
