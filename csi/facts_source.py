"""Where the facts of this process come from: a directory of manifests, or the cluster, of which two kinds are read."""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from prometheus_client.metrics_core import Metric

from sidemount.host.facts_directory import FactsDirectory
from sidemount.host.logs import log
from sidemount.model.facts import Facts

_LOOK_S = 0.5


class FactsSource(Protocol):
    """Facts that are kept up to date while `run` runs."""

    def facts(self) -> Facts:
        """Return the present facts. Raises NotReady before the first are there."""
        ...

    async def start(self) -> None:
        """Make ready. Raises VolumeError if there can be no facts at all."""

    async def run(self) -> None:
        """Follow until cancelled, whatever goes wrong: the last good facts go on to hold."""

    def missing(self) -> tuple[str, ...]:
        """Return why there are no facts yet; empty from the first ones on."""
        ...

    def age_s(self) -> float:
        """Return how long ago they could last be read; infinite if never."""
        ...

    def families(self, prefix: str) -> Iterable[Metric]:
        """Return how well each kind is followed, where that is done by kinds."""
        ...


class DirectoryFacts:
    """Manifests in files."""

    def __init__(self, path: Path) -> None:
        self._directory = FactsDirectory(path)
        self._log = log("csi")
        self._read_at = float("-inf")
        self.facts = self._directory.facts

    async def start(self) -> None:
        """Read them."""
        await self._look()

    async def run(self) -> None:
        """Read them again whenever they change."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    def missing(self) -> tuple[str, ...]:
        """Return why there are no facts."""
        return () if self._directory.is_loaded else ("the facts were never read",)

    def age_s(self) -> float:
        """Return how long ago they could last be read."""
        return time.monotonic() - self._read_at

    def families(self, prefix: str) -> Iterable[Metric]:
        """Return nothing: all kinds are read at once."""
        return ()

    async def _look(self) -> None:
        try:
            is_new = await asyncio.to_thread(self._directory.refresh)
            self._read_at = time.monotonic()
            if is_new:
                _tell(self.facts())
        except Exception as error:  # the last good facts go on to hold
            self._log.error("facts_unread", fault=repr(error))


class ClusterFacts:
    """FuseDriverClasses and Namespaces, followed by watches. Nothing is served from them before all were read once."""

    def __init__(self, kubeconfig: Path | None, *, with_volumes: bool = False) -> None:
        """`with_volumes`: PersistentVolumes, too."""
        # Only where it is needed: its types take more memory than all of ours.
        from sidemount.host.cluster_configuration import load_cluster_configuration
        from sidemount.host.live_facts import LiveFacts
        from sidemount.host.live_kinds import FUSE_DRIVER_CLASS, NAMESPACE, PERSISTENT_VOLUME

        kinds = (FUSE_DRIVER_CLASS, NAMESPACE, *((PERSISTENT_VOLUME,) if with_volumes else ()))
        self._live = LiveFacts(lambda: load_cluster_configuration(kubeconfig), kinds=kinds)
        self.facts = self._live.facts
        self.missing = self._live.missing
        self.age_s = self._live.age_s

    async def start(self) -> None:
        """Find out how to reach the API server. It need not answer now."""
        await self._live.start()

    async def run(self) -> None:
        """Follow them."""
        await self._live.run(lambda: _tell(self._live.known()))

    def families(self, prefix: str) -> Iterable[Metric]:
        """Return how well each kind is followed."""
        from sidemount.host.live_report import families

        return families(self._live.kinds(), None, prefix)


def facts_source(directory: Path | None, kubeconfig: str = "", *, with_volumes: bool = False) -> FactsSource:
    """Return the facts of a directory, or the cluster's if there is none; that is reached by a file, or as a pod does.

    Of a cluster's volumes a controller alone has to know: the node service may not read them.
    """
    if directory is not None:
        return DirectoryFacts(directory)
    return ClusterFacts(Path(kubeconfig) if kubeconfig else None, with_volumes=with_volumes)


def _tell(facts: Facts) -> None:
    log("csi").info("facts_changed", faults=[f"{fault.where}: {fault.message}" for fault in facts.faults()])
