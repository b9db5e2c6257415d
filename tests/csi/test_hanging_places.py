"""Directories of others that never answer hold up nobody but who asks for them."""

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from grpc import StatusCode

from csi.place_threads import PlaceThreads
from csi.proto import csi_pb2
from sidemount.model.errors import NotReady
from tests.csi.plugin import SINGLE_WRITER, Plugin, Refused
from tests.csi.silent_mount import MOUNTS_AND_NEVER_ANSWERS
from tests.host.mount_node import eventually

_AT_ONCE = 20


@pytest.mark.root
@pytest.mark.fuse
def test_a_parent_of_targets_that_hangs_stops_no_other_target(plugin: Plugin) -> None:
    """No call that hangs holds what another one needs."""
    plugin.publish("good", mode=SINGLE_WRITER)
    silent = plugin.target("silent")
    silent.mkdir()
    server = plugin.node.start([sys.executable, "-c", MOUNTS_AND_NEVER_ANSWERS, silent])
    eventually(lambda: plugin.node.mounts_beneath(silent), what="the silent mount")

    def publish(number: int) -> StatusCode:
        with pytest.raises(Refused) as refused:
            plugin.publish(f"silent/pod/{number}")
        return refused.value.code

    with ThreadPoolExecutor(_AT_ONCE) as callers:
        codes = [callers.submit(publish, number) for number in range(_AT_ONCE)]
        time.sleep(0.3)
        began = time.monotonic()
        assert not plugin.stats("good").volume_condition.abnormal
        plugin.publish("other", "other")
        plugin.unpublish("good")
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id="v", target_path=f"{silent}/pod/t")
        with pytest.raises(Refused) as refused:
            plugin.call("Node", "NodeUnpublishVolume", request)
        assert refused.value.code is StatusCode.UNAVAILABLE
        assert time.monotonic() - began < 15
        assert {code.result() for code in codes} == {StatusCode.UNAVAILABLE}
    server.kill()
    server.wait(5)
    plugin.node.run("umount", "-l", silent)
    silent.rmdir()
    plugin.unpublish("other", "other")
    eventually(lambda: plugin.leftovers() == [], what="nothing left")


def test_a_place_that_hangs_is_soon_not_asked_any_more_and_asked_again_when_it_answers() -> None:
    is_back = threading.Event()

    async def main() -> None:
        threads = PlaceThreads("pool", 2.0)  # which a busy machine does not need for what is quick
        hanging = [threads.quick("/bad", is_back.wait) for _ in range(40)]
        answers = await asyncio.gather(*hanging, return_exceptions=True)
        assert all(isinstance(answer, NotReady) for answer in answers)
        with pytest.raises(NotReady, match="pool /bad does not answer"):
            await threads.quick("/bad", lambda: pytest.fail("asked"))
        assert await threads.quick("/good", lambda: 1) == 1
        assert await asyncio.gather(*(threads.long("/good", lambda: 2) for _ in range(300))) == [2] * 300
        is_back.set()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await threads.quick("/bad", lambda: 3) == 3
                    break
                except NotReady:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_what_the_work_raises_is_raised() -> None:
    async def main() -> None:
        threads = PlaceThreads("pool", 5)
        for ask in (threads.quick, threads.long):
            with pytest.raises(TimeoutError, match="its own"):
                await ask("/good", _fail)

    asyncio.run(main())


def _fail() -> None:
    raise TimeoutError("its own")
