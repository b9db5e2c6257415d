"""The node service's janitor with what this node can tell of pods: the API server where the cluster's facts are used, else processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from csi.janitor import Evidence, Janitor, PublishedTargets, Sweeper
from csi.janitor_evidence import ProcessEvidence
from csi.settings import POD, Settings
from sidemount.host.logs import log
from sidemount.model.errors import VolumeError

_AGAIN_S = 30.0


async def keep_clean(
    settings: Settings, sweeper: Sweeper, published: PublishedTargets, detached: Callable[[int], None]
) -> None:
    """Take away what ended pods leave, until cancelled. `detached` hears of every mount."""
    if settings.facts is not None and settings.launcher != POD:
        await _run(settings, sweeper, published, ProcessEvidence(), detached)
    # Only where it is needed: its types take more memory than all of ours.
    from csi.janitor_pods import ApiEvidence
    from sidemount.host.cluster import Cluster
    from sidemount.host.cluster_configuration import load_cluster_configuration

    while True:
        try:
            kubeconfig = Path(settings.kubeconfig) if settings.kubeconfig else None
            async with Cluster(await load_cluster_configuration(kubeconfig), None) as cluster:
                evidence = ApiEvidence(cluster, settings.node_id)
                await _run(settings, sweeper, published, evidence, detached)
        except VolumeError as error:
            log("csi.janitor").warning("janitor_waits", fault=str(error), again_s=_AGAIN_S)
            await asyncio.sleep(_AGAIN_S)


async def _run(
    settings: Settings,
    sweeper: Sweeper,
    published: PublishedTargets,
    evidence: Evidence,
    detached: Callable[[int], None],
) -> None:
    await Janitor(settings.kubelet_dir, sweeper, evidence, published, detached=detached).run()
