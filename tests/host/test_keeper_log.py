"""What a real keeper's log tells of everything that dies."""

import pytest

from sidemount.model.keeper_log import HealthState, VolumeHealth, by_volume, parse_line
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod
from tests.host.mount_node import eventually
from tests.host.test_takeover import succession, takeover_pod

pytestmark = [pytest.mark.fuse, pytest.mark.root]


def health(pod: Pod) -> VolumeHealth:
    lines = pod.keeper_log.read_text().splitlines()
    return by_volume(event for event in map(parse_line, lines) if event is not None)["train"]


def test_every_death_is_told_once_with_what_came_of_it(make_pod: MakePod) -> None:
    pod = takeover_pod(make_pod).start()
    assert (health(pod).state, health(pod).generation, health(pod).layers) == (HealthState.SERVING, 1, 1)
    succession(pod)
    eventually(lambda: health(pod).takeovers == 1)
    pod.kill_daemon()
    eventually(lambda: health(pod).state is HealthState.WAITING)
    pod.start_daemon()
    pod.wait_ready()
    eventually(lambda: health(pod).takeovers == 2)
    assert len(health(pod).stalls_ms) == 2
    assert 0 < health(pod).worst_stall_ms < 60_000
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.keeper_log.rename(pod.node.work / "before.log")
    pod.start_keeper()
    pod.wait_ready()
    assert (health(pod).state, health(pod).takeovers, health(pod).remounts) == (HealthState.SERVING, 0, 0)
    pod.keeper.kill()
    pod.kill_daemon()
    pod.keeper.wait(20)
    pod.start_keeper()
    pod.start_daemon()
    pod.wait_ready()
    eventually(lambda: health(pod).remounts == 1)
    assert (health(pod).state, health(pod).layers) == (HealthState.SERVING, 2)
    assert pod.end() == 0
    assert health(pod).state is HealthState.DETACHED
