"""The daemon's entry: how it comes to serve, how it ends, and what its exit code says."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyfuse3
import pytest
import trio

from sidecar.daemon_client import Redactor, client_argv
from sidecar.daemon_work import CountedOperations, Work
from sidemount.host import logs
from sidemount.host.fusectl import FuseControl
from sidemount.model.mountinfo import Mount
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod, make_pod, node
from tests.host.keeper_pod import PYTHON, directory_spec, is_running, view, wait_stopped
from tests.host.mount_node import MountNode, eventually
from tests.host.test_keeper_recovery import blocks_sigterm

__all__ = ["make_pod", "node"]  # fixtures of the host's tests

LOG = logs.log("test")


# Serving -------------------------------------------------------------------------------------------------


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.parametrize("runtime", ["trio", "poll"])
def test_either_runtime_serves_dies_and_ends(make_pod: MakePod, runtime: str) -> None:
    pod = make_pod()
    (pod.source("train") / "file").write_bytes(os.urandom(5 << 20))
    pod.start_keeper()
    for generation in (1, 2):
        pod.start_daemon("train", "--runtime", runtime)
        pod.wait_ready()
        assert (pod.seen("train") / "file").read_bytes() == (pod.source("train") / "file").read_bytes()
        (pod.seen("train") / "new").write_bytes(os.urandom(3 << 20))
        assert (pod.seen("train") / "new").read_bytes() == (pod.source("train") / "new").read_bytes()
        if generation == 1:
            pod.kill_daemon()
    pod.daemons["train"].send_signal(signal.SIGTERM)
    assert pod.daemons["train"].wait(10) == 0
    pod.start_daemon("train", "--runtime", runtime)
    pod.wait_ready()
    assert pod.end() == 0
    assert pod.daemons["train"].wait(10) == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_daemon_waits_for_its_keeper(make_pod: MakePod) -> None:
    pod = make_pod()
    (pod.run_dir / "train").mkdir()
    pod.start_daemon()
    time.sleep(1)
    assert is_running(pod.daemons["train"])
    pod.start_keeper()
    pod.wait_ready()
    assert pod.end() == 0


@pytest.mark.root
def test_a_daemon_without_a_keeper_ends_when_told_to(make_pod: MakePod) -> None:
    pod = make_pod()
    daemon = pod.start_daemon()
    eventually(lambda: blocks_sigterm(daemon.pid))  # before that it is no daemon yet
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(20) == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_volume_is_served_where_nothing_can_be_kept_for_a_successor(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(takeover=True), views=(view("train"),)))
    (pod.source("train") / "file").write_text("content")
    pod.start_keeper()
    assert eventually(lambda: (pod.run_dir / "train").is_dir())
    (pod.run_dir / "train" / "state").write_text("in the way")
    pod.start_daemon()
    log = pod.daemon_log("train")
    for generation in (1, 2):
        eventually(lambda count=generation: pod.names(log).count("serving") == count)  # type: ignore[misc]  # a lambda's default
        pod.wait_ready()
        assert (pod.seen("train") / "file").read_text() == "content"
        told = [event for event in pod.events(log) if event["event"] == "state_not_kept"]
        assert len(told) == generation
        assert "Not a directory" in told[-1]["fault"]
        if generation == 1:
            os.kill(pod.serving(), signal.SIGKILL)
    assert "connection_given_up" in pod.names(log)
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"filesystem": "nonsense"}, "filesystem 'nonsense' is not built in", id="unknown filesystem"
        ),
        pytest.param({"options": (("nonsense", 1),)}, "nonsense", id="unknown option"),
        pytest.param({"sub_path": "not/there"}, "not/there", id="missing root"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    make_pod: MakePod, changes: dict[str, Any], says: str
) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(**changes), views=(view("train"),)))
    pod.start_keeper()
    assert pod.start_daemon().wait(20) == 3
    failed = [event for event in pod.events(pod.daemon_log("train")) if event["event"] == "start_failed"]
    assert len(failed) == 1
    assert says in failed[0]["fault"]
    assert "trace" not in failed[0]
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
def test_requests_in_flight_are_answered_before_the_daemon_ends(make_pod: MakePod, node: MountNode) -> None:
    pod = make_pod().start()
    writers = [
        node.start(
            ["dd", "if=/dev/zero", f"of={pod.place('train')}/f{n}", "bs=64k", "count=400", "conv=fsync"]
        )
        for n in range(3)
    ]
    files = [pod.source("train") / f"f{n}" for n in range(3)]
    eventually(lambda: all(file.exists() for file in files), what="all write", every_s=0.001)
    pod.daemons["train"].send_signal(signal.SIGTERM)
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    assert [file.stat().st_size for file in files] == [400 << 16] * 3
    assert pod.daemons["train"].wait(10) == 0
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_store_that_hangs_does_not_keep_the_daemon_for_ever(make_pod: MakePod, node: MountNode) -> None:
    """The source is a FUSE mount of its own whose server is stopped, so every look at it waits."""
    pod = make_pod(flags=("--flush-seconds", "8"))
    backing = node.work / "backing"
    backing.mkdir()
    (backing / "file").write_text("content")
    server = node.start(
        ["bindfs", "-f", "-o", "attr_timeout=0,entry_timeout=0", backing, pod.source("train")]
    )
    (store,) = eventually(lambda: [m for m in node.mounts() if m.mount_point == str(pod.source("train"))])
    pod.start_keeper()
    pod.start_daemon("train", "--flush-seconds", "1")
    pod.wait_ready()
    wait_stopped(server.pid)
    reader = node.start(["cat", pod.place("train") / "file"])
    eventually(lambda: waiting_at(store), what="the daemon waits for its store")
    began = time.monotonic()
    assert pod.end() == 0
    assert pod.daemons["train"].wait(20) == 4
    assert time.monotonic() - began < 12
    # By its own patience, or because the keeper's was over first.
    log = pod.daemon_log("train")
    assert {"flush_late", "process_killed_as_hung"} & set(pod.names(log)), log.read_text()
    os.kill(server.pid, signal.SIGCONT)
    reader.wait(10)


def waiting_at(mount: Mount) -> int:
    """Return how many requests to a FUSE mount have no answer."""
    with contextlib.closing(FuseControl()) as control:
        return control.waiting(mount.minor) or 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_daemon_needs_little_memory(make_pod: MakePod) -> None:
    """At most 40 MiB when it is idle, all its processes together."""
    pod = make_pod().start()
    eventually(lambda: len(pod.processes()) == 4, what="two processes wait")
    assert sum(map(proportional_set_kib, pod.processes())) < 40 * 1024
    assert pod.end() == 0


def proportional_set_kib(pid: int) -> int:
    """Return a process's share of the memory in use."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


