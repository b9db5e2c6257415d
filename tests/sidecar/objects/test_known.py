"""What is known of names: what a name that is not known any more says of the others."""

from sidecar.objects.known import Fact, Known
from sidemount.stores.store import ObjectInfo

_FILE = ObjectInfo("d/new", 1, "e", 0)


def _known() -> Known:
    known = Known(known_s=10.0, missing_s=10.0, clock=lambda: 100.0)
    known.listed("d", 100.0, 0)
    return known


def test_a_forgotten_name_is_asked_for_and_the_others_of_its_directory_are_not() -> None:
    known = _known()
    known.forget("d/new")
    assert known.get("d/new") is None
    other = known.get("d/other")
    assert other is not None
    assert not other.is_there


def test_what_is_learnt_after_a_name_was_forgotten_is_known() -> None:
    known = _known()
    known.forget("d/new")
    known.learn("d/new", Fact(_FILE, False, 99.0))
    assert known.newer("d/new", 98.0) == known.get("d/new") == Fact(_FILE, False, 99.0)


def test_a_forgotten_name_of_a_directory_that_was_not_listed_takes_no_room() -> None:
    known = Known(known_s=10.0, missing_s=10.0, clock=lambda: 100.0)
    known.forget("d/new")
    assert len(known) == 0
