"""The controller service over a real socket: each row of the error table, repeats, crowds, pages."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csi.proto import csi_pb2
from csi.volume_state import VolumeState, encode_volume
from tests.csi.controlled import MIB, Controlled, capability
from tests.csi.plugin import Refused
from tests.host.mount_node import MountNode, eventually, scratch_directory

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def running() -> Iterator[Controlled]:
    with scratch_directory() as work:
        node = MountNode(work)
        controller = Controlled(node)
        try:
            yield controller.start()
        finally:
            controller.end()
            node.close()


@pytest.fixture
def controller(running: Controlled) -> Iterator[Controlled]:
    """Return a controller whose pool is empty, and check that it is so again."""
    yield running
    assert running.in_pool() == []


@pytest.fixture
def volume(controller: Controlled) -> Iterator[csi_pb2.Volume]:
    yield controller.create("vol")
    controller.delete("vol")


def _code(controller: Controlled, method: str, request: Any) -> int:
    """Return the code of the answer, by its number; of an error without a word, -1."""
    try:
        controller.ask(method, request)
    except Refused as refused:
        return int(refused.code.value[0]) if refused.message else -1
    return 0


# What is told ----------------------------------------------------------------------------------------


def test_what_a_controller_is(controller: Controlled) -> None:
    info = controller.call("Identity", "GetPluginInfo", csi_pb2.GetPluginInfoRequest())
    assert info.name == "csi.sidemount.io"
    answer = controller.ask("ControllerGetCapabilities", csi_pb2.ControllerGetCapabilitiesRequest())
    of_rpc = csi_pb2.ControllerServiceCapability.RPC
    assert {of_rpc.Type.Name(each.rpc.type) for each in answer.capabilities} == {
        *("CREATE_DELETE_VOLUME", "CREATE_DELETE_SNAPSHOT", "LIST_SNAPSHOTS", "LIST_VOLUMES"),
        *("CLONE_VOLUME", "EXPAND_VOLUME", "SINGLE_NODE_MULTI_WRITER", "GET_CAPACITY"),
        *("GET_VOLUME", "GET_SNAPSHOT"),
    }


def test_every_instance_says_the_same_of_the_plugin(controller: Controlled) -> None:
    """S4-04: and neither topology nor anything else that is not there."""
    answer = controller.call("Identity", "GetPluginCapabilities", csi_pb2.GetPluginCapabilitiesRequest())
    kinds = csi_pb2.PluginCapability
    assert list(answer.capabilities) == [
        kinds(service=kinds.Service(type=kinds.Service.CONTROLLER_SERVICE)),
        kinds(volume_expansion=kinds.VolumeExpansion(type=kinds.VolumeExpansion.ONLINE)),
    ]


@pytest.mark.parametrize(
    "method", ["ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerModifyVolume"]
)
def test_what_is_not_advertised_is_unimplemented(controller: Controlled, method: str) -> None:
    with pytest.raises(Refused) as refused:
        controller.call_raw("Controller", method, b"")
    assert refused.value.code.name == "UNIMPLEMENTED"


@pytest.mark.parametrize("service", ["Node", "GroupController", "SnapshotMetadata"])
def test_a_service_that_is_not_there_is_unimplemented(controller: Controlled, service: str) -> None:
    with pytest.raises(Refused) as refused:
        controller.call_raw(service, "NodeGetInfo", b"")
    assert refused.value.code.name == "UNIMPLEMENTED"


# The error table -------------------------------------------------------------------------------------

Change = Callable[[csi_pb2.CreateVolumeRequest], Any]

CREATES: list[Any] = [
    pytest.param(lambda r: setattr(r, "name", ""), 3, id="no name"),
    pytest.param(lambda r: setattr(r, "name", "n" * 129), 3, id="long name"),
    pytest.param(lambda r: setattr(r, "name", "a\0"), 3, id="NUL"),
    pytest.param(lambda r: r.ClearField("volume_capabilities"), 3, id="no capability"),
    pytest.param(lambda r: r.volume_capabilities[0].ClearField("mount"), 3, id="no access type"),
    pytest.param(lambda r: r.volume_capabilities[0].block.SetInParent(), 3, id="block"),
    pytest.param(lambda r: r.volume_capabilities[0].ClearField("access_mode"), 3, id="no mode"),
    pytest.param(lambda r: r.parameters.update(nonesuch="1"), 3, id="unknown parameter"),
    pytest.param(lambda r: r.parameters.update({"x" * 3000: "y" * 3000}), 3, id="large parameters"),
    pytest.param(lambda r: r.mutable_parameters.update(iops="1"), 3, id="mutable parameters"),
    pytest.param(lambda r: setattr(r.capacity_range, "required_bytes", -1), 3, id="negative size"),
    pytest.param(lambda r: setattr(r.capacity_range, "limit_bytes", 5), 11, id="limit below required"),
    pytest.param(lambda r: setattr(r.capacity_range, "required_bytes", 1 << 62), 11, id="too large"),
    pytest.param(lambda r: r.volume_content_source.SetInParent(), 3, id="source of no kind"),
    pytest.param(
        lambda r: setattr(r.volume_content_source.snapshot, "snapshot_id", "gone"), 5, id="no snapshot"
    ),
    pytest.param(lambda r: setattr(r.volume_content_source.volume, "volume_id", "gone"), 5, id="no volume"),
    pytest.param(lambda r: setattr(r.volume_content_source.volume, "volume_id", "../../etc"), 5, id="a path"),
    pytest.param(lambda r: r.volume_content_source.snapshot.SetInParent(), 3, id="source without an id"),
]


@pytest.mark.parametrize(("change", "code"), CREATES)
def test_a_create_that_is_refused_leaves_nothing(controller: Controlled, change: Change, code: int) -> None:
    request = controller.create_request("vol")
    change(request)
    assert _code(controller, "CreateVolume", request) == code
    assert controller.in_pool() == []


def test_topology_and_secrets_are_passed_over(controller: Controlled) -> None:
    """S4-04, S4-26: and no secret is told or kept."""
    request = controller.create_request("vol")
    request.accessibility_requirements.requisite.add(segments={"zone": "a"})
    request.secrets["key"] = "c4nary"
    answer = controller.ask("CreateVolume", request)
    assert not answer.volume.accessible_topology
    kept = [path.read_bytes() for path in (controller.pool / "volumes" / "vol").glob("*") if path.is_file()]
    assert all(b"c4nary" not in content for content in kept)
    assert "c4nary" not in controller.log.read_text()
    controller.delete("vol")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda r: setattr(r.capacity_range, "required_bytes", 2 * MIB), 6),
        (lambda r: setattr(r.capacity_range, "limit_bytes", 2 * MIB), 0),
        (lambda r: r.parameters.update(subPath="a"), 6),
        (lambda r: setattr(r.volume_content_source.volume, "volume_id", "vol"), 6),
        (lambda r: setattr(r.volume_capabilities[0].access_mode, "mode", 1), 0),
        (lambda r: r.parameters.update({"csi.storage.k8s.io/pvc/name": "x"}), 0),
    ],
)
def test_a_volume_of_the_same_name(
    controller: Controlled, volume: csi_pb2.Volume, change: Change, code: int
) -> None:
    """S4-21: compatible is the same, different is a conflict, and neither changes anything."""
    request = controller.create_request("vol")
    change(request)
    assert _code(controller, "CreateVolume", request) == code
    assert controller.create("vol") == volume


OTHERS: list[Any] = [
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(), 3),
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="gone"), 0),
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="../volumes/vol"), 0),
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="."), 0),
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id=".."), 0),
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="vol/data"), 0),
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="v" * 5000), 0),
    pytest.param("DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="a\0b"), 0),
    pytest.param("ControllerGetVolume", csi_pb2.ControllerGetVolumeRequest(), 3),
    pytest.param("ControllerGetVolume", csi_pb2.ControllerGetVolumeRequest(volume_id="gone"), 5),
    pytest.param("ControllerGetVolume", csi_pb2.ControllerGetVolumeRequest(volume_id="vol"), 0),
    pytest.param("ListVolumes", csi_pb2.ListVolumesRequest(starting_token="bad"), 10),
    pytest.param("ListVolumes", csi_pb2.ListVolumesRequest(max_entries=-1), 3),
    pytest.param("GetCapacity", csi_pb2.GetCapacityRequest(), 0),
    pytest.param("GetCapacity", csi_pb2.GetCapacityRequest(parameters={"nonesuch": "1"}), 3),
    pytest.param("CreateSnapshot", csi_pb2.CreateSnapshotRequest(source_volume_id="vol"), 3),
    pytest.param("CreateSnapshot", csi_pb2.CreateSnapshotRequest(name="s"), 3),
    pytest.param("CreateSnapshot", csi_pb2.CreateSnapshotRequest(name="s", source_volume_id="gone"), 5),
    pytest.param("CreateSnapshot", csi_pb2.CreateSnapshotRequest(name="s", source_volume_id="../vol"), 5),
    pytest.param(
        "CreateSnapshot",
        csi_pb2.CreateSnapshotRequest(name="s", source_volume_id="vol", parameters={"nonesuch": "1"}),
        3,
    ),
    pytest.param("CreateSnapshot", csi_pb2.CreateSnapshotRequest(name="s\0", source_volume_id="vol"), 3),
    pytest.param("DeleteSnapshot", csi_pb2.DeleteSnapshotRequest(), 3),
    pytest.param("DeleteSnapshot", csi_pb2.DeleteSnapshotRequest(snapshot_id="gone"), 0),
    pytest.param("DeleteSnapshot", csi_pb2.DeleteSnapshotRequest(snapshot_id="../volumes/vol"), 0),
    pytest.param("ListSnapshots", csi_pb2.ListSnapshotsRequest(starting_token="bad"), 10),
    pytest.param("ListSnapshots", csi_pb2.ListSnapshotsRequest(max_entries=-1), 3),
    pytest.param("ListSnapshots", csi_pb2.ListSnapshotsRequest(snapshot_id="gone"), 0),
    pytest.param("ListSnapshots", csi_pb2.ListSnapshotsRequest(source_volume_id="gone"), 0),
    pytest.param("ListSnapshots", csi_pb2.ListSnapshotsRequest(snapshot_id="../../x"), 0),
    pytest.param("GetSnapshot", csi_pb2.GetSnapshotRequest(), 3),
    pytest.param("GetSnapshot", csi_pb2.GetSnapshotRequest(snapshot_id="gone"), 5),
    pytest.param("ControllerExpandVolume", csi_pb2.ControllerExpandVolumeRequest(), 3),
    pytest.param(
        "ControllerExpandVolume", csi_pb2.ControllerExpandVolumeRequest(volume_id="vol"), 3, id="no range"
    ),
    pytest.param(
        "ControllerExpandVolume",
        csi_pb2.ControllerExpandVolumeRequest(
            volume_id="gone", capacity_range=csi_pb2.CapacityRange(required_bytes=5)
        ),
        5,
        id="expand what is gone",
    ),
    pytest.param(
        "ControllerExpandVolume",
        csi_pb2.ControllerExpandVolumeRequest(
            volume_id="vol", capacity_range=csi_pb2.CapacityRange(required_bytes=1 << 62)
        ),
        11,
        id="expand too far",
    ),
    pytest.param(
        "ControllerExpandVolume",
        csi_pb2.ControllerExpandVolumeRequest(
            volume_id="vol", capacity_range=csi_pb2.CapacityRange(limit_bytes=5)
        ),
        11,
        id="shrink by a limit",
    ),
    pytest.param(
        "ControllerExpandVolume",
        csi_pb2.ControllerExpandVolumeRequest(
            volume_id="vol",
            capacity_range=csi_pb2.CapacityRange(required_bytes=5),
            volume_capability=csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume()),
        ),
        3,
        id="expand a block volume",
    ),
    pytest.param(
        "ValidateVolumeCapabilities", csi_pb2.ValidateVolumeCapabilitiesRequest(), 3, id="validate nothing"
    ),
    pytest.param(
        "ValidateVolumeCapabilities",
        csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id="vol"),
        3,
        id="validate no capability",
    ),
    pytest.param(
        "ValidateVolumeCapabilities",
        csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id="gone", volume_capabilities=[capability()]),
        5,
        id="validate what is gone",
    ),
]


@pytest.mark.parametrize(("method", "request_", "code"), OTHERS)
def test_the_error_table(
    controller: Controlled, volume: csi_pb2.Volume, method: str, request_: Any, code: int
) -> None:
    """S4-24, S2-17, S2-35, S4-16: the code of each row, and the volume that is there remains as it is."""
    for _ in range(2):
        assert _code(controller, method, request_) == code
    assert controller.create("vol") == volume


def test_capabilities_are_confirmed_of_what_is_there(controller: Controlled, volume: csi_pb2.Volume) -> None:
    """S2-35."""
    request = csi_pb2.ValidateVolumeCapabilitiesRequest(
        volume_id="vol",
        volume_capabilities=[capability(mode) for mode in range(1, 8)],
        volume_context=volume.volume_context,
    )
    answer = controller.ask("ValidateVolumeCapabilities", request)
    assert list(answer.confirmed.volume_capabilities) == list(request.volume_capabilities)
    assert answer.confirmed.volume_context == volume.volume_context
    changes: list[Callable[[Any], Any]] = [
        lambda r: r.volume_capabilities[0].block.SetInParent(),
        lambda r: r.volume_context.update(volume="another"),
        lambda r: r.parameters.update(subPath="a"),
        lambda r: r.volume_capabilities[0].mount.mount_flags.append("nonesuch"),
    ]
    for change in changes:
        other = csi_pb2.ValidateVolumeCapabilitiesRequest()
        other.CopyFrom(request)
        change(other)
        answer = controller.ask("ValidateVolumeCapabilities", other)
        assert not answer.HasField("confirmed")
        assert answer.message


# Again and at once -----------------------------------------------------------------------------------

NAMES = ["v", "n" * 128, "名前" * 21, "a\tb\n", "💾 disk", "..", "/etc/passwd", "csi-" + "0" * 40]


@pytest.mark.parametrize("name", NAMES)
def test_ten_times_the_same(controller: Controlled, name: str) -> None:
    """S4-21, S4-22, S4-23, S4-24, S0-05: everything ten times, under any name that CSI allows."""
    volumes = [controller.create(name) for _ in range(10)]
    assert volumes == [volumes[0]] * 10
    id_ = volumes[0].volume_id
    assert id_.replace("-", "").replace(".", "").isalnum()
    snapshots = [controller.cut(name, id_) for _ in range(10)]
    assert snapshots == [snapshots[0]] * 10
    for _ in range(10):
        assert controller.expand(id_, 3 * MIB).capacity_bytes == 3 * MIB
        assert controller.volumes().entries[0].volume.capacity_bytes == 3 * MIB
    restored = [controller.restore("restored", snapshots[0].snapshot_id) for _ in range(10)]
    assert restored == [restored[0]] * 10
    for _ in range(10):
        controller.delete_snapshot(snapshots[0].snapshot_id)
        controller.delete(id_)
        controller.delete("restored")


def test_twenty_at_once(controller: Controlled) -> None:
    """S4-21: all of them get the same volume, snapshot and clone, and twenty different ones are twenty."""

    def story(number: int) -> Any:
        volume = controller.create("shared")
        own = controller.create(f"own-{number}")
        snapshot = controller.cut("cut", "shared")
        clone = controller.restore("clone", "cut")
        return volume, snapshot, clone, own.volume_id

    with ThreadPoolExecutor(20) as crowd:
        answers = list(crowd.map(story, range(20)))
        assert len({str(answer[:3]) for answer in answers}) == 1
        assert {answer[3] for answer in answers} == {f"own-{number}" for number in range(20)}
        list(crowd.map(controller.delete, [f"own-{n}" for n in range(20)] + ["clone"] * 10))
        list(crowd.map(controller.delete_snapshot, ["cut"] * 20))
        list(crowd.map(controller.delete, ["shared"] * 20))


def test_creates_and_deletes_of_one_volume_at_once_end_in_one_of_both(controller: Controlled) -> None:
    def work(number: int) -> None:
        with contextlib.suppress(Refused):
            controller.create("v") if number % 2 else controller.delete("v")

    with ThreadPoolExecutor(8) as crowd:
        list(crowd.map(work, range(80)))
    controller.create("v")
    assert controller.in_pool() == ["volumes/v"]
    controller.delete("v")


# Sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("required", "limit", "expected"), [(5, 0, 5), (0, 7, 7), (5, 9, 5), (0, 0, 0), (1 << 60, 0, 1 << 60)]
)
def test_the_size_is_what_was_asked_for(
    controller: Controlled, required: int, limit: int, expected: int
) -> None:
    """S4-13."""
    assert controller.create("v", required, limit=limit).capacity_bytes == expected
    controller.delete("v")


def test_expansion_raises_and_never_lowers(controller: Controlled, volume: csi_pb2.Volume) -> None:
    """S4-17, S4-04."""
    answer = controller.expand("vol", 4 * MIB)
    assert (answer.capacity_bytes, answer.node_expansion_required) == (4 * MIB, False)
    assert controller.expand("vol", 2 * MIB).capacity_bytes == 4 * MIB
    assert controller.expand("vol", MIB, limit=8 * MIB).capacity_bytes == 4 * MIB
    controller.kill()
    controller.start()
    assert controller.volumes().entries[0].volume.capacity_bytes == 4 * MIB
    assert controller.create("vol").capacity_bytes == 4 * MIB


def test_capacity_is_what_the_pool_has(controller: Controlled) -> None:
    found = os.statvfs(controller.pool)
    answer = controller.ask("GetCapacity", csi_pb2.GetCapacityRequest())
    assert answer.available_capacity == pytest.approx(found.f_bavail * found.f_frsize, rel=0.2)
    assert answer.maximum_volume_size.value == answer.available_capacity
    unknown = csi_pb2.GetCapacityRequest(parameters={"class": "nonesuch"})
    assert controller.ask("GetCapacity", unknown).available_capacity == 0


# Lists -----------------------------------------------------------------------------------------------


def test_lists_come_in_pages_that_deletes_do_not_disturb(controller: Controlled) -> None:
    names = [f"v{number}" for number in range(7)]
    for name in names:
        controller.create(name)
        controller.cut(f"s-{name}", name)
    first = controller.volumes(max_entries=3)
    assert [entry.volume.volume_id for entry in first.entries] == names[:3]
    controller.delete(names[2])
    rest = controller.volumes(starting_token=first.next_token)
    assert [entry.volume.volume_id for entry in rest.entries] == names[3:]
    assert rest.next_token == ""
    assert controller.volumes(max_entries=6).next_token == ""
    snapshots = controller.snapshots(max_entries=5)
    after = controller.snapshots(starting_token=snapshots.next_token)
    found = [entry.snapshot.snapshot_id for entry in (*snapshots.entries, *after.entries)]
    assert found == [f"s-{name}" for name in names]
    of_one = controller.snapshots(source_volume_id=names[2])
    assert [entry.snapshot.snapshot_id for entry in of_one.entries] == [f"s-{names[2]}"]
    assert len(controller.snapshots(snapshot_id="s-v1").entries) == 1
    assert not controller.snapshots(snapshot_id="s-v1", source_volume_id="v2").entries
    for name in names:
        controller.delete(name)
        controller.delete_snapshot(f"s-{name}")


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_volumes_are_listed(controller: Controlled, count: int) -> None:
    state = VolumeState(
        id="x",
        name="x",
        pool=str(controller.pool),
        capacity_bytes=MIB,
        limit_bytes=MIB,
        parameters={},
        context={"class": "pooled", "source": f"dir://{controller.pool}", "volume": "x" * 40},
    )
    place = controller.pool / "volumes"
    place.mkdir(exist_ok=True)
    text = json.loads(encode_volume(state))
    for number in range(count):
        name = f"pvc-{number:05}"
        (place / name).mkdir()
        (place / name / "volume.json").write_text(json.dumps({**text, "id": name}))
    found: list[str] = []
    token = ""
    while True:
        page = controller.volumes(starting_token=token, max_entries=count // 3)
        found += [entry.volume.volume_id for entry in page.entries]
        token = page.next_token
        if not token:
            break
    assert found == [f"pvc-{number:05}" for number in range(count)]
    assert len(controller.volumes().entries) == count
    for number in range(count):
        (place / f"pvc-{number:05}" / "volume.json").unlink()
        (place / f"pvc-{number:05}").rmdir()


# Not ours --------------------------------------------------------------------------------------------


def test_what_was_not_provisioned_is_never_touched(controller: Controlled) -> None:
    """S2-17: neither deleted nor told of nor made a source."""
    theirs = controller.pool / "volumes" / "theirs"
    (theirs / "data").mkdir(parents=True)
    (theirs / "data" / "precious").write_text("kept")
    controller.delete("theirs")
    assert (theirs / "data" / "precious").read_text() == "kept"
    assert not controller.volumes().entries
    assert (
        _code(controller, "ControllerGetVolume", csi_pb2.ControllerGetVolumeRequest(volume_id="theirs")) == 5
    )
    (theirs / "data" / "precious").unlink()
    (theirs / "data").rmdir()
    theirs.rmdir()


def test_a_link_that_a_tenant_has_planted_is_never_followed(controller: Controlled) -> None:
    elsewhere = controller.node.work / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    controller.create("v")
    data = controller.data("v")
    (data / "out").symlink_to(elsewhere)
    (data / "up").symlink_to("../../..")
    assert _code_of_clone(controller, subPath="out/made") == 9
    snapshot = controller.cut("s", "v")
    assert os.readlink(controller.pool / "snapshots" / "s" / "data" / "out") == str(elsewhere)
    assert snapshot.size_bytes == 0
    controller.delete_snapshot("s")
    controller.delete("v")
    assert controller.in_pool() == []
    assert [path.name for path in elsewhere.iterdir()] == ["precious"]
    (elsewhere / "precious").unlink()
    elsewhere.rmdir()


def _code_of_clone(controller: Controlled, **parameters: Any) -> int:
    request = controller.create_request("clone", MIB, **parameters)
    request.volume_content_source.volume.volume_id = "v"
    return _code(controller, "CreateVolume", request)


def test_a_volume_with_a_mount_in_it_is_not_deleted(controller: Controlled) -> None:
    controller.create("v")
    inner = controller.data("v") / "inner"
    inner.mkdir()
    controller.node.run("mount", "-t", "tmpfs", "theirs", inner)
    try:
        with pytest.raises(Refused, match="something is mounted") as refused:
            controller.delete("v")
        assert refused.value.code.name == "FAILED_PRECONDITION"
        with pytest.raises(Refused, match="something is mounted"):
            controller.cut("s", "v")
    finally:
        controller.node.run("umount", inner)
    controller.delete("v")


def test_a_record_that_is_broken_hides_no_other(controller: Controlled) -> None:
    controller.create("a")
    controller.create("b")
    record = controller.pool / "volumes" / "a" / "volume.json"
    text = record.read_text()
    record.write_text("{")
    assert [entry.volume.volume_id for entry in controller.volumes().entries] == ["b"]
    assert _code(controller, "DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id="a")) == 13
    record.write_text(text)
    controller.delete("a")
    controller.delete("b")


def test_without_its_pool_a_controller_says_so_and_goes_on_when_it_is_back(controller: Controlled) -> None:
    away = controller.node.work / "away"
    controller.create("v")
    controller.pool.rename(away)
    try:
        for call in (lambda: controller.create("w"), lambda: controller.delete("v"), controller.volumes):
            with pytest.raises(Refused, match="pool") as refused:
                call()
            assert refused.value.code.name == "UNAVAILABLE"
    finally:
        away.rename(controller.pool)
    assert controller.create("v").volume_id == "v"
    controller.delete("v")


# Wild ------------------------------------------------------------------------------------------------

_TEXT = st.text(max_size=30)


@given(name=_TEXT, source=_TEXT, parameters=st.dictionaries(_TEXT, _TEXT, max_size=2))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_texts_get_an_answer_of_the_table(
    controller: Controlled, name: str, source: str, parameters: dict[str, Any]
) -> None:
    request = csi_pb2.CreateSnapshotRequest(name=name, source_volume_id=source, parameters=parameters)
    assert _code(controller, "CreateSnapshot", request) in (3, 5)
    create = controller.create_request(name, **parameters)
    code = _code(controller, "CreateVolume", create)
    assert code in (0, 3, 7)
    if code == 0:
        controller.delete(controller.ask("CreateVolume", create).volume.volume_id)
    assert _code(controller, "DeleteVolume", csi_pb2.DeleteVolumeRequest(volume_id=source)) == (
        0 if source else 3
    )


@given(raw=st.binary(max_size=200))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_get_an_answer(controller: Controlled, raw: bytes) -> None:
    for method in ("CreateVolume", "ListSnapshots", "GetCapacity"):
        with contextlib.suppress(Refused):
            controller.call_raw("Controller", method, raw, timeout_s=20)
    for entry in controller.volumes().entries:
        controller.delete(entry.volume.volume_id)


def test_two_pools_are_one_store(node: MountNode) -> None:
    """A volume is found in whichever pool it lies; one that does not answer stands in nobody's way but its own."""
    other = node.work / "other"
    other.mkdir()
    pooled: dict[str, Any] = {"class": "pooled"}
    second: dict[str, Any] = {"class": "second"}
    controller = Controlled(node, flags=("--pool", str(other)))
    controller.offer("second", other)
    try:
        controller.start()
        with pytest.raises(Refused, match="several classes or pools"):
            controller.create("v")
        controller.create("v", **pooled)
        controller.create("w", **second)
        assert [entry.volume.volume_id for entry in controller.volumes().entries] == ["v", "w"]
        with pytest.raises(Refused) as refused:
            controller.create("v", **second)
        assert refused.value.code.name == "ALREADY_EXISTS"
        (controller.data("v") / "file").write_text("content")
        controller.clone("across", "v", **second)
        assert (other / "volumes" / "across" / "data" / "file").read_text() == "content"
        other.rename(node.work / "away")
        assert controller.create("v", **pooled).volume_id == "v"
        assert controller.create("new", **pooled).volume_id == "new"
        for undecided in ({}, second):
            with pytest.raises(Refused) as refused:
                controller.create("newer", **undecided)
            assert refused.value.code.name == "UNAVAILABLE"
        (node.work / "away").rename(other)
        for volume in ("v", "w", "across", "new"):
            controller.delete(volume)
        assert controller.in_pool() == []
        eventually(lambda: not any(Path(other / "volumes").iterdir()), what="both empty")
    finally:
        controller.end()
