"""Statistics that are asked for again and again: every answer has its numbers, whatever the one before is still busy with."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from csi.proto import csi_pb2
from tests.csi.plugin import Plugin

pytestmark = [pytest.mark.root, pytest.mark.fuse]


def test_S4_19_each_of_many_questions_is_answered_with_numbers(plugin: Plugin) -> None:
    """One after the other without a pause, and beside publishes that look at the mount, too. None says abnormal of a volume that is well."""
    plugin.publish()
    request = csi_pb2.NodeGetVolumeStatsRequest(volume_id="vol", volume_path=str(plugin.target("t")))
    with grpc.insecure_channel(f"unix:{plugin.socket}") as channel:
        ask = channel.unary_unary(
            "/csi.v1.Node/NodeGetVolumeStats",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=csi_pb2.NodeGetVolumeStatsResponse.FromString,
        )
        publish = channel.unary_unary(
            "/csi.v1.Node/NodePublishVolume",
            request_serializer=lambda message: message.SerializeToString(),
        )
        again = plugin.publish_request()
        answers: list[Any] = []
        for _ in range(100):
            publish(again, timeout=60)
            answers += [ask(request, timeout=60), ask(request, timeout=60)]
        with ThreadPoolExecutor(8) as crowd:
            answers += crowd.map(lambda _: ask(request, timeout=60), range(100))
    assert {answer.volume_condition.message for answer in answers} == {"the volume is served"}
    assert {len(answer.usage) for answer in answers} == {2}
    plugin.unpublish()
