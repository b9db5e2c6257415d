"""Where the CSI services take their facts from: of a cluster two kinds, and nothing is answered from them too early."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from csi.facts_source import DirectoryFacts, facts_source
from sidemount.model.errors import InvalidRequest, NotReady
from tests.webhook.live import fill, until
from tests.webhook.watched_apiserver import watched_apiserver


def _kubeconfig(directory: Path, port: int) -> str:
    told: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "x", "user": {}}],
    }
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(told))
    return str(path)


def test_a_directory_goes_before_the_cluster(tmp_path: Path) -> None:
    assert isinstance(facts_source(tmp_path), DirectoryFacts)


@pytest.mark.asyncio
@pytest.mark.parametrize("with_volumes", [False, True])
async def test_of_a_cluster_classes_and_namespaces_are_read_and_nothing_else(
    tmp_path: Path, with_volumes: bool
) -> None:
    """S2-14. A controller knows its volumes, too. Before both are known nothing is answered: a class that is not there yet is no class that is not there."""
    async with watched_apiserver() as server:
        await fill(server)
        source = facts_source(None, _kubeconfig(tmp_path, server.port), with_volumes=with_volumes)
        await source.start()
        with pytest.raises(NotReady):
            source.facts()
        running = asyncio.create_task(source.run())
        try:
            await until(lambda: not source.missing(), "all kinds are read")
            assert source.facts().driver_class("directory") is not None
            kinds = {"fusedriverclasses", "namespaces", *(["persistentvolumes"] if with_volumes else [])}
            assert {plural for _, plural in server.calls} == kinds
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@pytest.mark.asyncio
async def test_a_file_that_tells_of_no_cluster_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("nothing")
    with pytest.raises(InvalidRequest):
        await facts_source(None, str(tmp_path / "kubeconfig")).start()
