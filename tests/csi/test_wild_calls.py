"""Calls that nobody should make: each gets its code and a message that names the field, and leaves nothing; the plugin goes on."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csi.access_modes import AccessMode
from csi.proto import csi_pb2
from csi.publish_request import PublishRequest, parse_path, parse_publish
from sidemount.model.errors import InvalidRequest
from tests.csi.plugin import Plugin, Refused
from tests.csi.wire import written

pytestmark = [pytest.mark.root, pytest.mark.fuse]

Change = Callable[[csi_pb2.NodePublishVolumeRequest], object]


def _set(field: str, value: object) -> Change:
    return lambda request: setattr(request, field, value)


def _context(key: str, value: str) -> Change:
    def change(request: csi_pb2.NodePublishVolumeRequest) -> None:
        request.volume_context[key] = value

    return change


def _flag(flag: str) -> Change:
    return lambda request: request.volume_capability.mount.mount_flags.append(flag)


def _block(request: csi_pb2.NodePublishVolumeRequest) -> None:
    request.volume_capability.block.SetInParent()


PUBLISHES: list[Any] = [
    pytest.param(_set("volume_id", ""), 3, "volume_id is missing", id="no volume id"),
    pytest.param(_set("target_path", ""), 3, "target_path is missing", id="no target"),
    pytest.param(
        lambda r: r.ClearField("volume_capability"), 3, "volume_capability is missing", id="no capability"
    ),
    pytest.param(lambda r: r.volume_capability.ClearField("mount"), 3, "access_type", id="no access type"),
    pytest.param(
        lambda r: r.volume_capability.ClearField("access_mode"), 3, "access_mode is missing", id="no mode"
    ),
    pytest.param(
        lambda r: setattr(r.volume_capability.access_mode, "mode", 99), 3, "99 is not known", id="mode 99"
    ),
    pytest.param(_block, 3, "block is not supported", id="block"),
    pytest.param(lambda r: setattr(r.volume_capability.mount, "fs_type", "ext4"), 3, "fs_type", id="fs type"),
    pytest.param(
        lambda r: setattr(r.volume_capability.mount, "volume_mount_group", "5"),
        3,
        "volume_mount_group",
        id="group",
    ),
    pytest.param(_set("target_path", "relative/path"), 3, "target_path", id="relative target"),
    pytest.param(_set("target_path", "/etc/x"), 3, "beneath none of the target roots", id="outside"),
    pytest.param(lambda r: setattr(r, "target_path", r.target_path + "/../../x"), 3, '".."', id="dots"),
    pytest.param(lambda r: setattr(r, "target_path", r.target_path + "\0x"), 3, "NUL", id="NUL in target"),
    pytest.param(
        lambda r: setattr(r, "target_path", r.target_path + "/x" * 5000), 3, "longer", id="endless target"
    ),
    pytest.param(lambda r: setattr(r, "target_path", r.target_path + "/a/b"), 9, "parent", id="no parent"),
    pytest.param(_set("volume_id", "v\0"), 3, "volume_id", id="NUL in id"),
    pytest.param(_set("volume_id", "v" * 129), 3, "128 bytes", id="long id"),
    pytest.param(_set("volume_id", "ü" * 65), 3, "128 bytes", id="long unicode id"),
    pytest.param(_set("staging_target_path", "../x"), 3, "staging_target_path", id="staging"),
    pytest.param(lambda r: r.volume_context.clear(), 5, "is not known", id="unknown volume"),
    pytest.param(_context("class", "nonesuch"), 3, "nonesuch", id="unknown class"),
    pytest.param(_context("endpoint", "http://evil"), 3, "endpoint", id="unknown option"),
    pytest.param(_context("attributeTimeout", "forever"), 3, "attributeTimeout", id="bad option"),
    pytest.param(_context("readOnly", "yes"), 3, "readOnly", id="no boolean"),
    pytest.param(_context("subPath", "../other"), 3, '".."', id="sub-path"),
    pytest.param(_context("source", "s3://bucket"), 7, "s3://bucket", id="source that no class serves"),
    pytest.param(
        _context("class", "sidecars-only"), 7, "does not offer delivery csi", id="class without csi"
    ),
    pytest.param(_context("class", "team"), 7, "not for namespace", id="class of a team"),
    pytest.param(_context("x" * 2000, "y" * 3000), 3, "longer than 4096", id="large context"),
    pytest.param(_flag("allow_root"), 3, "allow_root", id="flag"),
    pytest.param(_flag("ro,dev"), 3, "ro,dev", id="smuggled flag"),
    pytest.param(_flag("x" * 5000), 3, "4096", id="large flag"),
    pytest.param(lambda r: r.secrets.update({"k": "c4nary" * 300_000}), 3, "secrets", id="large secret"),
]


@pytest.mark.parametrize(("change", "code", "told"), PUBLISHES)
def test_a_publish_that_is_refused(shared: Plugin, change: Change, code: int, told: str) -> None:
    """S4-10, S4-12, S0-02, S0-25, S2-08: the code of the table, the field named, nothing left, no secret told."""
    request = shared.publish_request()
    change(request)
    with pytest.raises(Refused) as refused:
        shared.call("Node", "NodePublishVolume", request)
    assert refused.value.code.value[0] == code, refused.value
    assert told in refused.value.message
    assert "c4nary" not in refused.value.message
    assert shared.leftovers() == []


def test_the_co_s_own_keys_are_tolerated(shared: Plugin) -> None:
    """S4-10; and they do not make a publish another one."""
    keys = {"csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/serviceAccount.tokens": "{}"}
    shared.publish(**keys, **{"storage.kubernetes.io/csiProvisionerIdentity": "x"})
    shared.publish(**{"csi.storage.k8s.io/pod.name": "other"})
    shared.unpublish()
    assert shared.leftovers() == []


def test_the_same_target_with_something_else_is_a_conflict(shared: Plugin) -> None:
    """S4-29, and another volume at the target (as one caller really does)."""
    shared.publish()
    changes: list[dict[str, Any]] = [
        {"readonly": True},
        {"mode": 7},
        {"attributeTimeout": "5s"},
        {"volume": "other"},
    ]
    for change in changes:
        with pytest.raises(Refused) as refused:
            shared.publish("t", **change)
        assert refused.value.code.name == "ALREADY_EXISTS", change
    with pytest.raises(Refused) as refused:
        shared.unpublish("t", "other")
    assert refused.value.code.name == "FAILED_PRECONDITION"
    (shared.seen() / "still").write_text("there")
    shared.unpublish()
    assert shared.leftovers() == []


def test_something_else_mounted_at_the_target_is_never_touched(shared: Plugin) -> None:
    shared.target("t").mkdir()
    shared.node.run("mount", "-t", "tmpfs", "theirs", shared.target("t"))
    try:
        for call in (shared.publish, shared.unpublish):
            with pytest.raises(Refused, match="something else is mounted"):
                call()
        (mount,) = shared.node.mounts_beneath(shared.target("t"))
        assert mount.fstype == "tmpfs"
    finally:
        shared.node.run("umount", shared.target("t"))
        shared.target("t").rmdir()


def test_something_mounted_over_a_volume_is_never_touched_nor_what_it_hides_lost(shared: Plugin) -> None:
    shared.publish()
    (shared.seen() / "file").write_text("written")
    shared.node.run("mount", "-t", "tmpfs", "theirs", shared.target("t"))
    try:
        with pytest.raises(Refused, match="something else is mounted") as refused:
            shared.unpublish()
        assert refused.value.code.name == "FAILED_PRECONDITION"
        assert shared.node.mounts_beneath(shared.target("t"))[-1].fstype == "tmpfs"
    finally:
        shared.node.run("umount", shared.target("t"))
    shared.unpublish()
    assert (shared.store() / "file").read_text() == "written"
    assert shared.leftovers() == []


def test_a_target_within_a_volume_is_refused(shared: Plugin) -> None:
    """It would be a directory of the volume's, hang with it, and go with it."""
    (shared.store() / "inside").mkdir()
    shared.publish()
    with pytest.raises(Refused, match="lies in the volume") as refused:
        shared.publish("t/inside", "other")
    assert refused.value.code.name == "FAILED_PRECONDITION"
    shared.unpublish("t/inside", "other")
    assert (shared.store() / "inside").is_dir()
    shared.unpublish()
    (shared.store() / "inside").rmdir()
    assert shared.leftovers() == []


