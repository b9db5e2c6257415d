"""A keeper's socket under attack: whoever knocks, the volume goes on."""

import multiprocessing
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sidecar.probe import ask
from sidemount.host import handover, wire
from sidemount.host.handover import Hello, Keep, Message, Refusal, Refused, Successor
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import PYTHON, Pod, directory_spec, is_running, view
from tests.host.mount_node import eventually

pytestmark = [pytest.mark.fuse, pytest.mark.root]
OTHER = 65532


IMPOSTOR = """
import sys, time
from sidemount.host import handover, wire
with wire.dial(sys.argv[1], timeout_s=5) as connection:
    wire.send(connection, *handover.encode(handover.Hello(takeover=False)))
    frame = wire.receive(connection)
    assert frame.kind is wire.Kind.SERVE, frame.body
    print("served", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def pod(make_pod: MakePod) -> Pod:
    """A pod that serves, its daemon being root."""
    pod = make_pod()
    (pod.source("train") / "file").write_text("content")
    return pod.start()


@contextmanager
def knock(pod: Pod, volume: str = "train") -> Iterator[socket.socket]:
    """Connect to the keeper as root."""
    with wire.dial(str(pod.run_dir / volume), timeout_s=5) as connection:
        yield connection


def say(connection: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Send a message."""
    wire.send(connection, *handover.encode(message), descriptor)


def answer(connection: socket.socket) -> Message | None:
    """Return what the keeper says, None if it closes the connection."""
    frame = wire.receive(connection)
    return None if frame is None else handover.decode(frame.kind, frame.body)


def still_serves(pod: Pod) -> bool:
    """Tell whether keeper, daemon and volume are what they were."""
    assert is_running(pod.keeper), pod.log_text()
    assert is_running(pod.daemons["train"]), pod.log_text()
    assert (pod.seen("train") / "file").read_text() == "content"
    assert pod.layers("train") == 1
    return pod.probe() == "ready"


def test_a_second_daemon_is_refused_and_the_first_serves_on(pod: Pod) -> None:
    with knock(pod) as connection:
        say(connection, Hello(takeover=False))
        refused = answer(connection)
        assert isinstance(refused, Refused)
        assert refused.reason is Refusal.BUSY
        assert answer(connection) is None
    second = pod.node.start(
        [
            "python3",
            "-c",
            "import time; time.sleep(0)",
        ]  # a container that ends at once changes nothing either
    )
    second.wait(20)
    assert still_serves(pod)


def test_a_descriptor_of_something_else_is_refused(pod: Pod) -> None:
    pod.keeper.kill()
    pod.keeper.wait(20)
    os.kill(pod.daemons["train"].pid, signal.SIGSTOP)  # keeps the real one away
    pod.start_keeper()
    eventually(lambda: "own_mount_found" in pod.names())
    hello = Hello(takeover=False, hands_back=True, generation=1, init=b"\0" * 104)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)  # connected to nothing
    try:
        for descriptor in (0, device):
            with knock(pod) as connection:
                say(connection, hello, descriptor)
                refused = answer(connection)
                assert isinstance(refused, Refused)
                assert refused.reason is Refusal.STALE
    finally:
        os.close(device)
    os.kill(pod.daemons["train"].pid, signal.SIGCONT)
    pod.wait_ready()
    assert still_serves(pod)


def test_another_users_processes_cannot_connect(pod: Pod) -> None:
    """The directory is the daemon's alone; and where it can be reached, the kernel's credentials decide."""
    script = (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect({str(pod.run_dir / 'train' / 'keeper.sock')!r})"
    )
    stranger = pod.node.start([PYTHON, "-c", script], uid=OTHER)
    assert stranger.wait(20) != 0
    for path in (pod.run_dir, pod.run_dir / "train"):
        path.chmod(0o777)
    (pod.run_dir / "train" / "keeper.sock").chmod(0o666)
    log = pod.node.work / "stranger.txt"
    stranger = pod.node.start([PYTHON, "-c", f"{script}; print(s.recv(4096))"], uid=OTHER, log=log)
    assert stranger.wait(20) == 0
    assert "uid 65532 does not serve this volume" in log.read_text()
    assert "stranger_refused" in pod.names()
    assert still_serves(pod)


