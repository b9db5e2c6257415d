"""The daemon's entry: how it comes to serve, how it ends, and what its exit code says."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyfuse3
import pytest
import trio

from sidecar.daemon_client import Redactor, client_argv
from sidecar.daemon_link import KeeperLink, Order, obtain_order
from sidecar.daemon_session import WORKERS_MAX
from sidecar.daemon_work import CountedOperations, Work
from sidemount.host import handover, logs, wire
from sidemount.host.handover import Heartbeat, Hello, Message, Ready, Refusal, Refused, Serve, Stop, Stopping
from sidemount.model.errors import BadMessage, HostFailure
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod, make_pod, node
from tests.host.keeper_pod import PYTHON, directory_spec, is_running, view, wait_stopped
from tests.host.mount_node import MountNode, eventually

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
    time.sleep(0.7)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(5) == 0


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
    pod.daemons["train"].send_signal(signal.SIGTERM)
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    assert [(pod.source("train") / f"f{n}").stat().st_size for n in range(3)] == [400 << 16] * 3
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
    eventually(lambda: any(m.mount_point == str(pod.source("train")) for m in node.mounts()))
    pod.start_keeper()
    pod.start_daemon("train", "--flush-seconds", "1")
    pod.wait_ready()
    wait_stopped(server.pid)
    reader = node.start(["cat", pod.place("train") / "file"])
    time.sleep(0.5)
    began = time.monotonic()
    assert pod.end() == 0
    assert pod.daemons["train"].wait(20) == 4
    assert time.monotonic() - began < 12
    assert "flush_late" in pod.names(pod.daemon_log("train"))
    os.kill(server.pid, signal.SIGCONT)
    reader.wait(10)


@pytest.mark.fuse
@pytest.mark.root
def test_a_daemon_needs_little_memory(make_pod: MakePod) -> None:
    """At most 40 MiB when it is idle."""
    pod = make_pod().start()
    rollup = Path(f"/proc/{pod.daemons['train'].pid}/smaps_rollup").read_text()
    pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert pss < 40 * 1024
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_daemon_whose_successor_shall_continue_has_its_buffers_in_memory(make_pod: MakePod) -> None:
    """A process killed while a request is copied to a page that is not there makes the kernel answer EIO."""
    pod = make_pod(KeeperMount(spec=directory_spec(takeover=True), views=(view("train"),))).start()
    status = Path(f"/proc/{pod.daemons['train'].pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    assert resident > WORKERS_MAX << 10
    (pod.seen("train") / "big").write_bytes(os.urandom(8 << 20))
    assert (pod.seen("train") / "big").read_bytes() == (pod.source("train") / "big").read_bytes()
    assert pod.end() == 0


@pytest.mark.fuse
@pytest.mark.root
def test_a_daemon_cannot_be_looked_into_by_its_own_user(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(uid=65532), views=(view("train"),)))
    os.chown(pod.source("train"), 65532, 65532)
    pod.start()
    pid = pod.daemons["train"].pid
    script = (
        "import sys; from sidemount.host.pidfd import pidfd_open, pidfd_getfd\n"
        "for fd in range(64):\n"
        "    try: pidfd_getfd(pidfd_open(int(sys.argv[1])), fd); sys.exit(5)\n"
        "    except Exception as e: assert 'EPERM' in str(e), e"
    )
    assert pod.node.start([PYTHON, "-c", script, str(pid)], uid=65532).wait(10) == 0
    for path in ("mem", "environ", "maps"):
        assert pod.node.start(["cat", f"/proc/{pid}/{path}"], uid=65532).wait(5) != 0
    assert pod.end() == 0


# The line to the keeper ----------------------------------------------------------------------------------


class FakeKeeper:
    """Listens like a keeper and does what a test says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.listener = wire.listen(str(directory), uid=os.geteuid())
        self.listener.setblocking(True)
        self.listener.settimeout(10)

    def accept(self) -> socket.socket:
        """Take the next daemon."""
        connection, _ = self.listener.accept()
        connection.settimeout(10)
        return connection

    def close(self) -> None:
        """Be gone."""
        self.listener.close()


def hear(connection: socket.socket) -> tuple[Message, int | None]:
    """Return the next message and its descriptor."""
    frame = wire.receive(connection)
    assert frame is not None
    message = handover.decode(frame.kind, frame.body)
    return message, None if frame.descriptor is None else frame.take_descriptor()


