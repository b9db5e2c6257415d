"""What a bucket's volume counts: which names are known, and how reports become totals."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.objects.keys import Hidden
from sidemount.model.object_numbers import (
    FAMILIES,
    NATURES,
    NUMBER_MAX,
    Family,
    Nature,
    ObjectTotals,
    Report,
    known_numbers,
)
from sidemount.stores.faults import Counts
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import FaultKind
from tests.sidecar.objects.core import make_kernel

_NOT_TOLD = {"names_known", "names_nodes"}  # of the daemon's own memory
_DRAFTS = {
    "commits", "commit_faults", "commits_retried", "files_lost", "parts_uploaded", "parts_copied", "upload_faults",
}  # fmt: skip


def family(name: str) -> Family:
    """Return a family."""
    return next(each for each in FAMILIES if each.name == f"sidemount_objects_{name}")


def total(totals: ObjectTotals, source: str) -> int:
    """Return the sum of a number."""
    return next(totals.value(each, source) for each in FAMILIES if source in each.series.values())


def test_every_number_of_a_volume_is_known_and_nothing_else_is(tmp_path: Path) -> None:
    """A new one is to be added to `FAMILIES`, docs/monitoring.md and the dashboard."""
    found = set(make_kernel(MemoryStore(), tmp_path).filesystem.numbers())
    found |= {f"store_{name}" for name in Counts().numbers()}
    found |= {f"hidden_{kind.value}" for kind in Hidden} | {f"fault_{kind.value}" for kind in FaultKind}
    found |= {f"write_{name}" for name in _DRAFTS}
    assert found - _NOT_TOLD <= NATURES.keys()
    assert {name for name in NATURES.keys() - found if not name.startswith("ahead_")} == set()


def test_what_drafts_count_is_what_their_code_counts() -> None:
    """So a new one is not forgotten here."""
    sources = Path(__file__).parents[2] / "sidecar/objects"
    found = {
        name
        for path in sources.glob("*.py")
        for name in re.findall(r"shop\.count\(\"(\w+)\"", path.read_text())
    }
    assert found == _DRAFTS


def test_names_and_labels_are_what_prometheus_expects() -> None:
    names = [each.name for each in FAMILIES]
    assert len(names) == len(set(names))
    assert len(NATURES) == sum(len(each.series) for each in FAMILIES)
    for each in FAMILIES:
        assert re.fullmatch(r"sidemount_objects_[a-z_]+", each.name)
        assert not each.name.endswith("_total")  # the exposition's
        assert each.text.endswith(".")
        assert all(bool(value) == bool(each.label) for value in each.series)


@given(
    st.dictionaries(
        st.sampled_from([*NATURES, "names_known", "x"]),
        st.integers() | st.booleans() | st.text() | st.floats(),
    )
)
def test_only_what_is_known_and_possible_is_taken(found: dict[str, object]) -> None:
    for name, value in known_numbers(found).items():
        assert name in NATURES
        assert type(value) is int
        assert 0 <= value <= NUMBER_MAX


def test_what_a_successor_counts_comes_on_top() -> None:
    totals = ObjectTotals()
    for process, reports in ((1, (0, 5, 7)), (2, (0, 4)), (3, (0,))):
        for requests in reports:
            totals.take("v", Report(process, {"store_requests": requests}))
    assert total(totals, "store_requests") == 7 + 4


def test_what_was_counted_before_we_began_is_not_counted_again() -> None:
    totals = ObjectTotals()
    totals.take("v", Report(1, {"store_requests": 1000}))
    totals.take("v", Report(1, {"store_requests": 1003}))
    totals.take("v", Report(1, {"store_requests": 1010}), is_counted=False)
    totals.take("v", Report(1, {"store_requests": 1011}))
    assert total(totals, "store_requests") == 3 + 1


def test_what_there_is_now_is_of_all_volumes_and_ends_with_each() -> None:
    totals = ObjectTotals()
    for volume in ("a", "b"):
        totals.take(volume, Report(1, {"read_memory_bytes": 10}))
    assert total(totals, "read_memory_bytes") == 20
    totals.take("a", Report(2, {}))
    assert total(totals, "read_memory_bytes") == 10
    totals.forget("b")
    totals.forget("never")
    assert total(totals, "read_memory_bytes") == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, NUMBER_MAX)), max_size=30))
def test_a_counter_never_falls_but_to_begin_anew(reports: list[tuple[int, int]]) -> None:
    """Whatever a daemon says: it is exact in a float, and no other volume's counts are stopped by it."""
    totals, before = ObjectTotals(), 0
    for process, value in reports:
        totals.take("liar", Report(process, {"store_requests": value}))
        now = total(totals, "store_requests")
        assert 0 <= now < 1 << 53
        totals.take("honest", Report(0, {"store_requests": before}))
        before += 1
    ends = total(totals, "store_requests")
    totals.take("honest", Report(0, {"store_requests": before + 1}))
    assert total(totals, "store_requests") != ends or before == 0


@pytest.mark.parametrize("nature", Nature)
def test_there_are_both(nature: Nature) -> None:
    assert sum(each.nature is nature for each in FAMILIES) > 5
