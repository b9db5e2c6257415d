"""When a daemon takes the mounts of a dead keeper away: every combination of what is known."""

from dataclasses import replace

import pytest

from sidecar.open_handles import OpenHandles
from sidecar.orphaned_mounts import ALONE_S, QUIET_S, TOLD_S, Evidence, is_abandoned
from sidemount.host.limits import Limits
from sidemount.host.mount_points import is_mount_point_of

END = Evidence(told_s=TOLD_S, alone_s=ALONE_S, quiet_s=QUIET_S, open_handles=0, is_fresh=True)


def test_all_that_speaks_for_the_end_together_is_enough() -> None:
    assert is_abandoned(END)
    assert is_abandoned(replace(END, told_s=20, alone_s=100, quiet_s=50))


@pytest.mark.parametrize(
    "against",
    [
        pytest.param({"told_s": TOLD_S - 0.01}, id="told only now"),
        pytest.param({"alone_s": ALONE_S - 0.01}, id="a keeper was there"),
        pytest.param({"quiet_s": QUIET_S - 0.01}, id="requests"),
        pytest.param({"open_handles": 1}, id="a file is open"),
        pytest.param({"open_handles": None}, id="who serves cannot count"),
        pytest.param({"is_fresh": False}, id="who serves is silent"),
    ],
)
def test_anything_against_it_is_enough_not_to(against: dict[str, float | None]) -> None:
    for seconds in (0.0, 1000.0):
        later = replace(END, told_s=TOLD_S + seconds, alone_s=ALONE_S + seconds, quiet_s=QUIET_S + seconds)
        assert not is_abandoned(replace(later, **against))  # type: ignore[arg-type]


def test_a_keeper_that_serves_is_never_taken_for_dead_while_it_decides() -> None:
    assert Limits().answer_s < ALONE_S


def test_only_the_places_of_the_volume_itself_are_touched() -> None:
    names = ["train", "train.4f2c", "train.client", "train2", "trainer.4f2c", "other", ".train", "tr"]
    assert [name for name in names if is_mount_point_of("train", name)] == names[:3]


def test_handles_are_counted_once_whoever_opened_them() -> None:
    handles = OpenHandles({1, 2})
    handles.file_opened(1)  # asked again of a successor
    handles.directory_opened(3)
    handles.file_opened(3)
    assert len(handles) == 4
    for _ in range(2):
        handles.file_closed(1)
        handles.directory_closed(2)
        handles.file_closed(3)
    assert len(handles) == 1
    handles.directory_closed(3)
    assert len(handles) == 0
