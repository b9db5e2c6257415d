"""A daemon's line to its keeper: who calls, what is said, and what becomes of it when the keeper is gone, slow or mad."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.daemon_link import KeeperLink
from sidemount.host import logs
from sidemount.host.handover import (
    Adopted,
    Answer,
    Ask,
    Heartbeat,
    Hello,
    Keep,
    Message,
    Ready,
    Refusal,
    Refused,
    Serve,
    Stop,
    Stopping,
)
from sidemount.host.loop import Loop
from tests.host.keeper_pod import PYTHON, directory_spec
from tests.host.mount_node import ROOT, eventually
from tests.sidecar.fake_keeper import FakeKeeper, Line


class Owner:
    """Has a line, and remembers what comes over it."""

    def __init__(self, directory: Path) -> None:
        self.heard: list[Message] = []
        self.refusals: list[Refused] = []
        self.hello = Hello(takeover=False)
        self.descriptor: int | None = None
        self.loop = Loop()
        self.link = KeeperLink(self.loop, str(directory), self, logs.log("test"))
        self._thread = threading.Thread(target=self._run)
        self._wake, self._waker = socket.socketpair()
        self._todo: list[object] = []

    def introduce(self) -> tuple[Hello, int | None]:
        """Say who we are."""
        return self.hello, self.descriptor

    def on_message(self, message: Message, descriptor: int | None) -> None:
        """Remember a message."""
        if descriptor is not None:
            os.close(descriptor)
        self.heard.append(message)

    def on_refused(self, refused: Refused) -> None:
        """Remember a refusal."""
        self.refusals.append(refused)

    def start(self) -> None:
        """Call the keeper, in a thread."""
        self._thread.start()

    def do(self, what: object) -> None:
        """Have something done in the loop's thread."""
        self._todo.append(what)
        self._waker.send(b"x")

    def close(self) -> None:
        """End it all."""
        self.do(self.link.close)
        self.do(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
        self._wake.close()
        self._waker.close()

    def _run(self) -> None:
        self.loop.watch(self._wake, self._act)
        self.link.dial()
        self.loop.run()

    def _act(self) -> None:
        self._wake.recv(1)
        what = self._todo.pop(0)
        assert callable(what)
        what()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[FakeKeeper]:
    """A keeper."""
    keeper = FakeKeeper(tmp_path)
    yield keeper
    keeper.close()


@pytest.fixture
def owner(keeper: FakeKeeper, tmp_path: Path) -> Iterator[Owner]:
    """Somebody who calls it."""
    owner = Owner(tmp_path)
    yield owner
    owner.close()


def test_it_calls_again_whenever_the_line_breaks(owner: Owner, keeper: FakeKeeper) -> None:
    owner.start()
    for _ in range(3):
        line = keeper.accept()
        assert line.hear()[0] == Hello(takeover=False)
        line.close()


def test_a_keeper_that_comes_late_is_reached(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.start()
    try:
        eventually(lambda: "no keeper" in owner.link.fault)
        keeper = FakeKeeper(tmp_path)
        line = keeper.accept()
        line.hear()
        line.close()
        keeper.close()
    finally:
        owner.close()


def test_a_refusal_is_told_and_asking_goes_on(owner: Owner, keeper: FakeKeeper) -> None:
    owner.start()
    for count in (1, 2, 3):
        line = keeper.accept()
        line.hear()
        line.say(Refused(reason=Refusal.BUSY, detail="not yet"))
        eventually(lambda count=count: len(owner.refusals) == count)  # type: ignore[misc]  # a lambda's default
        line.close()
    assert owner.link.fault == "busy: not yet"


def test_the_descriptor_is_handed_to_every_new_keeper(owner: Owner, keeper: FakeKeeper) -> None:
    owner.hello = Hello(takeover=True, hands_back=True, generation=3, init=b"INIT", state="s")
    owner.descriptor = os.open("/dev/null", os.O_RDONLY)
    owner.start()
    for _ in range(3):
        line = keeper.accept()
        hello, descriptor = line.hear()
        assert hello == owner.hello
        assert descriptor is not None
        assert not os.get_inheritable(descriptor)
        assert os.fstat(descriptor).st_rdev == os.fstat(owner.descriptor).st_rdev
        os.close(descriptor)
        line.close()


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"junk", id="no frame"),
        pytest.param(b"SMNT" + b"\0\1" + b"\0\2" + b"\0\0\0\2{}", id="fields missing"),
    ],
)
def test_junk_from_a_keeper_is_answered_with_a_new_introduction(
    owner: Owner, keeper: FakeKeeper, junk: bytes
) -> None:
    owner.start()
    line = keeper.accept()
    line.hear()
    line.connection.send(junk)
    assert isinstance(keeper.accept().hear()[0], Hello)
    assert owner.heard == []


def test_what_a_keeper_said_last_is_heard_though_it_did_not_read_everything(
    owner: Owner, keeper: FakeKeeper
) -> None:
    """The kernel reports a reset first then, and the queue after it."""
    owner.start()
    line = keeper.accept()
    line.hear()
    owner.do(lambda: owner.link.tell(Heartbeat()))
    line.connection.recv(1, socket.MSG_PEEK)
    line.say(Stop())
    line.close()
    eventually(lambda: Stop() in owner.heard)