def test_a_link_beneath_the_root_is_not_followed(shared: Plugin) -> None:
    """S2-22: neither as a parent nor as the target."""
    elsewhere = shared.node.work / "elsewhere"
    elsewhere.mkdir()
    shared.target("link").symlink_to(elsewhere)
    try:
        with pytest.raises(Refused, match="is a link") as refused:
            shared.publish("link/t")
        assert refused.value.code.name == "INVALID_ARGUMENT"
        with pytest.raises(Refused, match="not a directory"):
            shared.publish("link")
        shared.unpublish("link")
        assert shared.target("link").is_symlink()
        assert list(elsewhere.iterdir()) == []
    finally:
        shared.target("link").unlink()


@pytest.mark.parametrize(
    ("volume", "target", "code"),
    [
        ("", "/x", 3),
        ("v", "", 3),
        ("v", "relative", 3),
        ("v", "/a/../b", 3),
        ("v", "/a\0", 3),
        ("v", "/target", 0),
        ("v", "/etc/passwd", 0),
        ("never-published", "{targets}/never", 0),
        ("v", "{targets}", 0),
        ("v", "{targets}/a/b/c", 0),
    ],
)
def test_unpublish_of_nothing(shared: Plugin, volume: str, target: str, code: int) -> None:
    """S0-21: fine, whatever is named, unless it cannot be a target."""
    path = target.format(targets=shared.node.work / "targets")
    request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=path)
    if code == 0:
        shared.call("Node", "NodeUnpublishVolume", request)
    else:
        with pytest.raises(Refused) as refused:
            shared.call("Node", "NodeUnpublishVolume", request)
        assert refused.value.code.value[0] == code
    assert (shared.node.work / "targets").is_dir()


