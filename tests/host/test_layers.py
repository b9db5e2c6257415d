"""Remounts without end: the number of stacked mounts is bounded, in every namespace, told, and nothing is left when the pod ends."""

import os
import signal

import pytest

from sidemount.model.mountinfo import layers_at
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import directory_spec, view
from tests.host.mount_node import MountNode, eventually
from tests.host.test_external_clients import client_spec
from tests.host.test_keeper_recovery import Reader, application, end_cleanly

pytestmark = [pytest.mark.fuse, pytest.mark.root]
BOUND = 4
REMOUNTS = 9
SUB = view("train", "sub", read_only=True)


def test_more_remounts_than_the_bound_leave_the_bound(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(), views=(view("train"), SUB)))
    (pod.source("train") / "file").write_text("content")
    (pod.source("train") / "sub").mkdir()
    (pod.source("train") / "sub" / "file").write_text("content")
    pod.start_keeper("tests.host.few_layers", str(BOUND), "--")
    pod.start_daemon()
    pod.wait_ready()
    at = pod.node.work / "app"
    app = application(pod.node, pod.place(SUB.name), at)
    reader = Reader(app, at / "file", pod.node.work / "reader")
    writer = pod.node.start(["sh", "-c", f"while :; do echo x > {pod.place('train')}/w; done"])
    seen: list[tuple[int, int, int]] = []
    for number in range(1, REMOUNTS + 1):
        os.kill(pod.serving(), signal.SIGKILL)
        eventually(lambda number=number: pod.names().count("volume_mounted") == number + 1)  # type: ignore[misc]  # a lambda's default
        pod.wait_ready()
        assert reader.goes_on()
        seen.append((pod.layers("train"), pod.layers(SUB.name), len(layers_at(app.mounts(), str(at))) - 1))
    assert max(max(layers) for layers in seen) <= BOUND
    assert min(layers[0] for layers in seen[BOUND:]) == 2, "what is too much is taken off, all but the lowest"
    told = [event["layers"] for event in pod.events() if event["event"] == "volume_mounted"]
    assert told[0] == 1
    assert max(told) == BOUND
    for process in (reader.process, writer):
        process.kill()
        process.wait(20)
    app.close()
    end_cleanly(pod)


def test_a_client_that_mounts_by_itself_adds_layers_up_to_the_bound_too(
    make_pod: MakePod, node: MountNode
) -> None:
    origin = node.work / "origin"
    origin.mkdir()
    (origin / "file").write_text("content")
    spec = client_spec("bindfs", "-f", str(origin), "${mountpoint}", descriptor=False)
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"),)))
    pod.start_keeper("tests.host.few_layers", str(BOUND), "--")
    pod.start_daemon()
    pod.wait_ready()
    for _ in range(BOUND + 1):
        pod.kill_daemon()
        pod.start_daemon()
        pod.wait_ready()
        assert (pod.seen("train") / "file").read_text() == "content"
        assert pod.layers("train") <= BOUND
        assert pod.layers("train.client") == 1
    end_cleanly(pod)
