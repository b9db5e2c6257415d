"""What the observer makes of the numbers that keepers' logs tell."""

from typing import Any

import pytest

from sidemount.model.keeper_log import KeeperEvent, parse_line
from tests.webhook.observer.observed import line, samples, view, watchtower
from webhook.observer.pod_view import PodView
from webhook.observer.watchtower import Since, Watchtower

_REQUESTS = "sidemount_objects_store_requests_total"
_DRAFTS = "sidemount_objects_drafts"


def heard(instance: Any, numbers: Any, **fields: Any) -> list[KeeperEvent]:
    """Return what a line of the log is."""
    event = parse_line(line("volume_counted", instance=instance, numbers=numbers, **fields))
    return [event] if event is not None else []


def leading(counted_ms: int = 0) -> Watchtower:
    """Return an observer that leads. It knows no class, so all are `other`."""
    tower = watchtower()
    tower._since = Since(told_ms=0, counted_ms=counted_ms)
    return tower


def shown(tower: Watchtower, name: str) -> float | None:
    """Return what a metric says of the class."""
    found = {dict(labels)["class"]: value for labels, value in samples(tower, name).items()}
    return found.get("other")


def tell(tower: Watchtower, found: PodView, *events: list[KeeperEvent]) -> None:
    """Have lines read."""
    tower._read(found, [event for each in events for event in each])


def test_reports_of_all_processes_are_added_up_by_class() -> None:
    tower = leading()
    tell(tower, view(), heard(1, {}), heard(1, {"store_requests": 5, "write_drafts": 2}))
    tell(tower, view(), heard(2, {}), heard(2, {"store_requests": 4, "write_drafts": 1}))
    assert shown(tower, _REQUESTS) == 9
    assert shown(tower, _DRAFTS) == 1


def test_what_an_earlier_observer_has_counted_is_not_counted_again() -> None:
    tower = leading(counted_ms=1 << 60)
    tell(tower, view(), heard(1, {}), heard(1, {"store_requests": 5}))
    tower._since = Since(told_ms=0, counted_ms=0)
    tell(tower, view(), heard(1, {"store_requests": 7}))
    assert shown(tower, _REQUESTS) == 2


def test_of_a_pod_that_is_over_nothing_is_there_and_its_counts_stay() -> None:
    tower = leading()
    tell(tower, view(), heard(1, {}))
    last = [heard(1, {"store_requests": requests, "write_drafts": 2}) for requests in (5, 8)]
    tell(tower, view(phase="Succeeded"), *last)
    assert shown(tower, _REQUESTS) == 8
    assert shown(tower, _DRAFTS) == 0
    assert len(tower._objects) == 0


def test_a_pod_whose_last_words_came_before_its_end_is_over_all_the_same() -> None:
    tower = leading()
    tell(tower, view(), heard(1, {}), heard(1, {"store_requests": 5, "write_drafts": 2}))
    tell(tower, view(phase="Succeeded"))  # which is read once more, and says nothing new
    assert shown(tower, _DRAFTS) == 0
    assert len(tower._objects) == 0


def test_a_pod_that_is_gone_is_forgotten() -> None:
    tower = leading()
    tell(tower, view(), heard(1, {}), heard(1, {"store_requests": 5, "write_drafts": 2}))
    tower._seen(view(), None)
    assert len(tower._objects) == 0
    assert shown(tower, _DRAFTS) == 0


def test_whoever_does_not_lead_says_nothing_of_what_there_is_now() -> None:
    tower = leading()
    tell(tower, view(), heard(1, {"write_drafts": 2}))
    tower._leads = lambda: False  # type: ignore[method-assign]  # another one does
    assert shown(tower, _DRAFTS) is None
    assert shown(tower, _REQUESTS) == 0


@pytest.mark.parametrize(
    ("instance", "numbers", "fields"),
    [
        pytest.param("1", {"store_requests": 1}, {}, id="instance"),
        pytest.param(-1, {"store_requests": 1}, {}, id="negative instance"),
        pytest.param(1, [1], {}, id="no object"),
        pytest.param(1, {str(n): 1 for n in range(300)}, {}, id="too many"),
        pytest.param(1, {"store_requests": 1}, {"volume": "another"}, id="a volume that the pod has not"),
    ],
)
def test_a_forged_line_counts_nothing(instance: Any, numbers: Any, fields: Any) -> None:
    tower = leading()
    tell(tower, view(), heard(1, {}), heard(instance, numbers, **fields))
    assert shown(tower, _REQUESTS) == 0


@pytest.mark.parametrize("value", [-1, 1 << 63, 1.5, True, "7", None, [7]])
def test_a_forged_number_counts_nothing(value: Any) -> None:
    tower = leading()
    tell(tower, view(), heard(1, {}), heard(1, {"store_requests": value, "no_such": 1}))
    assert shown(tower, _REQUESTS) == 0
