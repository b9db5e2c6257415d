"""The benchmarks' framework: what a row says, that turns alternate, and that nothing fails."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from e2e.bench import __main__ as command
from e2e.bench.load import Loader
from e2e.bench.reviews import make_envs_review, make_reviews
from e2e.bench.rows import Goal, Row, Sample, alternate, render_table, render_verdict, repeat
from sidemount.host.facts_directory import FactsDirectory
from tests.webhook.running import SAMPLES
from tests.webhook.threaded import threaded_server
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings
from webhook.outcome import Verdict


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "verdict"),
    [
        (Goal(at_least=0.75), 75.0, 100.0, "holds"),
        (Goal(at_least=0.75), 74.0, 100.0, "falls short"),
        (Goal(at_most=1.2), 1.2, 1.0, "holds"),
        (Goal(at_most=1.2), 1.3, 1.0, "falls short"),
        (Goal(at_most=35, of_ours=True), 35.0, None, "holds"),
        (Goal(at_most=35, of_ours=True), 36.0, None, "falls short"),
        (Goal(at_least=0.75), 1.0, None, "falls short"),
        (Goal(at_least=0.75), 1.0, 0.0, "falls short"),
        (None, 1.0, 2.0, ""),
    ],
)
def test_a_row_is_held_to_its_goal(
    goal: Goal | None, ours: float, theirs: float | None, verdict: str
) -> None:
    assert Row(what="x", ours=ours, theirs=theirs, goal=goal).verdict == verdict


def test_subject_and_peer_take_turns_and_medians_count() -> None:
    turns: list[str] = []
    figures = {"a": iter([99.0, 1, 2, 3, 4, 100]), "b": iter([99.0, 10, 20, 30, 40, 0])}

    def measure(name: str) -> Sample:
        turns.append(name)
        return {"x": next(figures[name])}

    pairs = alternate(lambda: measure("a"), lambda: measure("b"), rounds=5)
    assert "".join(turns) == "ab" + "ab" + "ba" + "ab" + "ba" + "ab"
    assert (pairs["x"].ours, pairs["x"].theirs) == (3, 20)


def test_a_figure_without_a_peer_is_a_median_after_a_warm_turn() -> None:
    figures = iter([1000.0, 1, 5, 3])
    assert repeat(lambda: next(figures), rounds=3) == 3


def test_a_table_has_a_line_a_row_and_the_verdict_names_what_falls_short() -> None:
    rows = [
        Row(what="rate", ours=7488.4, theirs=9158.0, unit="req/s", against="peer", goal=Goal(at_least=0.75)),
        Row(what="memory", ours=20.0, unit="MiB", goal=Goal(at_most=14, of_ours=True)),
        Row(what="broken", fault="FileNotFoundError: no wrk"),
        Row(what="plain", ours=0.5, unit="ms"),
    ]
    lines = render_table(rows).splitlines()
    assert len(lines) == 6
    assert "7,488 req/s" in lines[2]
    assert "0.82" in lines[2]
    assert lines[2].endswith("holds")
    assert lines[3].split()[-4:] == ["≤", "14", "falls", "short"]
    assert lines[4].endswith("not measured FileNotFoundError: no wrk")
    assert (
        render_verdict(rows) == "bench: 1 of 3 goals hold; not: memory (falls short), broken (not measured)"
    )
    assert render_verdict(rows[:1]) == "bench: 1 of 1 goals hold"


def _bench(monkeypatch: pytest.MonkeyPatch, name: str, rows: object) -> None:
    module = ModuleType(f"e2e.bench.bench_{name}")
    module.rows = rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_benchmark_that_cannot_run_costs_no_other_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Iterator[Row]:
        yield Row(what="first", ours=1.0)
        raise RuntimeError("no such device\nand more")

    _bench(monkeypatch, "broken", broken)
    _bench(
        monkeypatch, "good", lambda: iter([Row(what="fine", ours=1.0, goal=Goal(at_least=1, of_ours=True))])
    )
    monkeypatch.setattr(command, "known_benches", lambda: ["broken", "good"])
    assert command.main([]) == 1, "what cannot be judged is no success"
    told = capsys.readouterr().out
    assert "RuntimeError: no such device" in told
    assert "and more" not in told
    assert told.splitlines()[-1] == "bench: 1 of 2 goals hold; not: broken (not measured)"
    assert command.main(["good", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["what"], row["verdict"]) == ("fine", "holds")


def test_how_long_is_told_to_whoever_can_choose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _bench(monkeypatch, "fixed", lambda: iter([Row(what="fixed", ours=1.0)]))
    _bench(monkeypatch, "free", lambda seconds=3.0: iter([Row(what="free", ours=seconds)]))
    monkeypatch.setattr(command, "known_benches", lambda: ["fixed", "free"])
    for arguments, figure in (([], 3.0), (["--seconds", "0.25"], 0.25)):
        assert command.main([*arguments, "-o", "json"]) == 0
        assert [row["ours"] for row in json.loads(capsys.readouterr().out)] == [1.0, figure]
    for wrong in ("0", "-1", "nan", "11", "x"):
        with pytest.raises(SystemExit) as ended:
            command.main(["--seconds", wrong])
        assert ended.value.code == 2


def test_a_goal_that_is_missed_is_told_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _bench(
        monkeypatch, "slow", lambda: iter([Row(what="slow", ours=2.0, goal=Goal(at_most=1, of_ours=True))])
    )
    monkeypatch.setattr(command, "known_benches", lambda: ["slow"])
    assert command.main([]) == 0
    assert "slow (falls short)" in capsys.readouterr().out


def test_an_unknown_name_is_told_with_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nothing"]) == 2
    assert "known: " in capsys.readouterr().err
    assert "webhook" in command.known_benches()


def test_the_reviews_are_of_the_size_they_claim_and_are_injected() -> None:
    facts = FactsDirectory(SAMPLES).facts()
    for containers, size_bytes in ((2, 6138), (32, 61434)):
        reviews = make_reviews(3, containers=containers, size_bytes=size_bytes)
        assert {len(review) for review in reviews} == {size_bytes}
        assert len(set(reviews)) == 3
        for review in reviews:
            outcome = mutate(review, facts=facts, settings=InjectionSettings()).outcome
            assert outcome.verdict is Verdict.INJECTED
    assert (
        len(json.loads(make_envs_review(5000))["request"]["object"]["spec"]["containers"][0]["env"]) == 5000
    )


@pytest.mark.parametrize("with_wrk", [True, False])
def test_load_counts_answers_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_wrk: bool
) -> None:
    if not with_wrk:
        monkeypatch.setattr("shutil.which", lambda name: None)
    loader = Loader(make_reviews(2, containers=1, size_bytes=0), connections=2, processor=None)
    try:
        with threaded_server(tmp_path) as server:
            good = loader.run(server.port, "/mutate", 0.3 if not with_wrk else 1)
            bad = loader.run(server.port, "/nowhere", 0.3 if not with_wrk else 1)
    finally:
        loader.close()
    assert good.requests > 10
    assert good.errors == 0
    assert good.rate > 10
    assert bad.errors >= bad.requests * 0.9 > 0
