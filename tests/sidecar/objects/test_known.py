"""What is known of names: what a name that is not known any more says of the others."""

from collections import OrderedDict
from collections.abc import Iterator

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


def test_files_of_a_directory_are_its_own_in_order_and_as_they_are_known_last() -> None:
    known = Known(known_s=10.0, missing_s=10.0, most=8, clock=lambda: 100.0)
    for path in ("d/b", "d/a", "d/e/x", "dd", "top"):
        known.learn(path, Fact(_FILE, False, 99.0))
    known.learn("d/e", Fact(None, True, 99.0))
    assert [known.files_in(path) for path in ("d", "d/e", "", "none")] == [
        ["d/a", "d/b"],
        ["d/e/x"],
        ["dd", "top"],
        [],
    ]
    known.learn("d/a", Fact(None, False, 100.0))
    known.disbelieve("dd", _FILE)
    known.forget("top")
    assert (known.files_in("d"), known.files_in("")) == (["d/b"], [])
    known.forget_beneath("d")
    assert known.files_in("d") == known.files_in("d/e") == []
    known.learn_all((f"n/{number}", Fact(_FILE, False, 100.0)) for number in range(20))
    assert known.files_in("n") == [f"n/{number}" for number in range(12, 20)]
    known.forget_beneath("")
    assert len(known) == 0
    assert known._in == {}  # it takes no more room than the facts


def test_to_find_the_files_of_a_directory_no_other_facts_are_looked_at() -> None:
    """Else a walk through many directories would take time by the square of their number."""
    known = Known(known_s=10.0, missing_s=10.0, clock=lambda: 100.0)
    known.learn("d/a", Fact(_FILE, False, 99.0))
    known.learn_all((f"other/{number}", Fact(_FILE, False, 99.0)) for number in range(1000))
    facts = known._facts
    looked_at: list[str] = []

    class Watched(OrderedDict[str, Fact]):
        def __getitem__(self, path: str) -> Fact:
            looked_at.append(path)
            return super().__getitem__(path)

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all facts are gone through")

        items = values = keys = __iter__  # type: ignore[assignment]

    watched = Watched()
    for path, fact in facts.items():
        watched[path] = fact
    known._facts = watched
    assert known.files_in("d") == ["d/a"]
    assert looked_at == ["d/a"]
