"""What the nodes' kernels, kubelets and systems give, from what kubelets report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sidemount.commands.checks.finding import Finding, Verdict, listed, many
from sidemount.commands.checks.installation import name_of
from sidemount.commands.checks.namespaces import labels_of
from sidemount.commands.checks.readings import Reading
from sidemount.commands.health.pod import mapping, mappings, text
from sidemount.host.machine import kernel_version
from sidemount.model.facts import ClusterFacts
from sidemount.model.keeper_log import told

_VIEWS = (5, 12)
_RESEND = (6, 9)
_SIDECARS = (1, 29)
_VIRTUAL_TAINT = "virtual-kubelet.io/provider"


def check_nodes(reading: Reading) -> Iterator[Finding]:
    """Look at every node."""
    if doubt := reading.doubt("nodes"):
        yield doubt
        return
    virtual = [each for each in reading.objects if _is_virtual(each)]
    windows = [each for each in reading.objects if _is_windows(each)]
    usable = usable_nodes(reading.objects)
    yield _kernels(usable)
    yield from _old_kubelets(usable)
    if usable:
        runtimes = sorted({told(text(_info(each).get("containerRuntimeVersion"))) or "?" for each in usable})
        yield Finding(topic="runtimes", verdict=Verdict.OK, found=listed(runtimes))
    away = [name_of(each) for each in reading.objects if not _is_ready(each)]
    if away:
        yield Finding(
            topic="nodes",
            verdict=Verdict.WARN,
            found=f"not ready: {listed(away)}",
            meaning="what is said of pods there may be old",
        )
    for nodes, kind, code in ((windows, "Windows", "Windows"), (virtual, "virtual", "VirtualNode")):
        if nodes:
            yield Finding(
                topic="nodes",
                verdict=Verdict.OK,
                found=f"{kind}: {listed([name_of(each) for each in nodes])}",
                meaning=f"pods for them get no volumes ({code})",
            )


def usable_nodes(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the nodes that pods with volumes can be on."""
    return [each for each in nodes if not _is_virtual(each) and not _is_windows(each)]


def _kernels(nodes: list[Mapping[str, Any]]) -> Finding:
    """Judge by the oldest kernel, and say how many nodes have one too old."""
    if not nodes:
        return Finding(topic="nodes", verdict=Verdict.FAIL, found="no Linux node", way_out="add one")
    kernels = {name_of(each): told(text(_info(each).get("kernelVersion"))) for each in nodes}
    versions = {name: kernel_version(release) for name, release in kernels.items()}
    too_old = [name for name, version in versions.items() if version < _VIEWS]
    old = [name for name, version in versions.items() if _VIEWS <= version < _RESEND]
    shown = f"{many(len(nodes), 'node')}: {listed(sorted(set(kernels.values())))}"
    if too_old:
        return Finding(
            topic="kernels",
            verdict=Verdict.FAIL if len(too_old) == len(nodes) else Verdict.WARN,
            found=shown,
            meaning=f"{listed(too_old)}: older than 5.12, which read-only and sub-path views need; volumes cannot start there",
            way_out="keep pods with volumes away from them by a node selector, or use Linux 6.9 or newer",
        )
    if old:
        return Finding(
            topic="kernels",
            verdict=Verdict.WARN,
            found=shown,
            meaning=f"{listed(old)}: older than 6.9: when a daemon dies its volume is mounted anew, and files that were open "
            "fail with ENOTCONN (NoResend)",
            way_out="use nodes with Linux 6.9 or newer where open files must outlive a daemon",
        )
    return Finding(topic="kernels", verdict=Verdict.OK, found=shown)


def _old_kubelets(nodes: list[Mapping[str, Any]]) -> Iterator[Finding]:
    kubelets = {name_of(each): text(_info(each).get("kubeletVersion")).removeprefix("v") for each in nodes}
    old = [name for name, version in kubelets.items() if kernel_version(version) < _SIDECARS]
    if old:
        yield Finding(
            topic="kubelets",
            verdict=Verdict.FAIL if len(old) == len(nodes) else Verdict.WARN,
            found=f"older than 1.29: {listed(old)}",
            meaning="they do not restart native sidecars; the oldest kubelet decides for the cluster (OldCluster)",
            way_out="upgrade them",
        )


def _info(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(node.get("status")).get("nodeInfo"))


def _is_windows(node: Mapping[str, Any]) -> bool:
    return _info(node).get("operatingSystem") == "windows"


def _is_virtual(node: Mapping[str, Any]) -> bool:
    labels = labels_of(node)
    taints = mappings(mapping(node.get("spec")).get("taints"))
    return any(
        f"{key}={value}" in ClusterFacts().virtual_node_labels for key, value in labels.items()
    ) or any(taint.get("key") == _VIRTUAL_TAINT for taint in taints)


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = mappings(mapping(node.get("status")).get("conditions"))
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
