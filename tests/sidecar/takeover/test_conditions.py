"""What a takeover needs, left out one by one: then applications complain. Under the same deaths with nothing left out, they do not.

The deaths are put where they hurt, so that no luck is needed (reference: the six conditions of a takeover that nobody notices).
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sidecar.takeover.serving import Fault
from tests.sidecar.takeover.stage import Stage, Verdict, stage

pytestmark = [pytest.mark.fuse, pytest.mark.root]

_READY_S = 30.0
_HANGS_S = 2.0  # who waits for an answer that nobody will give waits for ever
_GOES_ON_S = 0.5


def _after_a_kill(here: Stage) -> None:
    """Kill the daemon once the application holds what it will hold to the end: it has begun with what it does again and again."""
    _wait_for(here, "writer0/file", "keeper0/linked", "blocks0/shared")
    here.order("kill")
    here.order("torture", _GOES_ON_S, 1e9, 1e9)


def _of_itself(here: Stage) -> None:
    """Have dead daemons succeeded, until one has died where it is made to: every order ends with one kill besides."""
    until, before = time.monotonic() + _READY_S, 0
    while time.monotonic() < until and not here.report.get("faults"):
        kills = here.order("torture", _GOES_ON_S, 1e9, 1e9)["kills"]
        if kills > before + 1:
            return
        before = kills


def _wait_for(here: Stage, *names: str) -> None:
    until = time.monotonic() + _READY_S
    while not any((here.path / name).exists() for name in names):
        assert time.monotonic() < until, "the application does not begin"
        time.sleep(0.01)


DEADLY_OPERATION = ("--deadly-operation",)
DEADLY_PAGES = ("--deadly-pages",)
Torment = Callable[[Stage], None]


def _suffer(
    scratch: Path, fault: Fault, arguments: tuple[str, ...], kind: str, torment: Torment, longest_s: float
) -> Verdict:
    with stage(scratch, *arguments, fault=fault) as here:
        here.start(kind)
        torment(here)
        return here.end(longest_s=longest_s)


@pytest.mark.parametrize(
    ("fault", "arguments", "kind", "torment"),
    [
        pytest.param(Fault.NO_INIT, (), "writer", _after_a_kill, id="1-init-is-replayed"),
        pytest.param(Fault.NO_RESEND, DEADLY_OPERATION, "churn", _of_itself, id="2-requests-are-resent"),
        pytest.param(Fault.NO_SECOND_RESEND, DEADLY_OPERATION, "churn", _of_itself, id="2-and-once-more"),
        pytest.param(Fault.NO_NODES, (), "keeper", _after_a_kill, id="3-nodes-persist"),
        pytest.param(Fault.NO_HANDLES, (), "keeper", _after_a_kill, id="3-handles-persist"),
        pytest.param(Fault.NO_HOLDER, (), "keeper", _after_a_kill, id="3-nameless-files-are-held"),
        pytest.param(Fault.NO_JOURNAL, DEADLY_OPERATION, "churn", _of_itself, id="4-operations-are-noted"),
        pytest.param(Fault.NO_PREFAULT, DEADLY_PAGES, "blocks", _of_itself, id="5-buffers-are-resident"),
        pytest.param(
            Fault.TOUCHES_MOUNT,
            ("--ready-seconds", "3"),
            "writer",
            _after_a_kill,
            id="6-mount-is-not-touched",
        ),
    ],
)
def test_every_condition_is_needed(
    tmp_path: Path, fault: Fault, arguments: tuple[str, ...], kind: str, torment: Torment
) -> None:
    """S4-09, S4-10."""
    verdict = _suffer(tmp_path, fault, arguments, kind, torment, _HANGS_S)
    assert verdict.complaints
    assert verdict.kills > 0


@pytest.mark.parametrize(
    ("arguments", "kind", "torment"),
    [
        pytest.param(DEADLY_OPERATION, "churn", _of_itself, id="deadly-operations"),
        pytest.param((), "keeper", _after_a_kill, id="kill"),
        pytest.param(DEADLY_PAGES, "blocks", _after_a_kill, id="deadly-pages"),
    ],
)
def test_nothing_else_is(tmp_path: Path, arguments: tuple[str, ...], kind: str, torment: Torment) -> None:
    """The same deaths with every condition met. With resident buffers there is no page to die of, but a kill comes all the same."""
    verdict = _suffer(tmp_path, Fault.NONE, arguments, kind, torment, _READY_S)
    assert verdict.complaints == [], verdict.log
    assert verdict.kills > 0
    assert verdict.applications[0]["operations"] > 0


@pytest.mark.slow  # which answer is taken for another's is a matter of chance: it is given time
def test_steps_that_are_over_must_be_closed(tmp_path: Path) -> None:
    """Else an operation is taken for an earlier one that was the same, and answered without being done."""
    with stage(tmp_path, fault=Fault.NO_ERRANDS) as here:
        here.start("churn", "churn")
        for _ in range(20):
            here.order("torture", 2, 20, 100)
            if here.report["faults"]:
                break
        assert here.end(longest_s=_HANGS_S).complaints
