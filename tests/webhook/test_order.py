"""Where our init containers go."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.order import Insertion, Move, Step, arrange

OURS = ("keeper", "a", "b")
NETWORK = frozenset({"istio-init", "istio-proxy"})


def applied(found: list[str], steps: list[Step]) -> list[str]:
    """Apply steps as a JSON Patch would."""
    names = list(found)
    for step in steps:
        match step:
            case Insertion(name=name, index=index):
                assert index <= len(names)
                names.insert(index, name)
            case Move(source=source, index=index):
                names.insert(index, names.pop(source))
    return names


def arranged(found: list[str], dependents: set[str] | None = None) -> list[str]:
    """Arrange and apply."""
    indices = frozenset(i for i, name in enumerate(found) if name in (dependents or set()))
    return applied(found, arrange(found, OURS, indices, NETWORK))


FRESH: list[Any] = [
    pytest.param([], ["keeper", "a", "b"], id="alone"),
    pytest.param(["x"], ["keeper", "a", "b", "x"], id="before-the-users"),
    pytest.param(
        ["istio-init", "istio-proxy", "x"], ["istio-init", "istio-proxy", "keeper", "a", "b", "x"], id="net"
    ),
    pytest.param(["x", "istio-proxy"], ["keeper", "a", "b", "x", "istio-proxy"], id="network-not-leading"),
]


@pytest.mark.parametrize(("found", "expected"), FRESH)
def test_vault53_fresh_pods_get_ours_first_behind_leading_network_containers(
    found: list[str], expected: list[str]
) -> None:
    assert arranged(found) == expected


def test_a_network_container_that_shows_a_view_comes_behind_ours() -> None:
    assert arranged(["istio-init", "x"], {"istio-init"}) == ["keeper", "a", "b", "istio-init", "x"]


KEPT: list[Any] = [
    pytest.param(["keeper", "a", "b", "x"], {"x"}, id="as-we-made-it"),
    pytest.param(["other", "keeper", "a", "b", "x"], {"x"}, id="another-first"),
    pytest.param(["keeper", "other", "a", "b", "x"], {"x"}, id="another-between"),
    pytest.param(["keeper", "b", "a", "x"], {"x"}, id="daemons-in-another-order"),
    pytest.param(["x", "keeper", "a", "b"], set(), id="last-and-nobody-needs-them"),
]


@pytest.mark.parametrize(("found", "dependents"), KEPT)
def test_an_order_that_works_is_kept(found: list[str], dependents: set[str]) -> None:
    assert arranged(found, dependents) == found


REPAIRED: list[Any] = [
    pytest.param(["x", "keeper", "a", "b"], {"x"}, ["keeper", "a", "b", "x"], id="dependent-first"),
    pytest.param(["keeper", "a", "x", "b"], {"x"}, ["keeper", "a", "b", "x"], id="daemon-late"),
    pytest.param(["a", "keeper", "b"], set(), ["keeper", "a", "b"], id="daemon-before-keeper"),
    pytest.param(["b", "a", "x", "keeper"], {"x"}, ["keeper", "a", "b", "x"], id="reversed"),
    pytest.param(
        ["istio-proxy", "y", "x", "keeper", "b"],
        {"x"},
        ["istio-proxy", "keeper", "a", "b", "y", "x"],
        id="one-missing",
    ),
]


@pytest.mark.parametrize(("found", "dependents", "expected"), REPAIRED)
def test_an_order_that_cannot_start_is_repaired(
    found: list[str], dependents: set[str], expected: list[str]
) -> None:
    assert arranged(found, dependents) == expected


def test_a_missing_daemon_goes_behind_the_one_before_it() -> None:
    assert arranged(["other", "keeper", "b", "x"], {"x"}) == ["other", "keeper", "a", "b", "x"]
    assert arranged(["keeper", "a", "x"], {"x"}) == ["keeper", "a", "b", "x"]


@given(st.data())
def test_any_arrangement_works_and_comes_to_rest(data: st.DataObject) -> None:
    present = data.draw(st.sets(st.sampled_from(OURS)))
    others = data.draw(st.lists(st.sampled_from(["x", "y", "z", "istio-proxy"]), unique=True))
    found = data.draw(st.permutations([*present, *others]))
    dependents = data.draw(st.sets(st.sampled_from(others))) if others else set()
    after = arranged(list(found), dependents)
    assert sorted(after) == sorted({*OURS, *others})
    assert [name for name in after if name in others] == [name for name in found if name in others]
    keeper, *daemons = (after.index(name) for name in OURS)
    assert all(keeper < daemon for daemon in daemons)
    assert all(max(daemons) < after.index(name) for name in dependents)
    assert arranged(after, dependents) == after


def test_every_order_of_ours_and_one_dependent_is_brought_right() -> None:
    for found in itertools.permutations([*OURS, "x"]):
        assert arranged(list(found), {"x"})[-1] == "x"