def test_root_may_probe_but_not_serve_for_another_user(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(uid=OTHER), views=(view("train"),)))
    pod.start_keeper()
    eventually(lambda: pod.probe() == "not ready: its daemon has not connected yet")
    with knock(pod) as connection:
        say(connection, Hello(takeover=False))
        refused = answer(connection)
    assert isinstance(refused, Refused)
    assert refused.reason is Refusal.IDENTITY
    assert pod.end() == 0


HEADER = struct.Struct("!4sHHI")


def header(*, version: int = 1, kind: int = 1, body: bytes = b"{}") -> bytes:
    """Return a whole frame."""
    return HEADER.pack(b"SMNT", version, kind, len(body)) + body


JUNK = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a byte": b"\0",
    "version 99": header(version=99),
    "unknown kind": header(kind=77),
    "deep JSON": header(body=b"[" * 1000),
    "wrong type": header(body=b'{"takeover":1}'),
    "ready from a stranger": header(kind=3, body=b'{"generation":1}'),
    "bye from a stranger": header(kind=7, body=b'{"clean":true}'),
    "serve from a peer": header(kind=2, body=b"{}"),
    "noise": os.urandom(4096),
    "oversized": header(body=b"x" * (1 << 16)),
}


def test_junk_ends_only_its_own_connection(pod: Pod) -> None:
    for what, junk in JUNK.items():
        for with_descriptor in (False, True):
            with knock(pod) as connection, open("/dev/null") as null:
                socket.send_fds(connection, [junk], [null.fileno()] if with_descriptor else [])
                refused = answer(connection)
                assert isinstance(refused, Refused), what
                assert refused.reason is Refusal.PROTOCOL, what
                assert answer(connection) is None, what
        assert still_serves(pod)


def test_a_hello_with_a_descriptor_it_must_not_have_is_refused(pod: Pod) -> None:
    for hello, descriptor in (
        (Hello(takeover=False), 0),
        (Hello(takeover=False, hands_back=True, generation=1), None),
        (Hello(takeover=False, hands_back=True, generation=0), 0),
    ):
        with knock(pod) as connection:
            say(connection, hello, descriptor)
            refused = answer(connection)
            assert isinstance(refused, Refused)
            assert refused.reason is Refusal.PROTOCOL
    assert still_serves(pod)


def test_descriptors_sent_to_the_keeper_do_not_pile_up(pod: Pod) -> None:
    held = Path(f"/proc/{pod.keeper.pid}/fd")
    before = len(list(held.iterdir()))
    for _ in range(50):
        with knock(pod) as connection, open("/dev/null") as null:
            socket.send_fds(connection, [header(body=b"{")], [null.fileno()] * 10)
            answer(connection)
    eventually(lambda: len(list(held.iterdir())) <= before)
    assert still_serves(pod)


def test_silent_peers_are_let_go(pod: Pod) -> None:
    quiet = [wire.dial(str(pod.run_dir / "train"), timeout_s=5) for _ in range(40)]
    try:
        assert still_serves(pod)
        for connection in quiet:
            connection.settimeout(10)
            assert connection.recv(10) == b""
    finally:
        for connection in quiet:
            connection.close()
    assert still_serves(pod)


def test_half_a_hello_is_no_hello(make_pod: MakePod) -> None:
    """A slow sender: a datagram is whole or not there, so a part of one is a bad frame."""
    pod = make_pod()
    pod.start_keeper()
    eventually(lambda: pod.probe().startswith("not ready: its daemon"))
    kind, body = handover.encode(Hello(takeover=False))
    whole = header(kind=kind, body=body)
    with knock(pod) as connection:
        connection.send(whole[:20])
        refused = answer(connection)
        assert isinstance(refused, Refused)
    pod.start_daemon()
    pod.wait_ready()
    assert pod.end() == 0