def say(connection: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Send a message."""
    wire.send(connection, *handover.encode(message), descriptor)


def order_of(connection: socket.socket, *, beat_ms: int = 50) -> Order:
    """Return an order for a descriptor that stands for /dev/fuse."""
    serve = Serve(spec=directory_spec(), generation=3, continued=False, init=b"INIT", heartbeat_ms=beat_ms)
    return Order(serve, -1, connection)


def obtained(directory: Path, pauses: int = 100) -> Order | None:
    """Ask for work, and be told to end after so many pauses."""
    left = iter(range(pauses))

    def pause(delay_s: float) -> bool:
        time.sleep(min(delay_s, 0.02))
        return next(left, None) is None

    return obtain_order(str(directory), takeover=False, log=LOG, pause=pause)


def test_work_is_asked_for_until_there_is_some(tmp_path: Path) -> None:
    keeper = FakeKeeper(tmp_path)

    def behave() -> None:
        keeper.accept().close()
        with keeper.accept() as busy:
            assert hear(busy)[0] == Hello(takeover=False)
            say(busy, Refused(reason=Refusal.BUSY, detail="not yet"))
        with keeper.accept() as good, open("/dev/null") as null:
            hear(good)
            serve = Serve(spec=directory_spec(), generation=1, continued=False, init=b"", heartbeat_ms=1)
            say(good, serve, null.fileno())

    thread = threading.Thread(target=behave)
    thread.start()
    order = obtained(tmp_path)
    thread.join(10)
    keeper.close()
    assert order is not None
    assert order.serve.generation == 1
    assert not os.get_inheritable(order.device)
    os.close(order.device)
    order.connection.close()


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        pytest.param(
            Refused(reason=Refusal.IDENTITY, detail="uid 7"), HostFailure, "refuses us", id="identity"
        ),
        pytest.param(Refused(reason=Refusal.PROTOCOL, detail="v2"), HostFailure, "refuses us", id="protocol"),
        pytest.param(Stop(), BadMessage, "answers Stop", id="nonsense"),
    ],
)
def test_what_will_never_change_is_an_error(
    tmp_path: Path, answer: Message, error: type[Exception], says: str
) -> None:
    keeper = FakeKeeper(tmp_path)

    def behave() -> None:
        with keeper.accept() as connection:
            hear(connection)
            say(connection, answer)

    thread = threading.Thread(target=behave)
    thread.start()
    with pytest.raises(error, match=says):
        obtained(tmp_path)
    thread.join(10)
    keeper.close()


def test_a_daemon_told_to_end_stops_asking(tmp_path: Path) -> None:
    assert obtained(tmp_path, pauses=3) is None


class Line:
    """A link between a fake keeper and a daemon that serves nothing."""

    def __init__(self, directory: Path) -> None:
        self.keeper = FakeKeeper(directory)
        dialled = wire.dial(str(directory), timeout_s=5)
        self.connection = self.keeper.accept()
        self.work = Work()
        self.stopped = threading.Event()
        self.is_over = False
        self.link = KeeperLink(
            str(directory),
            order_of(dialled),
            self.work,
            takeover=False,
            log=LOG,
            stop=self.stopped.set,
            is_over=lambda: self.is_over,
        )
        self.null = os.open("/dev/null", os.O_RDONLY)
        self.link.start(self.null)

    def hear_until(self, kind: type[Message]) -> Message:
        """Return the next message of a kind."""
        while not isinstance(message := hear(self.connection)[0], kind):
            assert isinstance(message, Ready | Heartbeat)
        return message

    def close(self) -> None:
        """End both."""
        self.link.say_bye(clean=True, timeout_s=5)
        self.connection.close()
        self.keeper.close()
        os.close(self.null)


@pytest.fixture
def line(tmp_path: Path) -> Any:
    """A line."""
    line = Line(tmp_path)
    yield line
    line.close()


def test_a_daemon_says_that_it_is_ready_and_then_how_much_it_has_done(line: Line) -> None:
    assert hear(line.connection)[0] == Ready(generation=3)
    line.work.handled, line.work.in_progress = 17, 2
    eventually(lambda: hear(line.connection)[0] == Heartbeat(handled=17, in_progress=2))


def test_the_keeper_lets_the_daemon_end(line: Line) -> None:
    say(line.connection, Stop())
    assert line.stopped.wait(5)


def test_a_mount_that_is_gone_ends_the_daemon(line: Line) -> None:
    line.is_over = True
    assert line.stopped.wait(5)


def test_a_daemon_that_was_told_to_end_says_so_once(line: Line) -> None:
    line.link.announce_stopping()
    line.hear_until(Stopping)
    for _ in range(3):
        assert isinstance(hear(line.connection)[0], Heartbeat)


def test_the_descriptor_is_handed_to_every_new_keeper(line: Line) -> None:
    for _ in range(3):
        line.connection.close()
        line.connection = line.keeper.accept()
        hello, descriptor = hear(line.connection)
        assert hello == Hello(takeover=False, hands_back=True, generation=3, init=b"INIT")
        assert descriptor is not None
        assert os.fstat(descriptor).st_rdev == os.fstat(line.null).st_rdev
        os.close(descriptor)
    assert not line.stopped.is_set()


@pytest.mark.parametrize("reason", [Refusal.BUSY, Refusal.STALE, Refusal.STOPPING])
def test_a_daemon_that_serves_is_not_stopped_by_a_refusal(line: Line, reason: Refusal) -> None:
    for _ in range(3):
        say(line.connection, Refused(reason=reason, detail="no"))
        line.connection.close()
        line.connection = line.keeper.accept()
    assert not line.stopped.is_set()


def test_junk_from_a_keeper_is_answered_with_a_new_introduction(line: Line) -> None:
    line.connection.send(b"junk")
    line.connection.close()
    line.connection = line.keeper.accept()
    assert isinstance(hear(line.connection)[0], Hello)


def test_being_told_to_end_is_told_to_the_next_keeper_too(line: Line) -> None:
    line.link.announce_stopping()
    line.hear_until(Stopping)
    line.connection.close()
    line.connection = line.keeper.accept()
    hear(line.connection)
    line.hear_until(Stopping)


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


def test_secrets_that_are_renewed_are_taken_out_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redact = Redactor(str(tmp_path))
    (tmp_path / "key").write_text("first-one")
    assert redact("first-one second-one") == "*** second-one"
    (tmp_path / "key").write_text("second-one")
    monkeypatch.setattr("sidecar.daemon_client._SECRETS_FRESH_S", 0.0)
    assert redact("first-one second-one") == "first-one ***"


def test_no_secrets_directory_is_no_fault(tmp_path: Path) -> None:
    assert Redactor(str(tmp_path / "missing"))("text") == "text"


def test_only_the_mount_point_is_put_into_a_clients_command() -> None:
    command = ("client", "${source}", "--at=${mountpoint}", "${mountpoint}")
    assert client_argv(command, "/dev/fd/9") == ("client", "${source}", "--at=/dev/fd/9", "/dev/fd/9")