def test_a_keeper_that_does_not_read_holds_nobody_up(owner: Owner, keeper: FakeKeeper) -> None:
    """Beats are left out then; what matters is sent when it reads again, in order."""
    owner.start()
    line = keeper.accept()
    line.hear()
    sent = threading.Event()

    def tell() -> None:
        for number in range(2000):
            owner.link.tell(Heartbeat(handled=number), droppable=True)
        for number in range(1, 100):
            owner.link.tell(Ready(generation=number))
        sent.set()

    owner.do(tell)
    assert sent.wait(20)
    heard: list[Message] = []
    while not heard or heard[-1] != Ready(generation=99):
        heard.append(line.hear()[0])
    assert [m.generation for m in heard if isinstance(m, Ready)] == list(range(1, 100))
    assert len(heard) < 2000


def test_a_descriptor_that_is_gone_when_its_turn_comes_is_not_sent(owner: Owner, keeper: FakeKeeper) -> None:
    owner.start()
    line = keeper.accept()
    line.hear()
    owner.do(lambda: owner.link.tell(Keep(key=1), lambda: None))
    owner.do(lambda: owner.link.tell(Ready(generation=1)))
    assert line.hear()[0] == Ready(generation=1)


# The first process's side of it --------------------------------------------------------------------------


class Daemon:
    """A daemon's process that a fake keeper talks to."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [PYTHON, "-m", "sidecar", "daemon", "--run-dir", str(directory)],
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Return exit code and log."""
        _, text = self.process.communicate(timeout=10)
        return self.process.returncode, text


@pytest.fixture
def daemon(keeper: FakeKeeper, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that asks for work."""
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.process.kill()
    daemon.process.communicate(timeout=5)


@pytest.fixture
def line(daemon: Daemon, keeper: FakeKeeper) -> Line:
    """The line to it, once it has introduced itself."""
    line = keeper.accept()
    assert line.hear()[0] == Hello(takeover=True)
    return line


@pytest.mark.parametrize("reason", [Refusal.IDENTITY, Refusal.PROTOCOL])
def test_what_will_never_change_is_an_error(line: Line, daemon: Daemon, reason: Refusal) -> None:
    line.say(Refused(reason=reason, detail="uid 7"))
    code, text = daemon.end()
    assert code == 3
    assert f"the keeper refuses us ({reason.value}): uid 7" in text


NOT_NEEDED = Refused(reason=Refusal.STOPPING, detail="the pod is ending")


def test_a_daemon_that_nobody_needs_ends(line: Line, daemon: Daemon) -> None:
    line.say(NOT_NEEDED)
    assert daemon.end()[0] == 0


def test_nonsense_is_passed_over(line: Line, daemon: Daemon) -> None:
    """A stop, too, of one that serves nothing: it is for what served before, and the next answer tells."""
    line.say(Adopted(generation=4))
    line.say(Stop())
    line.say(NOT_NEEDED)
    code, text = daemon.end()
    assert code == 0
    assert text.count("message_ignored") == 1


def test_a_daemon_that_was_let_go_by_a_keeper_that_is_gone_ends(
    line: Line, daemon: Daemon, keeper: FakeKeeper
) -> None:
    """The kernel ends the connection at the same time: then nothing is served when the stop comes."""
    line.say(Stop())
    keeper.close()
    line.close()
    assert daemon.end()[0] == 0


def client_order(command: tuple[str, ...]) -> Serve:
    """Return the order to run an external client."""
    spec = directory_spec(filesystem="", command=command)
    return Serve(spec=spec, generation=3, continued=False, init=b"", heartbeat_ms=50)


def test_an_external_client_is_watched_and_its_keeper_kept_informed(
    line: Line, daemon: Daemon, keeper: FakeKeeper
) -> None:
    with open("/dev/null") as null:
        line.say(client_order(("sleep", "1000")), null.fileno())
        assert line.hear()[0] == Ready(generation=3)
        assert isinstance(line.hear()[0], Heartbeat)
        line.close()
        again = keeper.accept()
        assert again.hear()[0] == Hello(takeover=False, hands_back=True, generation=3)
        daemon.process.terminate()
        again.hear_until(Stopping)
        again.say(Adopted(generation=3))
        again.hear_until(Stopping)
        again.say(Stop())
    assert daemon.end()[0] == 0


def test_a_daemon_that_is_asked_says_whether_it_was_told_to_end(line: Line, daemon: Daemon) -> None:
    """A keeper that was itself told to end learns from it whether the pod ends."""
    with open("/dev/null") as null:
        line.say(client_order(("sleep", "1000")), null.fileno())
        line.say(Ask())
        assert line.hear_until(Answer) == Answer(told_to_end=False)
        daemon.process.terminate()
        line.hear_until(Stopping)
        line.say(Ask())
        assert line.hear_until(Answer) == Answer(told_to_end=True)
        line.say(Stop())
    assert daemon.end()[0] == 0


@pytest.mark.parametrize("reason", [Refusal.BUSY, Refusal.STALE, Refusal.STOPPING])
def test_a_daemon_that_serves_is_not_stopped_by_a_refusal(
    line: Line, daemon: Daemon, keeper: FakeKeeper, reason: Refusal
) -> None:
    with open("/dev/null") as null:
        line.say(client_order(("sleep", "1000")), null.fileno())
        line.hear_until(Ready)
        line.close()
        for _ in range(3):
            again = keeper.accept()
            again.hear()
            again.say(Refused(reason=reason, detail="no"))
            again.close()
    assert daemon.process.poll() is None


def test_a_connection_is_never_continued_by_an_external_client(line: Line, daemon: Daemon) -> None:
    from dataclasses import replace

    with open("/dev/null") as null:
        line.say(replace(client_order(("sleep", "1000")), continued=True), null.fileno())
    code, text = daemon.end()
    assert code == 3
    assert "cannot continue another one's connection" in text
