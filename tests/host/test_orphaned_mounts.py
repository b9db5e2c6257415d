"""A keeper that is dead when its pod ends: the daemon takes the mounts away, unless anything speaks for the pod going on."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import PYTHON, Pod, directory_spec, is_running, view
from tests.host.mount_node import MountNode, eventually
from tests.host.test_keeper_recovery import Reader

pytestmark = [pytest.mark.fuse, pytest.mark.root]
SUB = view("train", "sub", read_only=True)
ENOUGH_S = 15.0


class OwnNamespace:
    """Starts daemons in a mount namespace that has none of the pod's mounts, as containers are."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.node = MountNode(pod.node.work, parent=pod.node)
        self.node.run("mount", "--make-rprivate", "/")

    def start_daemon(self, volume: str, *flags: str, uid: int = 0) -> None:
        pod = self.pod
        argv = [PYTHON, "-m", "sidecar", "daemon", "--run-dir", str(pod.run_dir / volume)]
        self.pod.daemons[volume] = self.node.start(
            [*argv, "--source", str(pod.source(volume)), *flags],
            log=pod.daemon_log(volume),
            uid=uid or None,
        )


@pytest.fixture
def containers(make_pod: MakePod) -> Iterator[OwnNamespace]:
    """Daemons of a live pod of two volumes, in a namespace of their own."""
    pod = make_pod(
        KeeperMount(spec=directory_spec(takeover=True), views=(view("train"), SUB)),
        KeeperMount(spec=directory_spec("other", takeover=True), views=(view("other"),)),
        flags=("--answer-seconds", "2.5"),  # as long as a daemon that lives may need on a busy machine
    )
    (pod.source("train") / "sub").mkdir()
    (pod.source("train") / "file").write_text("content")
    (pod.source("other") / "file").write_text("content")
    containers = OwnNamespace(pod)
    try:
        pod.start_keeper()
        for volume in ("train", "other"):
            containers.start_daemon(volume)
        pod.wait_ready()
        yield containers
    finally:
        containers.node.close()


@pytest.fixture
def pod(containers: OwnNamespace) -> Pod:
    """Return that pod."""
    return containers.pod


def _kill_keeper(pod: Pod) -> None:
    pod.keeper.kill()
    pod.keeper.wait(20)


def _end_daemon(pod: Pod) -> None:
    pod.daemons["train"].send_signal(signal.SIGTERM)


def _mounted(pod: Pod) -> list[str]:
    return sorted(Path(mount.mount_point).name for mount in pod.node.fuse_mounts())


def test_mounts_of_a_dead_keeper_go_with_their_daemon_and_no_others(
    pod: Pod, containers: OwnNamespace
) -> None:
    (pod.seen("train") / "written").write_bytes(b"x" * 100_000)
    _kill_keeper(pod)
    _end_daemon(pod)
    assert pod.daemons["train"].wait(ENOUGH_S) == 0, pod.log_text()
    assert _mounted(pod) == ["other"], pod.log_text()
    assert (pod.source("train") / "file").read_text() == "content"
    assert (pod.source("train") / "written").stat().st_size == 100_000
    assert (pod.source("train") / "sub").is_dir()
    with pytest.raises(OSError, match="Too many levels"):
        (pod.seen("train") / "late").write_text("lost")
    pod.start_keeper()  # it was no pod's end
    containers.start_daemon("train")
    pod.wait_ready()
    assert _mounted(pod) == sorted(["other", "train", SUB.name])
    assert (pod.seen("train") / "file").read_text() == "content"


def test_nothing_is_taken_from_an_application_that_has_a_file_open(pod: Pod) -> None:
    reader = Reader(pod.node, pod.place("train") / "file", pod.node.work / "reader")
    before = _mounted(pod)
    _kill_keeper(pod)
    _end_daemon(pod)
    time.sleep(6)
    assert reader.goes_on()
    assert reader.faults() == set()
    assert is_running(pod.daemons["train"])
    assert _mounted(pod) == before
    reader.process.kill()
    assert pod.daemons["train"].wait(ENOUGH_S) == 0, pod.log_text()
    assert _mounted(pod) == ["other"]


def test_nothing_is_taken_from_an_idle_application_that_holds_a_file(pod: Pod) -> None:
    before = _mounted(pod)
    with (pod.seen("train") / "file").open() as held:
        _kill_keeper(pod)
        _end_daemon(pod)
        time.sleep(6)
        assert held.read() == "content"
        assert is_running(pod.daemons["train"])
        assert _mounted(pod) == before


def test_a_keeper_that_comes_back_in_time_finds_everything(pod: Pod, containers: OwnNamespace) -> None:
    before = pod.node.fuse_mounts()
    _kill_keeper(pod)
    _end_daemon(pod)
    eventually(lambda: "told_to_end" in pod.names(pod.daemon_log("train")), what="the daemon is alone")
    pod.start_keeper()
    assert pod.daemons["train"].wait(ENOUGH_S) == 0  # the keeper lets it go for its successor's sake
    assert "mounts_abandoned" not in pod.names(pod.daemon_log("train"))
    containers.start_daemon("train")
    pod.wait_ready()
    assert pod.node.fuse_mounts() == before
    assert (pod.seen("train") / "file").read_text() == "content"


def test_what_a_leaving_keeper_has_lent_is_given_up(pod: Pod) -> None:
    """An image that is pulled for a minute is no pod's end."""
    before = pod.node.fuse_mounts()
    pod.keeper.send_signal(signal.SIGTERM)
    assert pod.keeper.wait(10) == 0
    assert "another_keeper_follows" in pod.names()
    _end_daemon(pod)
    time.sleep(6)
    assert is_running(pod.daemons["train"])
    assert pod.node.fuse_mounts() == before
    pod.start_keeper()
    eventually(lambda: "daemon_came_back" in pod.names(), what="the keeper is found")


def test_a_daemon_without_any_privilege_can_do_it(make_pod: MakePod) -> None:
    uid = 65532
    pod = make_pod(KeeperMount(spec=directory_spec(takeover=True, uid=uid), views=(view("train"), SUB)))
    (pod.source("train") / "sub").mkdir()
    containers = OwnNamespace(pod)
    try:
        pod.start_keeper()
        containers.start_daemon("train", uid=uid)
        pod.wait_ready()
        assert pod.mounts_dir.stat().st_uid == 0
        _kill_keeper(pod)
        _end_daemon(pod)
        assert pod.daemons["train"].wait(ENOUGH_S) == 0, pod.log_text()
        assert _mounted(pod) == []
    finally:
        containers.node.close()


def test_what_a_daemon_has_left_half_removed_is_cleared_by_the_next_keeper(pod: Pod) -> None:
    aside = pod.mounts_dir / ".train"
    _kill_keeper(pod)
    pod.node.run("mkdir", aside)
    pod.node.run("mount", "--bind", pod.source("train"), aside)
    pod.start_keeper()
    pod.wait_ready()
    assert not os.path.lexists(pod.seen(".train"))
    assert pod.node.mounts_beneath(aside) == []
    assert (pod.source("train") / "file").read_text() == "content"
    assert (pod.seen("train") / "file").read_text() == "content"
