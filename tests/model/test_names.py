import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidemount.model import names

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
DERIVED = (names.daemon_container, names.source_volume, names.secret_volume, names.cache_volume)
OWN = {names.KEEPER_CONTAINER, names.MOUNTS_VOLUME, names.RUN_VOLUME, names.NO_TOKEN_VOLUME}


@pytest.mark.parametrize("derive", DERIVED, ids=lambda f: f.__name__)
@given(volume=LABELS)
def test_derived_names_are_dns_labels(derive: Callable[[str], str], volume: str) -> None:
    assert names.label_fault(derive(volume)) == ""


@given(a=LABELS, b=LABELS)
@example(a="a" * 63, b="a" * 62 + "b")
@example(a="a" * 54, b="a" * 55)
def test_two_volumes_never_share_a_derived_name(a: str, b: str) -> None:
    for derive in DERIVED:
        assert (derive(a) == derive(b)) == (a == b)


def test_a_short_name_made_to_look_like_a_hashed_one_does_not_meet_it() -> None:
    hashed = names.daemon_container("a" * 63)
    impostor = hashed.removeprefix("sidemount-")
    assert names.volume_name_fault(impostor) == ""
    assert names.daemon_container(impostor) != hashed


@given(LABELS)
def test_a_permitted_name_never_yields_one_of_our_own(volume: str) -> None:
    if not names.volume_name_fault(volume):
        derived = [derive(volume) for derive in DERIVED]
        assert not OWN & {volume, *derived}
        assert len(set(derived)) == len(derived)


@pytest.mark.parametrize(
    "name",
    [
        "keeper",
        "sidemount",
        "sidemount-x",
        "sidemount-run",
        "",
        "A",
        "a_b",
        "-a",
        "a-",
        "a.b",
        "a" * 64,
        "ä",
        "a\n",
    ],
)
def test_names_that_collide_or_are_no_label_are_refused(name: str) -> None:
    assert names.volume_name_fault(name)


SUB_PATHS = st.text(min_size=1, max_size=20)


@given(
    a=st.tuples(LABELS, SUB_PATHS | st.just(""), st.booleans()),
    b=st.tuples(LABELS, SUB_PATHS | st.just(""), st.booleans()),
)
@example(a=("v", "", True), b=("v", "", False))
@example(a=("v", "1:x", False), b=("v", "x", True))
def test_views_collide_only_with_themselves(a: tuple[str, str, bool], b: tuple[str, str, bool]) -> None:
    """S2-28: one directory a (volume, sub-path, read-only)."""
    assert (names.view_name(*a) == names.view_name(*b)) == (a == b)


@given(LABELS, LABELS, SUB_PATHS)
def test_no_view_takes_a_volume_name(volume: str, other: str, sub_path: str) -> None:
    assert names.view_name(volume, sub_path, read_only=True) != other
    assert re.fullmatch(r"[a-z0-9-]+\.[0-9a-f]{16}", names.view_name(volume, sub_path, read_only=False))
    assert names.view_name(volume, "", read_only=False) == volume


def test_the_mount_source_names_pod_and_volume() -> None:
    assert names.mount_source("uid-1", "train") == "sidemount:uid-1/train"
    assert names.mount_source("", "train") == "sidemount:train"
