"""Sets of byte ranges, against sets of bytes."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidecar.objects.draft_ranges import Ranges

places = st.integers(0, 40)
steps = st.lists(st.tuples(st.booleans(), places, places), max_size=25)


@given(steps, places, places)
def test_ranges_are_sets_of_bytes(steps: list[tuple[bool, int, int]], start: int, end: int) -> None:
    ranges, model = Ranges(), set[int]()
    for adds, one, two in steps:
        change = set(range(one, two))
        if adds:
            ranges.add(one, two)
            model |= change
        else:
            ranges.remove(one, two)
            model -= change
        listed = list(ranges)
        assert {byte for first, last in listed for byte in range(first, last)} == model
        assert all(left[1] < right[0] for left, right in pairwise(listed))
        assert all(first < last for first, last in listed)
    within = {byte for first, last in ranges.within(start, end) for byte in range(first, last)}
    missing = {byte for first, last in ranges.missing(start, end) for byte in range(first, last)}
    asked = set(range(start, end))
    assert (within, missing) == (model & asked, asked - model)
    assert ranges.covers(start, end) == (not missing)
    assert ranges.touches(start, end) == bool(within)