@pytest.mark.parametrize(
    ("volume", "path", "code"),
    [
        ("", "/x", 3),
        ("v", "", 3),
        ("v", "some/path", 5),
        ("v", "/x", 5),
        ("v", "/x/../y", 5),
        ("v\0", "/x", 5),
    ],
)
def test_statistics_of_what_is_not_published(shared: Plugin, volume: str, path: str, code: int) -> None:
    request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=path)
    with pytest.raises(Refused) as refused:
        shared.call("Node", "NodeGetVolumeStats", request)
    assert refused.value.code.value[0] == code


def test_statistics_of_what_is_published(shared: Plugin) -> None:
    """S4-19."""
    shared.publish()
    answer = shared.stats()
    assert not answer.volume_condition.abnormal
    by_unit = {usage.unit: usage for usage in answer.usage}
    assert set(by_unit) == {csi_pb2.VolumeUsage.BYTES, csi_pb2.VolumeUsage.INODES}
    for usage in by_unit.values():
        assert usage.total > 0
        assert 0 <= usage.used <= usage.total
    with pytest.raises(Refused) as refused:
        shared.stats("t", "another-volume")
    assert refused.value.code.name == "NOT_FOUND"
    shared.unpublish()


@pytest.mark.parametrize("method", ["NodeStageVolume", "NodeUnstageVolume", "NodeExpandVolume"])
def test_what_is_not_advertised_is_unimplemented(shared: Plugin, method: str) -> None:
    with pytest.raises(Refused) as refused:
        shared.call_raw("Node", method, b"")
    assert refused.value.code.name == "UNIMPLEMENTED"


@pytest.mark.parametrize("service", ["Controller", "GroupController"])
def test_a_service_that_is_not_there_is_unimplemented(shared: Plugin, service: str) -> None:
    with pytest.raises(Refused) as refused:
        shared.call_raw(service, "CreateVolume", b"")
    assert refused.value.code.name == "UNIMPLEMENTED"


@given(raw=st.binary(max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_get_an_answer(shared: Plugin, raw: bytes) -> None:
    for method in ("NodePublishVolume", "NodeGetVolumeStats"):
        with contextlib.suppress(Refused):
            shared.call_raw("Node", method, raw, timeout_s=20)


def test_text_that_is_no_unicode_is_an_invalid_argument(shared: Plugin) -> None:
    with pytest.raises(Refused) as refused:
        shared.call_raw("Node", "NodePublishVolume", written({1: b"\xff\xfe", 4: "/x"}))
    assert refused.value.code.name == "INVALID_ARGUMENT"


_TEXT = st.text(max_size=40)


@given(
    volume_id=_TEXT,
    target=_TEXT,
    mode=st.integers(-5, 20),
    kind=st.sampled_from(["mount", "block", ""]),
    flags=st.lists(_TEXT, max_size=3),
    context=st.dictionaries(_TEXT, _TEXT, max_size=3),
)
def test_parsing_raises_nothing_but_its_own_error(
    volume_id: str, target: str, mode: int, kind: str, flags: list[str], context: dict[str, str]
) -> None:
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id=volume_id, target_path=target, volume_context=context
    )
    request.volume_capability.access_mode.mode = mode  # type: ignore[assignment]  # any number may come over the wire
    if kind == "mount":
        request.volume_capability.mount.mount_flags.extend(flags)
    elif kind == "block":
        request.volume_capability.block.SetInParent()
    try:
        parsed = parse_publish(request)
    except InvalidRequest:
        return
    assert isinstance(parsed, PublishRequest)
    assert parsed.mode in AccessMode
    assert parse_path(parsed.target, "target_path") == parsed.target
