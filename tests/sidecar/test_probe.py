"""The start-up probe: cheap, bounded, and it says why."""

import resource
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.probe import ask, ask_hung, main
from sidemount.host import wire
from tests.host.keeper_pod import PYTHON
from tests.host.mount_node import ROOT


def keeper(directory: Path, behave: Callable[[socket.socket], object]) -> threading.Thread:
    """Be a keeper for one peer."""
    listener = wire.listen(str(directory), uid=0)
    listener.setblocking(True)

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                wire.receive(connection)
                behave(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.root
@pytest.mark.parametrize(
    ("behave", "answer"),
    [
        pytest.param(lambda c: wire.send(c, wire.Kind.STATUS, b"ready"), "ready", id="ready"),
        pytest.param(
            lambda c: wire.send(c, wire.Kind.STATUS, "not ready: größe".encode()),
            "not ready: größe",
            id="not ready",
        ),
        pytest.param(lambda c: None, "not ready: the keeper has closed the connection", id="closes"),
        pytest.param(
            lambda c: wire.send(c, wire.Kind.STOP), "not ready: the keeper answers STOP: ", id="other kind"
        ),
    ],
)
def test_the_keepers_answer_is_told(
    tmp_path: Path, behave: Callable[[socket.socket], object], answer: str
) -> None:
    thread = keeper(tmp_path, behave)
    assert ask(str(tmp_path)) == answer
    thread.join(5)


@pytest.mark.root
def test_junk_from_the_keeper_is_told(tmp_path: Path) -> None:
    thread = keeper(tmp_path, lambda connection: connection.send(b"junk"))
    assert ask(str(tmp_path)).startswith("not ready: the keeper cannot be reached")
    thread.join(5)


@pytest.mark.root
def test_a_keeper_that_does_not_answer_is_waited_for_with_a_bound(tmp_path: Path) -> None:
    thread = keeper(tmp_path, lambda connection: connection.recv(1))
    assert ask(str(tmp_path), timeout_s=0.2) == "not ready: the keeper does not answer within 0.2 s"
    thread.join(5)


@pytest.mark.root
def test_a_keeper_that_does_not_even_accept_is_waited_for_with_a_bound(tmp_path: Path) -> None:
    with wire.listen(str(tmp_path), uid=0) as listener:
        listener.listen(0)
        waiting = [wire.dial(str(tmp_path), timeout_s=1)]
        assert ask(str(tmp_path), timeout_s=0.2).startswith("not ready: the keeper ")
        waiting[0].close()


def test_no_keeper_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"not ready: the keeper cannot be reached at {tmp_path}: ")


@pytest.mark.parametrize(
    "arguments", [["--run-dir"], ["--run-dir", ""], ["x"], ["--run-dir", "a", "b"], ["--ask", "x"]], ids=str
)
def test_wrong_flags_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.root
@pytest.mark.parametrize(
    ("behave", "code"),
    [
        pytest.param(lambda c: wire.send(c, wire.Kind.STATUS, b"hung: silent"), 1, id="hung"),
        pytest.param(lambda c: wire.send(c, wire.Kind.STATUS, b"alive"), 0, id="alive"),
        pytest.param(lambda c: wire.send(c, wire.Kind.STATUS, b"not ready: starting"), 0, id="not ready"),
        pytest.param(lambda c: wire.send(c, wire.Kind.REFUSED, b"hung: no"), 0, id="another kind"),
        pytest.param(lambda c: None, 0, id="closes"),
        pytest.param(lambda c: c.send(b"junk"), 0, id="junk"),
    ],
)
def test_only_the_keeper_s_word_makes_a_container_hung(
    tmp_path: Path, behave: Callable[[socket.socket], object], code: int
) -> None:
    thread = keeper(tmp_path, behave)
    assert main(["--run-dir", str(tmp_path), "--ask", "hung"]) == code
    thread.join(5)


@pytest.mark.root
def test_a_keeper_that_is_away_or_stopped_makes_no_container_hung(tmp_path: Path) -> None:
    assert main(["--run-dir", str(tmp_path), "--ask", "hung"]) == 0
    thread = keeper(tmp_path, lambda connection: connection.recv(1))
    assert not ask_hung(str(tmp_path), timeout_s=0.2).startswith("hung")
    thread.join(5)


def test_a_probe_that_fails_by_itself_makes_no_container_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dial(run_dir: str, *, timeout_s: float) -> socket.socket:
        raise MemoryError(run_dir, timeout_s)

    monkeypatch.setattr(wire, "dial", dial)
    assert main(["--run-dir", str(tmp_path), "--ask", "hung"]) == 0
    assert "MemoryError" in capsys.readouterr().out


def test_nobody_may_look_into_a_probe(tmp_path: Path) -> None:
    """It runs as the daemon's user beside its credentials: with a shared process namespace an application could drive it by ptrace."""
    script = (
        "import sys; from sidecar import probe; "
        "probe.ask_hung = probe.ask = lambda run_dir: str(probe.process_attributes.may_be_inspected()); "
        "sys.exit(probe.main(sys.argv[1:]))"
    )
    for asked in ("ready", "hung"):
        argv = [PYTHON, "-S", "-E", "-c", script, "--run-dir", str(tmp_path), "--ask", asked]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.stdout == "False\n", done


def test_a_probe_is_cheap(tmp_path: Path) -> None:
    """It runs every second in every pod that starts: at most 40 ms of processor."""
    argv = [PYTHON, "-S", "-E", "-m", "sidecar", "probe", "--run-dir", str(tmp_path)]
    costs: list[float] = []
    while len(costs) < 20 and min(costs, default=1.0) >= 0.040:  # whoever else runs takes the caches away
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(costs) < 0.040


def test_the_command_names_its_parts() -> None:
    done = subprocess.run(
        [PYTHON, "-m", "sidecar", "nonsense"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "{keeper,daemon,probe,client,nursery}" in done.stderr