@pytest.mark.fuse
@pytest.mark.root
def test_a_daemon_cannot_be_looked_into_by_its_own_user(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(uid=65532), views=(view("train"),)))
    os.chown(pod.source("train"), 65532, 65532)
    pod.start()
    eventually(lambda: len(pod.processes()) == 4, what="two processes wait")
    script = (
        "import sys; from sidemount.host.pidfd import pidfd_open, pidfd_getfd\n"
        "for fd in range(64):\n"
        "    try: pidfd_getfd(pidfd_open(int(sys.argv[1])), fd); sys.exit(5)\n"
        "    except Exception as e: assert 'EPERM' in str(e), e"
    )
    for pid in pod.processes():
        assert pod.node.start([PYTHON, "-c", script, str(pid)], uid=65532).wait(10) == 0
        for path in ("mem", "environ", "maps"):
            assert pod.node.start(["cat", f"/proc/{pid}/{path}"], uid=65532).wait(20) != 0
    assert pod.end() == 0


# Smaller parts -------------------------------------------------------------------------------------------


def test_every_handler_of_pyfuse3_is_counted_and_passed_on() -> None:
    """A handler that is new in pyfuse3 would otherwise be answered with ENOSYS."""
    ours = {"init", "stacktrace", "supports_dot_lookup", "enable_writeback_cache", "enable_acl"}
    names = {name for name in dir(pyfuse3.Operations) if not name.startswith("_")} - ours
    calls: list[tuple[str, tuple[object, ...]]] = []

    def noted(name: str) -> Callable[..., Any]:
        async def handler(*arguments: object) -> str:
            calls.append((name, arguments))
            assert work.in_progress == 1
            return name

        return handler

    inner = pyfuse3.Operations()
    inner.enable_acl = True
    for name in names:
        setattr(inner, name, noted(name))
    work = Work()
    counted = CountedOperations(inner, work)
    assert counted.enable_acl
    for name in sorted(names):
        assert trio.run(getattr(counted, name), 1, 2) == name
    assert calls == [(name, (1, 2)) for name in sorted(names)]
    assert (work.handled, work.in_progress) == (len(names), 0)


def test_a_handler_that_fails_is_counted_and_fails() -> None:
    work = Work()
    counted = CountedOperations(pyfuse3.Operations(), work)
    with pytest.raises(pyfuse3.FUSEError):
        trio.run(counted.statfs, pyfuse3.RequestContext())
    assert (work.handled, work.in_progress) == (1, 0)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("nothing to hide", "nothing to hide"),
        ("PASSWORD: hunter2 ok", "PASSWORD: *** ok"),
        ("secret_access_key=abc/def+1", "secret_access_key=***"),
        ("https://user:pw@host/x", "https://***@host/x"),
        ("the key is AKIA1234 here", "the key is *** here"),
        ("AKIA1234:topsecret", "***:***"),
    ],
)
def test_secrets_are_taken_out(tmp_path: Path, text: str, hidden: str) -> None:
    (tmp_path / "a").write_text("AKIA1234\n")
    (tmp_path / "b").write_text("topsecret")
    (tmp_path / "short").write_text("x")
    assert Redactor(str(tmp_path))(text) == hidden


def test_secrets_that_are_renewed_are_taken_out_too_and_the_old_ones_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client tells of the credential that has just been refused, too; its server may accept it for hours."""
    redact = Redactor(str(tmp_path))
    (tmp_path / "key").write_text("first-one")
    assert redact("first-one second-one") == "*** second-one"
    (tmp_path / "key").write_text("second-one")
    monkeypatch.setattr("sidecar.daemon_client._SECRETS_FRESH_S", 0.0)
    assert redact("first-one second-one") == "*** ***"


def test_no_secrets_directory_is_no_fault(tmp_path: Path) -> None:
    assert Redactor(str(tmp_path / "missing"))("text") == "text"


def test_only_mount_point_and_directory_of_files_are_put_into_a_clients_command() -> None:
    command = ("client", "${source}", "--at=${mountpoint}", "${mountpoint}", "--key=${files}/key")
    assert client_argv(command, "/dev/fd/9", "/run/f") == (
        "client",
        "${source}",
        "--at=/dev/fd/9",
        "/dev/fd/9",
        "--key=/run/f/key",
    )
