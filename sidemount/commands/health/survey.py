"""Survey: reads the pods that were asked for and their keepers' logs, and has them judged."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sidemount.commands.cluster.access import Access, load_access
from sidemount.commands.cluster.api_server import ApiServer, cluster_error
from sidemount.commands.cluster.keeper_logs import read_logs
from sidemount.commands.cluster.paths import pod_path, pods_path
from sidemount.commands.health.csi import (
    CSI_NAMESPACE,
    CSI_NODES,
    CsiView,
    mount_pods_of,
    registered_nodes,
    served_nodes,
)
from sidemount.commands.health.judgement import KeeperLog, PodReport, judge
from sidemount.commands.health.mount_pod import MOUNT_PODS
from sidemount.commands.health.pod import PodView, read_pod
from sidemount.host.cluster_reader import ReadFailed, Trouble
from sidemount.model.errors import InvalidRequest, shown

LOGS_MAX = 100  # pods whose logs are read unasked
_QUIET_S = 2.0


@dataclass(slots=True, kw_only=True)
class Survey:
    """What a cluster told. `namespace`: the one that was looked at, or would have been. `is_lacking`: a named pod is not there."""

    namespace: str
    pods: list[PodView] = field(default_factory=list)
    reports: tuple[PodReport, ...] = ()
    notes: list[str] = field(default_factory=list)
    is_lacking: bool = False


async def look(arguments: argparse.Namespace) -> Survey:
    """Return what `sidemount status` was asked for. Raises VolumeError."""
    access = await load_access(arguments.kubeconfig, arguments.context)
    found = Survey(namespace=arguments.namespace or access.namespace)
    async with ApiServer(access, call_s=arguments.request_timeout) as api:
        if arguments.pods:
            await _named(api, access, arguments.pods, found)
        else:
            await _listed(api, access, arguments, found)
        logs = await _logs(api, arguments, found)
        csi = await _csi(api, found)
    found.reports = tuple(judge(pod, logs.get((pod.namespace, pod.name)), csi) for pod in found.pods)
    return found


async def _named(api: ApiServer, access: Access, names: Sequence[str], found: Survey) -> None:
    for name in dict.fromkeys(name.removeprefix("pod/") for name in names):
        try:
            manifest = await api.read(pod_path(found.namespace, name))
        except ReadFailed as failure:
            if failure.trouble is not Trouble.NOT_FOUND:
                raise cluster_error(access, failure, f"pod {name} cannot be read") from failure
            found.notes.append(f"there is no pod {name} in namespace {found.namespace}")
            found.is_lacking = True
            continue
        pod = read_pod(manifest)
        if pod is None:
            found.notes.append(f"pod {name} has no volume of Sidemount and asks for none")
        else:
            found.pods.append(pod)


async def _listed(api: ApiServer, access: Access, arguments: argparse.Namespace, found: Survey) -> None:
    started, seen = time.monotonic(), 0
    query = {"labelSelector": arguments.selector} if arguments.selector else {}
    try:
        async for page in api.pages(pods_path("" if arguments.all_namespaces else found.namespace), **query):
            seen += len(page)
            found.pods += [pod for manifest in page if (pod := read_pod(manifest)) is not None]
            if time.monotonic() - started > _QUIET_S:
                print(f"sidemount status: {seen} pods listed …", file=sys.stderr)
    except ReadFailed as failure:
        if failure.trouble is Trouble.MALFORMED and arguments.selector:
            raise InvalidRequest(f"-l {shown(arguments.selector)}: {failure}") from failure
        raise cluster_error(access, failure, "pods cannot be listed") from failure
    found.pods.sort(key=lambda pod: (pod.namespace, pod.name))


async def _csi(api: ApiServer, found: Survey) -> CsiView | None:
    """Return what the cluster tells of the CSI path, None if no pod has a volume by it. What may not be read is noted."""
    if not any(volume.delivery == "csi" for pod in found.pods if not pod.is_over for volume in pod.volumes):
        return None
    nodes = await _items(api, found, "csinodes", CSI_NODES)
    own = await _items(api, found, f"pods of namespace {CSI_NAMESPACE}", pods_path(CSI_NAMESPACE))
    mount_pods = await _items(api, found, "mount pods", pods_path(""), labelSelector=MOUNT_PODS)
    return CsiView(
        registered=None if nodes is None else registered_nodes(nodes),
        served=None if not own else served_nodes(own),  # it may be in another namespace
        mount_pods=None if mount_pods is None else mount_pods_of(mount_pods),
        now_ms=int(time.time() * 1000),
    )


async def _items(
    api: ApiServer, found: Survey, what: str, path: str, **query: str
) -> list[Mapping[str, Any]] | None:
    try:
        return list(await api.items(path, **query))
    except ReadFailed as failure:
        if failure.trouble is Trouble.NOT_FOUND:
            return []
        found.notes.append(f"{what} cannot be listed, so of volumes by CSI less is known: {failure}")
        return None


async def _logs(
    api: ApiServer, arguments: argparse.Namespace, found: Survey
) -> dict[tuple[str, str], KeeperLog]:
    """Return the logs of the keepers that may have one."""
    speaking = [
        pod for pod in found.pods if pod.keeper is not None and pod.keeper.started_ms and not pod.is_over
    ]
    if arguments.health is False or not speaking:
        return {}
    if arguments.health is None and len(speaking) > LOGS_MAX:
        found.notes.append(
            f"{len(speaking)} keepers: their logs are not read, so nothing is known of takeovers and stalls; "
            "choose fewer pods, or give --health"
        )
        return {}
    logs = await read_logs(api, speaking)
    faults = [log.fault for log in logs.values() if log.fault]
    for fault in dict.fromkeys(faults):
        found.notes.append(
            f"the log of {faults.count(fault)} of {len(speaking)} keepers cannot be read: {fault}; "
            "their volumes are judged by the state of their containers alone"
        )
    return logs
