"""What the daemon's first process does when it cannot begin what it is told."""

import errno
import os
import threading
from pathlib import Path

import pytest

from sidecar import daemon_supervisor
from sidecar.daemon_settings import DaemonSettings, Order
from sidecar.daemon_supervisor import Supervisor
from sidecar.zygote_parts import ZygoteParts
from sidemount.host import logs
from sidemount.host.handover import Hello, Serve, Stop
from sidemount.model.errors import HostFailure
from tests.host.keeper_pod import directory_spec
from tests.sidecar.fake_keeper import FakeKeeper


def _settings(directory: Path) -> DaemonSettings:
    place = str(directory)
    return DaemonSettings(
        run_dir=place,
        source=place,
        secrets=place,
        cache=place,
        mounts_dir=place,
        runtime="poll",
        spares=1,
        resend=True,
        stop_s=1.0,
        flush_s=1.0,
    )


def test_a_start_that_fails_for_want_of_descriptors_ends_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet starts it again. One that lived on and had begun nothing would keep everybody waiting for ever."""

    def refuse(_: ZygoteParts, filesystem: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(ZygoteParts, "load", refuse)
    supervisor = Supervisor(_settings(tmp_path), logs.log("test"))
    device = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    serve = Serve(spec=directory_spec(), generation=1, continued=False, init=b"", heartbeat_ms=1000, kept=0)
    supervisor._begin(Order(serve, device))
    supervisor._loop.close()
    assert isinstance(supervisor._failure, HostFailure)
    assert supervisor._failure.errno == errno.EMFILE
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(device)


def test_whoever_serves_nothing_any_more_ends_with_its_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, not with the next beat: an unpublish waits for it."""
    monkeypatch.setattr(daemon_supervisor, "_BEAT_S", 3600.0)
    keeper = FakeKeeper(tmp_path)

    def let_go() -> None:
        line = keeper.accept()
        line.hear_until(Hello)
        line.say(Stop())
        keeper.close()

    other = threading.Thread(target=let_go)
    other.start()
    try:
        assert Supervisor(_settings(tmp_path), logs.log("test")).run() == 0
    finally:
        other.join()
