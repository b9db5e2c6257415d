"""The node's rows of the table of errors: ten times, twenty at once, after a restart; nothing is left, and nothing else is disturbed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from csi.proto import csi_pb2
from tests.csi.plugin import Plugin, Refused
from tests.csi.test_wild_calls import PUBLISHES

pytestmark = [pytest.mark.root, pytest.mark.fuse]

_ID, _NAMELESS = {"volume_id": "v" * 128}, {"volume_id": "ü" * 64}
_OTHER_RPCS: list[tuple[str, Any, int]] = [
    ("NodeUnpublishVolume", csi_pb2.NodeUnpublishVolumeRequest(target_path="/x"), 3),
    ("NodeUnpublishVolume", csi_pb2.NodeUnpublishVolumeRequest(**_ID), 3),
    ("NodeUnpublishVolume", csi_pb2.NodeUnpublishVolumeRequest(**_ID, target_path="some/path"), 3),
    ("NodeUnpublishVolume", csi_pb2.NodeUnpublishVolumeRequest(**_ID, target_path="/target"), 0),
    ("NodeUnpublishVolume", csi_pb2.NodeUnpublishVolumeRequest(**_NAMELESS, target_path="/目標"), 0),
    ("NodeUnpublishVolume", csi_pb2.NodeUnpublishVolumeRequest(**_ID, target_path="{neighbour}"), 9),
    ("NodeGetVolumeStats", csi_pb2.NodeGetVolumeStatsRequest(volume_path="/x"), 3),
    ("NodeGetVolumeStats", csi_pb2.NodeGetVolumeStatsRequest(**_ID), 3),
    ("NodeGetVolumeStats", csi_pb2.NodeGetVolumeStatsRequest(**_ID, volume_path="some/path"), 5),
    ("NodeGetVolumeStats", csi_pb2.NodeGetVolumeStatsRequest(**_ID, volume_path="/目標"), 5),
    ("NodeGetVolumeStats", csi_pb2.NodeGetVolumeStatsRequest(**_ID, volume_path="{neighbour}"), 5),
    (
        "NodeGetVolumeStats",
        csi_pb2.NodeGetVolumeStatsRequest(volume_id="neighbour", volume_path="/elsewhere"),
        5,
    ),
    (
        "NodeGetVolumeStats",
        csi_pb2.NodeGetVolumeStatsRequest(volume_id="neighbour", volume_path="{neighbour}"),
        0,
    ),
    ("NodeStageVolume", csi_pb2.NodeStageVolumeRequest(), 12),
    ("NodeUnstageVolume", csi_pb2.NodeUnstageVolumeRequest(), 12),
    ("NodeExpandVolume", csi_pb2.NodeExpandVolumeRequest(), 12),
    ("NodeGetInfo", csi_pb2.NodeGetInfoRequest(), 0),
    ("NodeGetCapabilities", csi_pb2.NodeGetCapabilitiesRequest(), 0),
]


def _rows(plugin: Plugin) -> list[tuple[str, Any, int]]:
    """Return method, request and code of every row; those for NodePublishVolume are also made with long and odd names."""
    rows = []
    for param in PUBLISHES:
        change, code, _ = param.values
        for volume in ("vol", "v" * 128, "ü" * 64, "名" * 42):
            request = plugin.publish_request("refused")
            request.volume_id = volume
            change(request)
            rows.append(("NodePublishVolume", request, code))
    for volume, target, code in (("neighbour", "two", 9), ("other", "neighbour", 6)):
        request = plugin.publish_request(target, volume, mode=1)
        rows.append(("NodePublishVolume", request, code))
    for method, request, code in _OTHER_RPCS:
        told = type(request)()
        told.CopyFrom(request)
        for field in ("target_path", "volume_path"):
            if getattr(told, field, "") == "{neighbour}":
                setattr(told, field, str(plugin.target("neighbour")))
        rows.append((method, told, code))
    return rows


def _code(plugin: Plugin, row: tuple[str, Any, int]) -> tuple[str, int]:
    """Return what a call is answered: method and code. An error without a message is a fault of its own."""
    method, request, _ = row
    try:
        plugin.call("Node", method, request)
    except Refused as refused:
        return method, int(refused.code.value[0]) if refused.message else -1
    return method, 0


def test_each_row_ten_times_and_twenty_at_once_and_after_a_restart(plugin: Plugin) -> None:
    """S0-21, S4-10, S4-12, S4-29: a volume that is published beside all this is served on by the same daemon."""
    plugin.publish("neighbour", "neighbour", mode=1)
    daemon, mounts = plugin.first_daemon(), plugin.mount_ids()
    (plugin.seen("neighbour") / "file").write_text("there")
    rows = _rows(plugin)
    expected = [(method, code) for method, _, code in rows]
    assert [_code(plugin, row) for row in rows] == expected
    with ThreadPoolExecutor(20) as crowd:
        for row, answer in zip(rows[::4], expected[::4], strict=True):
            assert set(crowd.map(_code, [plugin] * 20, [row] * 20)) == {answer}
        # All at once, so that different rows meet each other.
        assert list(crowd.map(_code, [plugin] * len(rows), rows)) == expected
    plugin.kill()
    plugin.start()
    for _ in range(7):
        assert [_code(plugin, row) for row in rows] == expected
    assert (plugin.first_daemon(), plugin.mount_ids()) == (daemon, mounts)
    assert (plugin.seen("neighbour") / "file").read_text() == "there"
    assert [path.name for path in (plugin.node.work / "targets").iterdir()] == ["neighbour"]
    plugin.unpublish("neighbour", "neighbour")
    assert plugin.leftovers() == []


@pytest.mark.parametrize(
    "volume", ["v" * 128, pytest.param("ü" * 64, marks=pytest.mark.slow)], ids=["long", "unicode"]
)
def test_a_publish_and_an_unpublish_ten_times_with_restarts_between(plugin: Plugin, volume: str) -> None:
    """S4-28, S4-31: the second and every further one is answered as the first, by the same daemon and mount; also by a new plugin."""
    request = plugin.publish_request()
    request.volume_id = volume
    gone = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=request.target_path)
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for number in range(10):
        plugin.call("Node", "NodePublishVolume", request)
        seen.add((plugin.first_daemon(), tuple(plugin.mount_ids())))
        (plugin.seen() / "file").write_text(str(number))
        if number == 5:
            plugin.kill()
            plugin.start()
    assert len(seen) == 1
    for number in range(10):
        plugin.call("Node", "NodeUnpublishVolume", gone)
        assert plugin.leftovers() == []
        if number == 5:
            plugin.stop()
            plugin.start()
    assert (plugin.store() / "file").read_text() == "9"
