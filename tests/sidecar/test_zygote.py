"""What the first process of a daemon holds on to, and what it must not."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.daemon_settings import Order
from sidecar.takeover.holder import NoHolder
from sidecar.takeover.state import begin_state
from sidecar.zygote import Zygote
from sidecar.zygote_children import Child, fork_child, receive
from sidecar.zygote_service import Service
from sidecar.zygote_spec import remember_spec
from sidecar.zygote_state import make_state_dir, resumable_state
from sidemount.host import logs
from sidemount.host.handover import Condition, Serve
from sidemount.host.loop import Loop
from tests.host.keeper_pod import directory_spec, wait_stopped

# FUSE_INIT of a kernel that can resend: header, version, readahead, flags.
_INIT_WITH_RESEND = struct.pack("<IIQQIIIHH5I", 60, 26, *(0,) * 7, 7, 44, 0, 0, 1 << 7)


def _zygote(kept: int, parts: Any = None, master: Any = None) -> Zygote:
    """Return one that waits for so many kept descriptors of a connection that it is to continue."""
    serve = Serve(
        spec=directory_spec(takeover=True),
        generation=2,
        continued=True,
        init=_INIT_WITH_RESEND,
        heartbeat_ms=1000,
        kept=kept,
    )
    return Zygote(Order(serve, os.open("/dev/null", os.O_RDONLY)), parts, master, logs.log("test"))


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


def test_what_it_continues_holds_until_who_serves_tells_anew(tmp_path: Path, child: Child) -> None:
    """Else a connection would be lost with a daemon that dies while it takes over."""
    directory = make_state_dir(str(tmp_path))
    begin_state(directory, NoHolder()).close()
    remember_spec(directory, directory_spec(takeover=True))
    told: list[Any] = []
    settings = SimpleNamespace(run_dir=str(tmp_path), resend=True, runtime="poll")
    loop = Loop()
    parts: Any = SimpleNamespace(
        load=lambda filesystem: None, settings=settings, loop=loop, take=lambda: child
    )
    master: Any = SimpleNamespace(tell=lambda message, *_, **__: told.append(message))
    zygote = _zygote(0, parts, master)
    zygote.start()
    conditions = [message for message in told if isinstance(message, Condition)]
    assert conditions
    assert {condition.state for condition in conditions} == {resumable_state(str(tmp_path))} != {""}
    zygote._let_go()
    loop.close()


def _listen(control: socket.socket) -> int:
    while receive(control) is not None:
        pass
    return 0


@pytest.fixture
def child() -> Iterator[Child]:
    """A process that does nothing."""
    child = fork_child(_listen)
    yield child
    child.kill()
    os.waitpid(child.pid, 0)
    child.close()


def _killed_as_hung(service: Service) -> bool:
    """Kill a process for its silence, and return whether that speaks against what it works on."""
    zygote = _zygote(kept=0)
    zygote._current = service
    zygote._kill_hung("it was silent")
    zygote._let_go()
    assert service.killed_at is not None
    return service.was_hung


def test_who_hangs_by_itself_is_suspicious(child: Child) -> None:
    assert _killed_as_hung(Service(child, time.monotonic()))


def test_who_was_stopped_by_others_is_not(child: Child) -> None:
    wait_stopped(child.pid)
    assert not _killed_as_hung(Service(child, time.monotonic()))


def test_nor_who_had_little_time_to_hand_over(child: Child) -> None:
    service = Service(child, time.monotonic())
    service.hand_over(0.0)
    assert not _killed_as_hung(service)
