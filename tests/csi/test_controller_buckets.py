"""The controller service with a pool in a bucket, over a real socket: alone, with a node, killed, and two at once."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from grpc import StatusCode

from csi.proto import csi_pb2
from tests.csi.bucket_plugin import InBucket
from tests.csi.controlled import MIB, Controlled, capability
from tests.csi.plugin import Refused
from tests.host.mount_node import MountNode, eventually, scratch_directory

pytestmark = pytest.mark.root
_STRIDE = 7  # of the points that one run dies at


@pytest.fixture(scope="module")
def running() -> Iterator[InBucket]:
    with scratch_directory() as work:
        node = MountNode(work)
        controller = InBucket(node)
        try:
            controller.start()
            yield controller
        finally:
            controller.end()
            node.close()


@pytest.fixture
def controller(running: InBucket) -> Iterator[InBucket]:
    """Return a controller whose pool is empty, and check that it is so again."""
    yield running
    assert running.in_pool() == []


@pytest.fixture
def unstarted(node: MountNode) -> Iterator[InBucket]:
    plugin = InBucket(node)
    try:
        yield plugin
    finally:
        plugin.end()


def test_what_a_bucket_cannot_do_is_not_advertised(controller: InBucket) -> None:
    answer = controller.ask("ControllerGetCapabilities", csi_pb2.ControllerGetCapabilitiesRequest())
    of_rpc = csi_pb2.ControllerServiceCapability.RPC.Type
    told = {of_rpc.Name(each.rpc.type) for each in answer.capabilities}
    assert told == {"CREATE_DELETE_VOLUME", "LIST_VOLUMES", "GET_CAPACITY", "EXPAND_VOLUME", "GET_VOLUME", "SINGLE_NODE_MULTI_WRITER"}  # fmt: skip
    made = controller.create("v")
    for call in (lambda: controller.cut("s", made.volume_id), lambda: controller.clone("c", made.volume_id)):
        with pytest.raises(Refused, match="no snapshots and no clones") as refused:
            call()
        assert refused.value.code is StatusCode.INVALID_ARGUMENT
    controller.delete(made.volume_id)


def test_the_life_of_a_volume(controller: InBucket) -> None:
    """S4-10, 11, 13, 16, 35: made, found, asked for again in every way, grown, deleted twice."""
    made = controller.create("pvc-1", MIB)
    assert made.capacity_bytes == MIB
    assert made.volume_context == {
        "class": "pooled",
        "source": controller.pool_name,
        "volume": made.volume_id,
    }
    with ThreadPoolExecutor(20) as crowd:
        assert list(crowd.map(lambda _: controller.create("pvc-1", MIB), range(40))) == [made] * 40
    for request in (
        controller.create_request("pvc-1", 2 * MIB),
        controller.create_request("pvc-1", MIB, fileMode="0600"),
    ):
        with pytest.raises(Refused) as refused:
            controller.ask("CreateVolume", request)
        assert refused.value.code is StatusCode.ALREADY_EXISTS
    assert controller.expand(made.volume_id, 4 * MIB).capacity_bytes == 4 * MIB
    assert controller.expand(made.volume_id, 2 * MIB).capacity_bytes == 4 * MIB
    found = controller.ask(
        "ControllerGetVolume", csi_pb2.ControllerGetVolumeRequest(volume_id=made.volume_id)
    )
    assert (found.volume.volume_id, found.volume.capacity_bytes) == (made.volume_id, 4 * MIB)
    valid = controller.ask(
        "ValidateVolumeCapabilities",
        csi_pb2.ValidateVolumeCapabilitiesRequest(
            volume_id=made.volume_id, volume_capabilities=[capability()], volume_context=made.volume_context
        ),
    )
    assert valid.confirmed.volume_context == made.volume_context
    controller.delete(made.volume_id)
    controller.delete(made.volume_id)
    with pytest.raises(Refused) as refused:
        controller.expand(made.volume_id, 8 * MIB)
    assert refused.value.code is StatusCode.NOT_FOUND


def test_pages_tell_everything_once_in_whatever_order_names_have(controller: InBucket) -> None:
    names = [
        "a",
        "a-b",
        "a.b",
        "a.0123456789ab",
        "a0",
        "A",
        "é/ü",
        "x" * 128,
        *(f"pvc-{n}" for n in range(12)),
    ]
    made = sorted(controller.create(name).volume_id for name in names)
    for most in (0, 1, 2, 7, 100):
        found: list[str] = []
        token = ""
        while True:
            page = controller.volumes(max_entries=most, starting_token=token)
            found += [entry.volume.volume_id for entry in page.entries]
            token = page.next_token
            if not token:
                break
        assert sorted(found) == made, most
    for id_ in made:
        controller.delete(id_)


def test_a_bucket_has_room_for_whatever_may_be_asked_for(controller: InBucket) -> None:
    answer = controller.ask("GetCapacity", csi_pb2.GetCapacityRequest(parameters={"class": "pooled"}))
    assert answer.available_capacity == 1 << 60
    assert answer.maximum_volume_size == Int64Value(value=1 << 60)
    answer = controller.ask("GetCapacity", csi_pb2.GetCapacityRequest(parameters={"class": "nobody"}))
    assert answer.available_capacity == 0


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"enforceCapacity": "true"}, "has no limit"),
        ({"endpoint": "http://x"}, "is not known"),
        ({"source": "s3://bucket/pool"}, "is no pool of this controller"),
        ({"subPath": "../x"}, "subPath"),
    ],
)
def test_parameters_that_are_refused(controller: InBucket, parameters: dict[str, str], told: str) -> None:
    named: dict[str, Any] = dict(parameters)
    with pytest.raises(Refused, match=told) as refused:
        controller.ask("CreateVolume", controller.create_request("v", **named))
    assert refused.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "first", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, _STRIDE + 1))]
)
def test_a_kill_at_any_point(unstarted: InBucket, first: int) -> None:
    """S4-21: what was half done is met by the same calls, or settled at the next start."""
    controller = unstarted
    controller.environment = {"DIES_AT": "0", "POINTS_TO": str(controller.node.work / "points")}

    def story() -> None:
        made = controller.create("v")
        for number in range(3):
            path = controller.pool / "deep" / "volumes" / made.volume_id / "d" / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        controller.expand(made.volume_id, 2 * MIB)
        controller.delete(made.volume_id)
        assert controller.in_pool() == []

    controller.start("tests.csi.dying_plugin")
    story()
    assert controller.stop() == 0
    points = len(Path(controller.environment["POINTS_TO"]).read_text().splitlines())
    assert points >= 12, points
    for number in range(first, points + 1, _STRIDE):
        controller.environment["DIES_AT"] = str(number)
        controller.start("tests.csi.dying_plugin")
        with pytest.raises((Refused, AssertionError)):
            story()
        controller.process.wait(10)
        assert controller.process.returncode == -signal.SIGKILL
        controller.environment["DIES_AT"] = "0"
        controller.start("tests.csi.dying_plugin")
        if any(".sidemount/gone/" in key for key in controller.held()):
            eventually(lambda: controller.held() == [], what="settled by itself", timeout_s=20)
        else:
            kept = controller.create("v", MIB, limit=2 * MIB)
            controller.delete(kept.volume_id)
            assert controller.in_pool() == []
        controller.stop()


@pytest.mark.fuse
def test_a_publisher_mounts_exactly_the_volume(unstarted: InBucket) -> None:
    """S4-01, S4-03: what is written lies beneath its prefix; another volume, and a later one of the name, sees nothing of it."""
    plugin = unstarted
    plugin.role = "all"
    plugin.start()
    first, second = plugin.create("first"), plugin.create("second", subPath="deep/er")
    plugin.publish_provisioned(first, "a")
    plugin.publish_provisioned(second, "b")
    (plugin.seen("a") / "d").mkdir()
    (plugin.seen("a") / "d" / "file").write_text("mine")
    assert os.listdir(plugin.seen("b")) == []
    (plugin.seen("b") / "file").write_text("other")
    assert f"volumes/{first.volume_id}/d/file" in plugin.held()
    assert f"volumes/{second.volume_id}/deep/er/file" in plugin.held()
    for name, volume in (("a", first), ("b", second)):
        plugin.unpublish(name, volume.volume_id)
    plugin.delete(first.volume_id)
    assert not any(first.volume_id in key for key in plugin.in_pool())
    again = plugin.create("first")
    plugin.publish_provisioned(again, "a")
    assert os.listdir(plugin.seen("a")) == []
    plugin.unpublish("a", again.volume_id)
    for volume in (again, second):
        plugin.delete(volume.volume_id)
    assert plugin.in_pool() == []


@pytest.mark.fuse
def test_nobody_names_a_key_of_the_pool(unstarted: InBucket) -> None:
    """Neither the pool, nor its records, nor a volume by its prefix, nor one with another id."""
    plugin = unstarted
    plugin.role = "all"
    plugin.start()
    made = plugin.create("v")
    pool = plugin.pool_name
    for context in (
        {"source": pool},
        {"source": f"{pool}/.sidemount"},
        {"source": f"{pool}/volumes/{made.volume_id}"},
        {"source": os.path.dirname(pool)},
        {"source": f"dir://{plugin.pool}"},
    ):
        request = plugin.provisioned_request(made, "t")
        request.volume_context.clear()
        request.volume_context.update(context)
        for name in ("pooled", "directory"):
            request.volume_context["class"] = name
            with pytest.raises(Refused) as refused:
                plugin.call("Node", "NodePublishVolume", request)
            assert refused.value.code in (StatusCode.PERMISSION_DENIED, StatusCode.INVALID_ARGUMENT)
            assert "PersistentVolumeClaim" in refused.value.message, refused.value.message
    request = plugin.provisioned_request(made, "t")
    request.volume_id = "v.000000000000"
    with pytest.raises(Refused, match="is not the volume_id"):
        plugin.call("Node", "NodePublishVolume", request)
    plugin.delete(made.volume_id)


def test_a_removal_that_takes_long_goes_on(unstarted: InBucket) -> None:
    """ABORTED, and the same call finds it done; meanwhile the volume is not there for anybody."""
    controller = unstarted
    controller.flags = ("--operation-wait-seconds", "0.001")
    controller.start()

    def patiently(call: Callable[[], Any]) -> Any:
        answers: list[Any] = []

        def is_answered() -> bool:
            try:
                answers.append(call())
            except Refused as refused:
                if refused.code is not StatusCode.ABORTED:
                    raise
                return False
            return True

        eventually(is_answered, what="an answer", timeout_s=30)
        return answers[0]

    made = patiently(lambda: controller.create("v"))
    directory = controller.pool / "deep" / "volumes" / made.volume_id
    directory.mkdir(parents=True)
    for number in range(2500):
        (directory / str(number)).touch()
    with pytest.raises(Refused, match="ask again"):
        controller.delete(made.volume_id)
    eventually(lambda: not controller.volumes().entries, what="nobody finds it", timeout_s=30)
    again = patiently(lambda: controller.create("v"))
    assert again.volume_id != made.volume_id
    patiently(lambda: controller.delete(made.volume_id))
    assert not directory.exists()
    patiently(lambda: controller.delete(again.volume_id))
    assert controller.in_pool() == []


def test_a_bucket_that_nobody_can_look_into_holds_no_directory_up(node: MountNode) -> None:
    """A pool that has no class yet: what is in the other pool is made, cut, cloned and deleted; a list of all is refused."""
    controller = Controlled(node, ("--pool", "s3://nowhere/pool"))
    try:
        controller.start()
        for _ in range(2):
            made = controller.create("v", MIB)
            controller.cut("s", made.volume_id)
            copy = controller.clone("c", made.volume_id, MIB)
            restored = controller.restore("r", "s", MIB)
            controller.expand(copy.volume_id, 2 * MIB)
            for volume in (made, copy, restored):
                controller.delete(volume.volume_id)
            controller.delete_snapshot("s")
        assert controller.in_pool() == []
        for call in (controller.volumes, lambda: controller.delete("v.0123456789ab")):
            with pytest.raises(Refused, match="no driver class provisions from it") as refused:
                call()
            assert refused.value.code is StatusCode.FAILED_PRECONDITION
        assert controller.events("not_settled") == []
    finally:
        controller.end()
