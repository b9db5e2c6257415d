"""A keeper whose container alone is ended, while the pod goes on, takes nothing away; one that ends with its pod takes all."""

import signal
import time

import pytest

from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, is_running, view
from tests.host.mount_node import eventually
from tests.host.test_keeper_recovery import Reader, application, blocks_sigterm, end_cleanly

pytestmark = [pytest.mark.fuse, pytest.mark.root]
SUB = view("train", "sub", read_only=True)
SKEW_S = 0.5  # between the SIGTERMs of a kubelet that means both
# Whoever lives may take longer to say so on a busy machine than kubelet leaves us at a pod's end.
SETTLED = ("--settle-seconds", "1", "--answer-seconds", "8")


@pytest.fixture
def pod(make_pod: MakePod, request: pytest.FixtureRequest) -> Pod:
    """A live pod of a class with takeover, with a file, and a directory that has a view of its own. Its parameter: the keeper's flags."""
    flags = getattr(request, "param", SETTLED)
    pod = make_pod(KeeperMount(spec=directory_spec(takeover=True), views=(view("train"), SUB)), flags=flags)
    (pod.source("train") / "sub").mkdir()
    for directory in ("", "sub"):
        (pod.source("train") / directory / "file").write_text("content")
    return pod.start()


@pytest.fixture
def two(make_pod: MakePod) -> Pod:
    """A live pod with two volumes."""
    specs = [directory_spec(name, takeover=True, hung_after_s=60) for name in ("one", "two")]
    pod = make_pod(
        *(KeeperMount(spec=spec, views=(view(spec.volume),)) for spec in specs),
        flags=("--adopt-seconds", "2", "--answer-seconds", "2.5"),
    )
    for spec in specs:
        (pod.source(spec.volume) / "file").write_text("content")
    return pod.start()


def told(pod: Pod, *numbers: signal.Signals) -> None:
    """Tell the keeper alone to end, and wait until it has."""
    for number in numbers or (signal.SIGTERM,):
        pod.keeper.send_signal(number)
        time.sleep(0.1)  # so that they are not one to the kernel
    assert pod.keeper.wait(20) == 0


def followed(pod: Pod) -> bool:
    """Tell whether the keeper that ended last has left everything to another one."""
    names = [name for name in pod.names() if name in ("another_keeper_follows", "pod_ends", "keeper_started")]
    return names[-1] == "another_keeper_follows"


def test_applications_notice_nothing_of_a_keeper_that_is_replaced_twice(pod: Pod) -> None:
    """A second SIGTERM says no more than the first: a kubelet that was restarted sends it once more."""
    reader = Reader(pod.node, pod.place("train") / "file", pod.node.work / "reader")
    app = application(pod.node, pod.place(SUB.name), pod.node.work / "app")
    try:
        second = Reader(app, pod.node.work / "app" / "file", pod.node.work / "second")
        before = pod.node.fuse_mounts()
        for _ in range(2):
            told(pod, *[signal.SIGTERM] * 3)
            assert followed(pod)
            assert pod.node.fuse_mounts() == before
            pod.start_keeper()
            pod.wait_ready()
        for application_s in (reader, second):
            assert application_s.goes_on()
            assert application_s.faults() == set()
            application_s.process.kill()
    finally:
        app.close()
    assert (pod.layers("train"), pod.layers(SUB.name)) == (1, 1)
    end_cleanly(pod)
    assert pod.daemons["train"].wait(20) == 0


def test_a_keeper_that_is_replaced_before_its_daemon_came_back_waits_for_it(pod: Pod) -> None:
    told(pod)
    pod.start_keeper()
    eventually(lambda: blocks_sigterm(pod.keeper.pid), every_s=0.001)  # as early as a signal is not lost
    told(pod)
    assert followed(pod)
    pod.start_keeper()
    pod.wait_ready()
    assert pod.layers("train") == 1
    end_cleanly(pod)


# With the time that a keeper waits by itself: what follows its SIGTERM may take a second on a busy machine.
unhurried = pytest.mark.parametrize("pod", [()], indirect=True, ids=["unhurried"])


@unhurried
def test_a_daemon_that_is_told_to_end_a_little_later_ends_the_pod_all_the_same(pod: Pod) -> None:
    """Without grace a kubelet tells all containers at the same time, as well as it can."""
    pod.keeper.send_signal(signal.SIGTERM)
    time.sleep(SKEW_S)
    assert pod.node.fuse_mounts() != []
    pod.daemons["train"].send_signal(signal.SIGTERM)
    assert pod.keeper.wait(10) == 0
    assert not followed(pod)
    end_cleanly_without_keeper(pod)


def end_cleanly_without_keeper(pod: Pod) -> None:
    """Check that the keeper, which has ended, has left nothing."""
    assert pod.node.fuse_mounts() == []
    assert pod.daemons["train"].wait(10) == 0


@unhurried
def test_a_daemon_that_dies_meanwhile_without_a_successor_ends_the_pod(pod: Pod) -> None:
    """Nobody but this keeper has the connection then, so another one could not go on with it."""
    pod.keeper.send_signal(signal.SIGTERM)
    eventually(lambda: "told_to_end" in pod.names())
    pod.kill_daemon()
    assert pod.keeper.wait(10) == 0
    assert not followed(pod)
    assert pod.node.fuse_mounts() == []


def test_sigint_is_the_end_whatever_lives(pod: Pod) -> None:
    told(pod, signal.SIGTERM, signal.SIGINT)
    assert pod.names().count("told_to_end") == 2
    end_cleanly_without_keeper(pod)


def test_one_volume_that_hangs_says_nothing_of_the_other(two: Pod) -> None:
    reader = Reader(two.node, two.place("two") / "file", two.node.work / "reader")
    two.stop_daemon("one")
    told(two)
    assert followed(two)
    two.kill_daemon("one")
    two.start_keeper()
    two.start_daemon("one")
    two.wait_ready()
    assert reader.goes_on()
    assert reader.faults() == set()
    assert (two.layers("one"), two.layers("two")) == (2, 1)
    end_cleanly(two)


def test_a_volume_that_only_this_keeper_holds_is_waited_for(two: Pod) -> None:
    """Its daemon's container is being restarted: left now, its files that are open would be lost."""
    reader = Reader(two.node, two.place("one") / "file", two.node.work / "reader")
    two.kill_daemon("one")
    two.keeper.send_signal(signal.SIGTERM)
    time.sleep(3)
    assert is_running(two.keeper)
    two.start_daemon("one")
    assert two.keeper.wait(20) == 0
    assert followed(two)
    two.start_keeper()
    two.wait_ready()
    assert reader.goes_on()
    assert reader.faults() == set()
    assert (two.layers("one"), two.layers("two")) == (1, 1)
    end_cleanly(two)
