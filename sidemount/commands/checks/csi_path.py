"""Does the CSI path work: registered with kubelets, node service and controller ready, no mount pod stuck."""

from collections.abc import Iterator, Mapping

from sidemount.commands.checks.finding import Finding, Verdict, listed, many
from sidemount.commands.checks.installation import name_of
from sidemount.commands.checks.nodes import usable_nodes
from sidemount.commands.checks.readings import Reading, Readings, Wanted
from sidemount.commands.cluster.paths import pods_path
from sidemount.commands.health.csi import (
    CONTROLLER,
    CSI_NAMESPACE,
    CSI_NODES,
    NODE_SERVICE,
    mount_pods_of,
    named,
    ready,
    registered_nodes,
)
from sidemount.commands.health.mount_pod import MOUNT_PODS
from sidemount.commands.health.pod import mapping
from sidemount.model.keeper_log import told
from sidemount.model.names import CSI_DRIVER

_TOLD_MAX = 300
_APPLY = "kubectl apply -k manifests/overlays/csi"
CSI_READINGS: Mapping[str, Wanted] = {
    "csinodes": Wanted(path=CSI_NODES, right="list csinodes"),
    "csi pods": Wanted(path=pods_path(CSI_NAMESPACE), right=f"list pods in namespace {CSI_NAMESPACE}"),
    "mount pods": Wanted(path=pods_path(""), right="list pods in all namespaces", selector=MOUNT_PODS),
}


def check_driver(drivers: Reading) -> Finding:
    """Look at the object CSIDriver."""
    if doubt := drivers.doubt("CSI"):
        return doubt
    there = [each for each in drivers.objects if name_of(each) == CSI_DRIVER]
    if not there:
        found = f"no CSIDriver {CSI_DRIVER}: volumes come by sidecar alone"
        return Finding(topic="CSI", verdict=Verdict.OK, found=found)
    modes = mapping(there[0].get("spec")).get("volumeLifecycleModes")
    if isinstance(modes, list) and "Ephemeral" in modes:
        return Finding(topic="CSI", verdict=Verdict.OK, found=f"CSIDriver {CSI_DRIVER}")
    return Finding(
        topic="CSI",
        verdict=Verdict.WARN,
        found=f"CSIDriver {CSI_DRIVER} without the lifecycle mode Ephemeral",
        meaning="pods that cannot take a sidecar get a volume by a claim alone (NoInlineVolumes)",
        way_out="delete it and apply Sidemount's own: the field cannot be changed",
    )


def has_driver(drivers: Reading) -> bool:
    """Tell whether the cluster has our CSIDriver."""
    return any(name_of(each) == CSI_DRIVER for each in drivers.objects)


def check_path(readings: Readings, nodes: Reading, now_ms: int) -> Iterator[Finding]:
    """Look at everything that serves volumes by CSI. Nothing of it keeps a sidecar's volume from working."""
    yield _registration(readings["csinodes"], nodes)
    pods = readings["csi pods"]
    yield _workload(
        "CSI node service",
        NODE_SERVICE,
        pods,
        "pods on a node without it start and end only when it is back; volumes that are mounted go on",
    )
    yield _workload(
        "CSI controller",
        CONTROLLER,
        pods,
        "claims are not provisioned, grown or deleted until it is back; volumes that are mounted go on",
    )
    yield _mount_pods(readings["mount pods"], now_ms)


def _registration(csi_nodes: Reading, nodes: Reading) -> Finding:
    topic = "CSI nodes"
    if doubt := csi_nodes.doubt(topic) or nodes.doubt(topic):
        return doubt
    known = registered_nodes(csi_nodes.objects)
    wanted = [name_of(each) for each in usable_nodes(nodes.objects)]
    missing = [name for name in wanted if name not in known]
    found = f"the driver is known to {len(wanted) - len(missing)} of {many(len(wanted), 'kubelet')}"
    if not missing:
        return Finding(topic=topic, verdict=Verdict.OK, found=found)
    return Finding(
        topic=topic,
        verdict=Verdict.WARN,
        found=f"{found}; not on {listed(missing)}",
        meaning="pods with volumes by CSI wait there",
        way_out=f"kubectl -n {CSI_NAMESPACE} get pods -o wide -l app.kubernetes.io/name={NODE_SERVICE}; "
        "the log of the one on that node says why (not_registered)",
    )


def _workload(topic: str, name: str, pods: Reading, meaning: str) -> Finding:
    if doubt := pods.doubt(topic):
        return doubt
    there = named(pods.objects, name)
    if not there:
        return Finding(
            topic=topic,
            verdict=Verdict.WARN,
            found=f"none in namespace {CSI_NAMESPACE}",
            meaning=meaning,
            way_out=_APPLY,
        )
    well = ready(there)
    found = f"{len(well)} of {len(there)} ready in {CSI_NAMESPACE}"
    if len(well) == len(there):
        return Finding(topic=topic, verdict=Verdict.OK, found=found)
    away = [name_of(each) for each in there if each not in well]
    return Finding(
        topic=topic,
        verdict=Verdict.WARN,
        found=f"{found}; not {listed(away)}",
        meaning=meaning,
        way_out=f"kubectl -n {CSI_NAMESPACE} describe pods -l app.kubernetes.io/name={name}",
    )


def _mount_pods(reading: Reading, now_ms: int) -> Finding:
    topic = "mount pods"
    if doubt := reading.doubt(topic):
        return doubt
    found = mount_pods_of(reading.objects)
    stuck = [(each, why) for each in found if (why := each.trouble(now_ms))]
    if not stuck:
        return Finding(topic=topic, verdict=Verdict.OK, found=f"{len(found)}, none stuck")
    return Finding(
        topic=topic,
        verdict=Verdict.WARN,
        found=f"{len(stuck)} of {len(found)} stuck: {listed(sorted(each.told for each, _ in stuck))}",
        meaning=told("; ".join(dict.fromkeys(f"{each.told}: {why}" for each, why in stuck)), _TOLD_MAX),
        way_out=stuck[0][0].look,
    )
