"""What a bucket's volume counts reaches whoever reads its keeper's log: over takeovers, and whatever releases meet."""

import os
import signal
from typing import Any

import pytest

from sidemount.model.keeper_log import by_volume, parse_line
from sidemount.model.mountspec import KeeperMount
from sidemount.model.object_numbers import ObjectTotals
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, view
from tests.host.mount_node import MountNode, eventually
from tests.host.test_keeper_recovery import end_cleanly
from tests.host.test_takeover import succession

pytestmark = [pytest.mark.fuse, pytest.mark.root]
_EARLIER = "tests.host.earlier_release"


@pytest.fixture
def pod(make_pod: MakePod, node: MountNode) -> Pod:
    """A pod with a directory of objects, not started."""
    objects = node.work / "objects"
    objects.mkdir()
    for number in range(20):
        (objects / f"f{number}").write_text("content")
    spec = directory_spec(
        driver_class="objects", source=f"file://{objects}", filesystem="objects", takeover=True
    )
    return make_pod(KeeperMount(spec=spec, views=(view("train"),)))


def start(pod: Pod, keeper: tuple[str, ...] = (), daemon: tuple[str, ...] = ("sidecar", "daemon")) -> None:
    """Start the pod's containers, of whatever release."""
    pod.start_keeper(*keeper)
    pod.start_daemon("train", entry=daemon)
    pod.wait_ready()


def start_counting(pod: Pod) -> None:
    """Start them, and wait until the daemon has told where it begins: what it counts from then on is news."""
    start(pod)
    eventually(lambda: len(counts(pod)) == 1, what="the first report")


def read(pod: Pod, *numbers: int) -> None:
    """Read files, 7 bytes each."""
    for number in numbers:
        assert (pod.seen("train") / f"f{number}").read_text() == "content"


def told(pod: Pod) -> dict[str, int]:
    """Return what whoever follows the log adds up."""
    totals = ObjectTotals()
    for line in pod.keeper_log.read_text().splitlines():
        event = parse_line(line)
        if event is not None and event.counted is not None:
            totals.take(event.volume, event.counted)
    return dict(totals.counted)


def counts(pod: Pod) -> list[dict[str, Any]]:
    """Return the lines that tell of numbers."""
    return [event for event in pod.events() if event["event"] == "volume_counted"]


def test_numbers_are_told_at_once_and_at_the_end_over_a_takeover(pod: Pod) -> None:
    start_counting(pod)
    read(pod, 0, 1, 2)
    # The first process is asked to end, not killed: what one has counted in its last seconds dies with it.
    before = pod.serving()
    pod.daemons["train"].send_signal(signal.SIGUSR1)
    eventually(lambda: pod.serving() != before, what="another process serves")
    eventually(lambda: len(counts(pod)) == 3, what="its last and the successor's first")
    read(pod, 3, 4)
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0
    assert told(pod)["read_store_bytes"] == 5 * 7
    assert [sum(line["instance"] == each["instance"] for each in counts(pod)) for line in counts(pod)] == [
        2
    ] * 4
    lines = [event for event in map(parse_line, pod.keeper_log.read_text().splitlines()) if event is not None]
    assert by_volume(lines)["train"].numbers["read_store_bytes"] == 2 * 7


def test_a_process_that_is_killed_costs_seconds_of_counting_and_nothing_is_counted_twice(pod: Pod) -> None:
    start_counting(pod)
    read(pod, 0)
    succession(pod)
    read(pod, 1, 2)
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0
    assert told(pod)["read_store_bytes"] in (2 * 7, 3 * 7)


def test_a_keeper_that_is_started_again_goes_on(pod: Pod) -> None:
    start_counting(pod)
    read(pod, 0)
    pod.keeper.kill()
    pod.keeper.wait(10)
    first = pod.keeper_log.read_text()
    read(pod, 1)
    pod.start_keeper()
    pod.wait_ready()
    eventually(lambda: bool(counts(pod)[first.count('"volume_counted"') :]), what="the new one is told")
    read(pod, 2)
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0
    instances = {line["instance"] for line in counts(pod)}
    assert len(instances) == 1
    assert told(pod)["read_store_bytes"] == 3 * 7


def test_an_earlier_keeper_passes_one_frame_over(pod: Pod) -> None:
    start(pod, keeper=(_EARLIER, "keeper"))
    read(pod, 0)
    succession(pod)
    read(pod, 1)
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0
    assert pod.names().count("bad_frame") == 1
    assert "keeper_lost" not in pod.names(pod.daemon_log("train"))


def test_an_earlier_daemon_is_told_nothing_that_it_does_not_know(pod: Pod) -> None:
    start(pod, daemon=(_EARLIER, "daemon"))
    read(pod, 0)
    succession(pod)
    read(pod, 1)
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0
    assert counts(pod) == []
    assert "bad_frame" not in pod.names()
    assert "keeper_lost" not in pod.names(pod.daemon_log("train"))


def test_a_keeper_is_replaced_by_a_later_and_by_an_earlier_one(pod: Pod) -> None:
    """Numbers begin with the one that knows them, and end with it."""
    start(pod, keeper=(_EARLIER, "keeper"))
    read(pod, 0)
    for entry in ((), (_EARLIER, "keeper")):
        pod.keeper.kill()
        pod.keeper.wait(10)
        pod.start_keeper(*entry)
        pod.wait_ready()
        read(pod, 1)
        if not entry:
            eventually(lambda: len(counts(pod)) == 1, what="the later one is told")
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0
    assert len(counts(pod)) == 1
    assert pod.names().count("bad_frame") == 2
    assert not os.listdir(pod.seen("train"))