def test_a_daemon_that_takes_the_descriptor_and_dies_is_succeeded(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.start_keeper()
    eventually(lambda: pod.probe().startswith("not ready: its daemon"))
    for number in range(3):
        log = pod.node.work / f"impostor{number}.txt"
        impostor = pod.node.start([PYTHON, "-c", IMPOSTOR, pod.run_dir / "train"], log=log)
        eventually(lambda log=log: log.read_text() == "served\n", what="the impostor is served")  # type: ignore[misc]
        impostor.kill()
        impostor.wait(20)
        eventually(lambda: pod.probe().startswith("not ready: its daemon has not"))
    pod.start_daemon()
    pod.wait_ready()
    assert pod.layers("train") == 1
    assert pod.end() == 0


def test_a_daemon_that_never_answers_is_replaced(make_pod: MakePod) -> None:
    pod = make_pod(flags=("--start-seconds", "3"))
    pod.start_keeper()
    eventually(lambda: pod.probe().startswith("not ready: its daemon"))
    log = pod.node.work / "impostor.txt"
    impostor = pod.node.start([PYTHON, "-c", IMPOSTOR, pod.run_dir / "train"], log=log)
    assert impostor.wait(30) == -signal.SIGKILL
    assert log.read_text() == "served\n"
    pod.start_daemon()
    pod.wait_ready()
    assert pod.layers("train") == 1
    assert pod.end() == 0


def test_junk_from_the_daemon_that_serves_costs_it_nothing(make_pod: MakePod) -> None:
    pod = make_pod(flags=("--flush-seconds", "1"))
    pod.start_keeper()
    eventually(lambda: pod.probe().startswith("not ready: its daemon"))
    with knock(pod) as connection:
        say(connection, Hello(takeover=False))
        frame = wire.receive(connection)
        assert frame is not None
        connection.send(b"junk")
        say(connection, Hello(takeover=False))  # not now
        eventually(lambda: pod.names().count("bad_frame") == 2, what="both are noted")
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        frame.close()
    assert pod.end() == 0


def test_a_descriptor_of_no_process_is_no_successor(make_pod: MakePod) -> None:
    """Polling a file asks whoever serves it; and what cannot be polled would end the keeper."""
    pod = make_pod(flags=("--flush-seconds", "1"))
    pod.start_keeper()
    eventually(lambda: pod.probe().startswith("not ready: its daemon"))
    process = os.open(
        "/proc/self", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )  # some calls take it for a pidfd
    with knock(pod) as connection, open(pod.node.work / "file", "w") as file:
        say(connection, Hello(takeover=False))
        frame = wire.receive(connection)
        assert frame is not None
        for descriptor in (file.fileno(), process, connection.fileno()):
            say(connection, Successor(generation=1), descriptor)
        os.close(process)
        eventually(lambda: pod.names().count("bad_successor") == 3)
        frame.close()
    assert is_running(pod.keeper), pod.log_text()
    assert pod.end() == 0


def close_quietly(descriptor: int) -> None:
    """Close what may be dead."""
    with suppress(OSError):
        os.close(descriptor)


def test_a_descriptor_whose_file_nobody_serves_holds_the_keeper_up_nowhere(make_pod: MakePod) -> None:
    """Its status would be asked of its filesystem, and even its close: both would wait for ever."""
    mounts = [
        KeeperMount(spec=directory_spec(name, hung_after_s=120), views=(view(name),))
        for name in ("train", "other")
    ]
    pod = make_pod(*mounts, flags=("--flush-seconds", "1"))
    (pod.source("train") / "file").write_text("content")
    pod.start_keeper()
    pod.start_daemon("train")
    pod.wait_ready("train")
    file = os.open(pod.seen("train") / "file", os.O_RDWR | os.O_CLOEXEC)
    pod.stop_daemon("train")
    closing = multiprocessing.get_context("fork").Process(target=close_quietly, args=(file,))
    closing.start()
    hands_back = Hello(takeover=False, hands_back=True, generation=1, init=b"\0" * 104)
    for volume, refusal in (("other", Refusal.STALE), ("train", Refusal.BUSY)):
        with knock(pod, volume) as connection:
            say(connection, hands_back, file)
            refused = answer(connection)
            assert isinstance(refused, Refused)
            assert refused.reason is refusal
    with knock(pod, "other") as connection:
        say(connection, Hello(takeover=False))
        frame = wire.receive(connection)
        assert frame is not None
        for message in (Keep(key=1), Keep(key=1), Successor(generation=1)):
            say(connection, message, file)
        eventually(lambda: pod.names().count("descriptor_not_kept") == 2 and "bad_successor" in pod.names())
        # Not from a process of its own, which would have to close the file first.
        assert ask(str(pod.run_dir / "other")) == "not ready: its daemon is starting"
        frame.close()
    assert closing.is_alive(), "to close it waits for nobody, so nothing is shown"
    pod.kill_daemon("train")
    closing.join(10)
    close_quietly(file)
    assert pod.end() == 0
