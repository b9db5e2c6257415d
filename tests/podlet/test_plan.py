"""The order of a pod and the back-off of its containers, without running anything."""

import pytest

from e2e.podlet.parse_pod import parse_pod
from e2e.podlet.plan import Finish, Plan, Start, Wait
from e2e.podlet.record import BackOff, Record, Running, Terminated, Waiting
from tests.podlet.pods import Json, container, pod, sidecar, task


class Bench:
    """A plan whose containers are moved by hand."""

    def __init__(self, manifest: Json) -> None:
        parsed = parse_pod(manifest)
        self.records = {
            c.name: Record(c, BackOff(1.0), Waiting(reason="PodInitializing")) for c in parsed.containers
        }
        self.plan = Plan(
            parsed, [self.records[c.name] for c in parsed.inits], [self.records[c.name] for c in parsed.apps]
        )

    def next(self, now: float = 0.0) -> str:
        """Return what the plan says, as a word, doing it at once."""
        match self.plan.next_action(now):
            case Start(record=record):
                if record.last is not None:
                    record.back_off.advance(record.last.finished_at, now)
                record.process = object()  # type: ignore[assignment]  # only its being there is looked at
                record.state = Running(started_at=now)
                record.attempts += 1
                record.is_started = record.container.startup is None
                return record.container.name
            case Wait(until=until):
                return "wait" if until is None else f"wait until {until:g}"
            case Finish(phase=phase):
                return phase

    def end(self, name: str, code: int = 0, at: float = 0.0) -> None:
        """End a container's run."""
        record = self.records[name]
        record.process = None
        record.last = Terminated(exit_code=code, reason="", message="", started_at=at, finished_at=at)
        record.state = record.last


def test_init_containers_run_one_after_another_and_apps_after_them() -> None:
    bench = Bench(pod(container("a"), container("b"), inits=[task("i1"), task("i2")]))
    assert [bench.next(), bench.next()] == ["i1", "wait"]
    bench.end("i1")
    assert [bench.next(), bench.next()] == ["i2", "wait"]
    bench.end("i2")
    assert [bench.next(), bench.next(), bench.next()] == ["a", "b", "wait"]


def test_a_sidecar_gates_until_it_has_started_and_never_again() -> None:
    probed = sidecar("s", startupProbe={"exec": {"command": ["x"]}})
    bench = Bench(pod(container("a"), inits=[probed, task("i")]))
    assert [bench.next(), bench.next()] == ["s", "wait"]
    bench.records["s"].is_started = True
    assert [bench.next(), bench.next()] == ["i", "wait"]
    bench.end("s", 1)
    assert bench.next() == "s", "a sidecar is restarted while a later init container runs"
    bench.end("i")
    assert bench.next() == "a", "a restarted sidecar that has not started yet holds nobody up"


def test_a_failing_init_container_is_retried_or_ends_the_pod() -> None:
    bench = Bench(pod(container("a"), inits=[task("i")]))
    bench.next()
    bench.end("i", 1)
    assert bench.next() == "i"
    bench = Bench(pod(container("a"), inits=[task("i")], restartPolicy="Never"))
    bench.next()
    bench.end("i", 1)
    assert bench.next() == "Failed"


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Always", 0, "a"),
        ("Always", 1, "a"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 1, "a"),
        ("Never", 0, "Succeeded"),
        ("Never", 1, "Failed"),
    ],
)
def test_restart_policy_decides_what_an_end_means(policy: str, code: int, expected: str) -> None:
    bench = Bench(pod(container("a"), inits=[sidecar("s")], restartPolicy=policy))
    assert [bench.next(), bench.next()] == ["s", "a"]
    bench.end("a", code)
    assert bench.next() == expected


def test_back_off_is_none_then_10_20_40_up_to_300_seconds() -> None:
    bench = Bench(pod(container("a")))
    assert bench.next() == "a"
    now, waits = 0.0, []
    for _ in range(8):
        bench.end("a", 1, at=now)
        answer = bench.next(now)
        if answer.startswith("wait until "):
            waits.append(float(answer.removeprefix("wait until ")) - now)
            assert bench.records["a"].state == Waiting(
                reason="CrashLoopBackOff", message=f"back-off {waits[-1]:g}s restarting failed container=a"
            )
            now += waits[-1]
            assert bench.next(now) == "a"
    assert waits == [10, 20, 40, 80, 160, 300, 300]


def test_back_off_is_forgotten_after_ten_healthy_minutes() -> None:
    bench = Bench(pod(container("a")))
    bench.next()
    bench.end("a", 1, at=0.0)
    bench.next(0.0)
    bench.end("a", 1, at=601.0)
    assert bench.next(601.0) == "a"
    bench.end("a", 1, at=602.0)
    assert bench.next(602.0) == "wait until 612"
