"""Facts of a cluster as it is now: the same that the webhook follows, read once."""

from collections.abc import Iterable, Mapping
from typing import Any

from sidemount.commands.cluster.access import load_access
from sidemount.commands.cluster.api_server import ApiServer, cluster_error
from sidemount.commands.health.pod import mapping, text
from sidemount.host.cluster_reader import ReadFailed, Trouble
from sidemount.host.facts_manifests import Fact
from sidemount.host.facts_snapshot import FactsSnapshot, index_facts
from sidemount.host.live_kinds import (
    CSI_DRIVER_KIND,
    FUSE_DRIVER_CLASS,
    KINDS,
    NAMESPACE,
    NODE,
    LiveKind,
    read_fact,
)
from sidemount.model.errors import VolumeError
from sidemount.model.facts import SourceFault

_KINDS: Mapping[str, LiveKind] = {
    "classes": FUSE_DRIVER_CLASS,
    "namespaces": NAMESPACE,
    "nodes": NODE,
    "drivers": CSI_DRIVER_KIND,
}


async def read_facts(
    kubeconfig: str, context: str, call_s: float, kinds: Iterable[LiveKind] = KINDS
) -> FactsSnapshot:
    """Return the cluster's facts; a kind that may be read by nobody of ours is among their faults. Raises VolumeError."""
    access = await load_access(kubeconfig, context)
    facts: list[Fact] = []
    faults: list[SourceFault] = []
    async with ApiServer(access, call_s=call_s) as api:
        for kind in kinds:
            try:
                async for page in api.pages(kind.collection):
                    _take(kind, page, facts, faults)
            except ReadFailed as failure:
                if failure.trouble is Trouble.NOT_FOUND and kind is FUSE_DRIVER_CLASS:
                    faults.append(
                        SourceFault(
                            where=kind.name,
                            message="the cluster has no such type: Sidemount is not installed",
                        )
                    )
                elif failure.trouble is Trouble.FORBIDDEN:
                    faults.append(
                        SourceFault(where=kind.name, message=f"needs the right to list {kind.plural}")
                    )
                elif failure.trouble is not Trouble.NOT_FOUND:
                    raise cluster_error(access, failure, f"{kind.plural} cannot be listed") from failure
    return index_facts(facts, tuple(faults), 1)


def facts_of(objects: Mapping[str, Iterable[Mapping[str, Any]]]) -> FactsSnapshot:
    """Return the facts that listed objects state, by the names that `sidemount doctor` reads them under."""
    facts: list[Fact] = []
    faults: list[SourceFault] = []
    for name, manifests in objects.items():
        _take(_KINDS[name], manifests, facts, faults)
    return index_facts(facts, tuple(faults), 1)


def _take(
    kind: LiveKind, manifests: Iterable[Mapping[str, Any]], facts: list[Fact], faults: list[SourceFault]
) -> None:
    """Add what manifests state."""
    for manifest in manifests:
        try:
            fact = read_fact(kind, manifest)
        except VolumeError as error:
            name = text(mapping(manifest.get("metadata")).get("name"))
            faults.append(SourceFault(where=f"{kind.name} {name}", message=str(error)))
            continue
        if fact is not None:
            facts.append(fact)
