"""Provisioned volumes on the node: which is meant, whether it is there, and who may name it."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc import StatusCode

from csi.access_modes import AccessMode
from csi.faults import NotFound
from csi.publish_plan import plan_publish
from csi.publish_request import PublishRequest
from csi.publish_source import check_source
from csi.records import Record
from sidemount.host import budget
from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.errors import NotReady
from tests.csi.plugin import CLASSES, Plugin, Refused
from tests.host.mount_node import MountNode

POOLS = """
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: pool}
spec:
  deliveries: [csi]
  sources: ["dir://POOL"]
  namespaces: {}
  filesystem: directory
  provisions: true
  uid: 0
  capabilities: [CHOWN, DAC_OVERRIDE, FOWNER]
  abilities: {descriptor: true, takeover: true, readOnly: enforced}
"""


@pytest.fixture
def pool(node: MountNode) -> Path:
    """Return a pool with one volume."""
    path = node.work / "pool"
    _make_volume(path, "v1")
    return path


@pytest.fixture
def plugin(node: MountNode, pool: Path) -> Iterator[Plugin]:
    """Return a plugin that knows the pool's class."""
    plugin = Plugin(node)
    text = CLASSES.replace('"dir:///**"', f'"dir://{node.work}/store/*"') + POOLS.replace("POOL", str(pool))
    (node.work / "facts" / "classes.yaml").write_text(text)
    try:
        yield plugin.start()
    finally:
        plugin.end()


def _make_volume(pool: Path, name: str) -> Path:
    path = pool / "volumes" / name
    (path / "data").mkdir(parents=True)
    budget.create(str(path), 0)
    return path


def _publish(plugin: Plugin, pool: Path, volume_id: str = "v1", **context: str) -> None:
    request = plugin.publish_request("t", "v1")
    request.volume_id = volume_id
    request.volume_context.clear()
    request.volume_context.update(
        {"class": "pool", "source": f"dir://{pool}", "volume": volume_id, **context}
    )
    plugin.call("Node", "NodePublishVolume", request)


@pytest.mark.root
@pytest.mark.fuse
def test_a_provisioned_volume_is_served_and_one_that_is_not_there_is_not_found(
    plugin: Plugin, pool: Path
) -> None:
    """S4-22 and the table's row of NodePublishVolume: unknown volume 5, before any conflict at the target."""
    _publish(plugin, pool)
    (plugin.seen() / "file").write_text("data")
    assert (pool / "volumes" / "v1" / "data" / "file").read_text() == "data"
    _publish(plugin, pool)
    for volume in ("v2", "v1.", "..."):
        with pytest.raises(Refused, match="does not exist") as refused:
            _publish(plugin, pool, volume)
        assert refused.value.code is StatusCode.NOT_FOUND
    _make_volume(pool, "v2")
    with pytest.raises(Refused) as refused:
        _publish(plugin, pool, "v2")
    assert refused.value.code is StatusCode.ALREADY_EXISTS
    plugin.unpublish("t", "v1")
    assert plugin.leftovers() == []


@pytest.mark.root
@pytest.mark.fuse
@pytest.mark.parametrize(
    ("context", "code", "told"),
    [
        ({"volume": "v2"}, 3, "is not the volume_id"),
        ({"volume": ".."}, 3, "volume"),
        ({"volume": "a/b"}, 3, "volume"),
        ({"csi.storage.k8s.io/ephemeral": "true"}, 7, "no pod declares"),
        ({"class": "directory"}, 7, "directory"),
        ({"source": "dir:///elsewhere"}, 7, "elsewhere"),
        ({"unknown": "x"}, 3, "unknown"),
        ({"subPath": "../v2"}, 3, '".."'),
    ],
)
def test_what_names_a_provisioned_volume_wrongly_is_refused(
    plugin: Plugin, pool: Path, context: dict[str, str], code: int, told: str
) -> None:
    with pytest.raises(Refused) as refused:
        _publish(plugin, pool, **context)
    assert refused.value.code.value[0] == code, refused.value
    assert told in refused.value.message
    assert plugin.leftovers() == []


@pytest.mark.root
@pytest.mark.fuse
@pytest.mark.parametrize(
    "source", ["dir://{pool}", "dir://{pool}/volumes/v1", "dir://{pool}/volumes/v1/data"]
)
@pytest.mark.parametrize("ephemeral", ["true", "false", None])
def test_a_pool_is_no_source_of_a_pod(plugin: Plugin, pool: Path, source: str, ephemeral: str | None) -> None:
    """An inline volume of a class that provisions, or of any path within a pool, is refused."""
    request = plugin.publish_request("t")
    request.volume_context["class"] = "pool"
    request.volume_context["source"] = source.format(pool=pool)
    if ephemeral is not None:
        request.volume_context["csi.storage.k8s.io/ephemeral"] = ephemeral
    with pytest.raises(Refused) as refused:
        plugin.call("Node", "NodePublishVolume", request)
    assert refused.value.code is StatusCode.PERMISSION_DENIED
    assert plugin.leftovers() == []


def _record(pool: Path, volume: str) -> Record:
    (pool / "facts").mkdir(exist_ok=True)
    (pool / "facts" / "classes.yaml").write_text(POOLS.replace("POOL", str(pool)))
    facts = FactsDirectory(pool / "facts").facts()
    request = PublishRequest(
        volume_id=volume,
        target="/t",
        mode=AccessMode.MULTI_NODE_MULTI_WRITER,
        read_only=False,
        flags=(),
        context={"class": "pool", "source": f"dir://{pool}", "volume": volume},
        secrets={},
    )
    return plan_publish(request, "/t", facts, "/run").record


@pytest.mark.asyncio
async def test_a_pool_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-21: bounded; who comes meanwhile is told at once; when it answers again, all is as before."""
    _make_volume(tmp_path, "v1")
    record = _record(tmp_path, "v1")
    await check_source(record)
    with pytest.raises(NotFound):
        await check_source(_record(tmp_path, "v2"))
    is_back = threading.Event()
    real = os.open

    def hanging(path: str, *arguments: int) -> int:
        is_back.wait(30)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", hanging)
    with pytest.raises(NotReady, match="does not answer"):
        await check_source(record, 0.05)
    began = asyncio.get_running_loop().time()
    with pytest.raises(NotReady, match="does not answer"):
        await check_source(record, 30)
    assert asyncio.get_running_loop().time() - began < 5
    is_back.set()
    async with asyncio.timeout(30):
        while True:
            try:
                await check_source(record, 30)
                break
            except NotReady:
                await asyncio.sleep(0.01)
