"""How stalls are told from blows and slow calls, and how they are shown."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.torture.__main__ import exit_code
from e2e.torture.counts import Counts
from e2e.torture.goals import judge
from e2e.torture.outcome import Outcome
from e2e.torture.plot import svg
from e2e.torture.report import as_json, table, whole_report
from e2e.torture.stalls import spread, stalls_ms
from e2e.torture.variants import VARIANTS, Victim


def test_a_call_that_was_under_way_counts_from_the_blow_on() -> None:
    assert stalls_ms([10.0], [(9.9, 10.02)]) == pytest.approx([20.0])


def test_a_call_that_began_after_the_blow_counts_from_its_beginning() -> None:
    assert stalls_ms([10.0], [(10.5, 10.75)]) == pytest.approx([250.0])


def test_each_blow_has_its_own_stall() -> None:
    assert stalls_ms([10.0, 12.0], [(9.9, 10.1), (11.9, 12.3)]) == pytest.approx([100.0, 300.0])


def test_a_blow_that_nobody_noticed_is_no_stall() -> None:
    assert stalls_ms([10.0, 11.0], [(10.9, 11.1)]) == pytest.approx([0.0, 100.0])
    assert stalls_ms([10.0], [(1.0, 2.0)]) == [0.0]


def test_a_call_that_two_blows_hit_counts_for_both() -> None:
    assert stalls_ms([10.0, 12.0], [(9.0, 13.0)]) == pytest.approx([3000.0, 1000.0])


def test_the_longest_call_after_a_blow_is_its_stall() -> None:
    assert stalls_ms([10.0], [(9.9, 10.01), (10.02, 10.3), (10.4, 10.5)]) == pytest.approx([280.0])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_values_of_the_sample_and_in_order(sample: list[float]) -> None:
    found = spread(sample)
    assert found is not None
    assert {found.p50, found.p99, found.most} <= set(sample)
    assert found.p50 <= found.p99 <= found.most == max(sample)
    assert sum(value <= found.p50 for value in sample) * 2 >= len(sample)
    assert sum(value <= found.p99 for value in sample) * 100 >= len(sample) * 99


def test_an_empty_sample_has_no_percentiles() -> None:
    assert spread([]) is None


def outcome(name: str, stalls: tuple[float, ...], **changes: Any) -> Outcome:
    """Return an outcome."""
    return Outcome(
        variant=name,
        seconds=9.5,
        blows=len(stalls),
        kills=changes.pop("kills", len(stalls)),
        operations=7,
        stalls_ms=stalls,
        **changes,
    )


def counts(**changes: int) -> Counts:
    """Return what there may be of everything."""
    usual = {"mounts": 20, "processes": 8, "keeper_descriptors": 15, "daemon_descriptors": 16}
    return Counts(**{**usual, "keeper_kib": 9000, "daemon_kib": 16000, **changes})


def test_the_picture_is_well_formed_and_has_a_dot_for_every_stall() -> None:
    picture = svg([outcome("child", (0.0, 3.0, 1e9)), outcome("<&>", (5.0,)), outcome("none", ())])
    root = ElementTree.fromstring(picture)
    dots = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 4
    width = float(root.attrib["width"])
    assert all(0 <= float(dot.attrib["cx"]) <= width for dot in dots)


def test_the_table_says_what_is_bad() -> None:
    bad = outcome(
        "child", (1.0, 2.0), errors=("writer0: EIO",), wrong=("log1: short",), faults=("left mounted",)
    )
    text = table([bad, outcome("quiet", (4.0,))])
    assert [line.split()[-1] for line in text.splitlines()[1:4]] == ["BAD", "good", "BAD"]
    for fault in ("child: writer0: EIO", "child: log1: short", "child: left mounted"):
        assert fault in text
    assert '"stall_p50_ms": 1.0' in as_json([bad])


def test_every_victim_has_a_variant() -> None:
    assert all(name == variant.name for name, variant in VARIANTS.items())
    assert {victim for variant in VARIANTS.values() for victim in variant.victims} == set(Victim)


@pytest.mark.parametrize(
    ("found", "verdicts"),
    [
        (outcome("quiet", (10.0, 100.0)), [True, True]),
        (outcome("quiet", (10.1, 100.0, 100.1)), [False, False]),
        (outcome("child", (49.0, 900.0)), [True]),
        (outcome("writeback", (50.1,)), [False]),
        (outcome("container", (800.0, 2000.0), starts_ms=(750.0, 1900.0)), [True, True]),
        (outcome("container", (800.0, 2000.0), starts_ms=(650.0, 1950.0)), [False, True]),
        (outcome("hang", (1500.0, 3000.0)), [True]),
        (outcome("keeper", (5000.0,)), []),
        (outcome("child", ()), []),
    ],
)
def test_goals_are_judged_by_what_was_found(found: Outcome, verdicts: list[bool]) -> None:
    assert [judgement.is_met for judgement in judge([found])] == verdicts


@pytest.mark.parametrize(("kills", "is_met"), [(99, False), (100, True)])
def test_a_thousand_kills_are_wanted_of_all_variants_together(kills: int, is_met: bool) -> None:
    outcomes = [outcome(name, (), kills=kills) for name in VARIANTS]
    assert len(outcomes) == 10
    assert [(j.variant, j.is_met) for j in judge(outcomes)] == [("all", is_met)]
    assert judge(outcomes[1:]) == []


def test_the_report_has_outcomes_goals_and_what_there_was_before_and_after() -> None:
    found = outcome("quiet", (40.0,), before=counts(), after=counts(keeper_kib=9010))
    text = whole_report([found])
    assert ["quiet", "p50", "≤", "10", "ms", "40.0", "ms", "MISSED"] in [
        line.split() for line in text.splitlines()
    ]
    assert "9000 → 9010" in text
    assert "20 → 20" in text


def test_what_is_there_afterwards_and_was_not_before_is_a_fault() -> None:
    before = counts()
    assert before.differences(counts(keeper_kib=9512), growth_kib=512) == []
    assert before.differences(counts(mounts=25), growth_kib=0, more_mounts=5) == []
    for change in ({"mounts": 21}, {"mounts": 19}, {"processes": 9}, {"daemon_descriptors": 15}):
        assert len(before.differences(counts(**change), growth_kib=512)) == 1
    assert before.differences(counts(daemon_kib=16513), growth_kib=512) != []
    assert before.differences(counts(mounts=26), growth_kib=0, more_mounts=5) != []
    assert before.differences(counts(mounts=19), growth_kib=0, more_mounts=5) != []


def test_only_a_prober_that_may_lose_its_connection_may_say_so() -> None:
    lost = "prober: OSError(107, 'Transport endpoint is not connected')"
    assert VARIANTS["both"].expects(lost)
    assert not VARIANTS["child"].expects(lost)
    assert not VARIANTS["both"].expects(lost.replace("prober", "reopener0"))
    assert not VARIANTS["both"].expects("prober: OSError(5, 'Input/output error')")


@pytest.mark.parametrize(
    ("found", "code", "strict_code"),
    [
        (outcome("quiet", (4.0,)), 0, 0),
        (outcome("quiet", (40.0,)), 0, 1),
        (outcome("quiet", (4.0,), errors=("writer0: EIO",)), 1, 1),
        (outcome("quiet", (4.0,), wrong=("log1: short",)), 1, 1),
        (outcome("quiet", (4.0,), faults=("left mounted",)), 1, 1),
    ],
)
def test_only_what_is_wrong_fails_unless_goals_are_to(found: Outcome, code: int, strict_code: int) -> None:
    assert exit_code([found], strict=False) == code
    assert exit_code([found], strict=True) == strict_code
