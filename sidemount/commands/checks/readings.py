"""Readings: everything that the checks look at, read at once; what could not be read says which right it needs."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.commands.checks.finding import Finding, Verdict
from sidemount.commands.cluster.api_server import ApiServer, cluster_error
from sidemount.host.cluster_reader import ReadFailed, Trouble
from sidemount.model.names import API_VERSION, INJECTED_LABEL

_AT_ONCE = 8
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_PART_OF = "app.kubernetes.io/part-of=sidemount"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One collection. `right` is what reading it takes; an absent kind has no objects."""

    path: str
    right: str
    selector: str = ""


COLLECTIONS: Mapping[str, Wanted] = {
    "types": Wanted(
        path="/apis/apiextensions.k8s.io/v1/customresourcedefinitions", right="list customresourcedefinitions"
    ),
    "mutating": Wanted(
        path=f"{_ADMISSION}/mutatingwebhookconfigurations", right="list mutatingwebhookconfigurations"
    ),
    "validating": Wanted(
        path=f"{_ADMISSION}/validatingwebhookconfigurations", right="list validatingwebhookconfigurations"
    ),
    "policies": Wanted(
        path=f"{_ADMISSION}/validatingadmissionpolicies", right="list validatingadmissionpolicies"
    ),
    "bindings": Wanted(
        path=f"{_ADMISSION}/validatingadmissionpolicybindings", right="list validatingadmissionpolicybindings"
    ),
    "classes": Wanted(path=f"/apis/{API_VERSION}/fusedriverclasses", right="list fusedriverclasses"),
    "namespaces": Wanted(path="/api/v1/namespaces", right="list namespaces"),
    "nodes": Wanted(path="/api/v1/nodes", right="list nodes"),
    "drivers": Wanted(path="/apis/storage.k8s.io/v1/csidrivers", right="list csidrivers"),
}
CARRIERS = "pods"
LEFTOVERS: Mapping[str, Wanted] = {
    "ClusterRole": Wanted(path=f"{_RBAC}/clusterroles", right="list clusterroles", selector=_PART_OF),
    "ClusterRoleBinding": Wanted(
        path=f"{_RBAC}/clusterrolebindings", right="list clusterrolebindings", selector=_PART_OF
    ),
    "PriorityClass": Wanted(
        path="/apis/scheduling.k8s.io/v1/priorityclasses", right="list priorityclasses", selector=_PART_OF
    ),
    CARRIERS: Wanted(
        path="/api/v1/pods", right="list pods in all namespaces", selector=f"{INJECTED_LABEL}=true"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The objects of a collection; or `fault`, why they are not known."""

    objects: tuple[Mapping[str, Any], ...] = ()
    fault: str = ""

    def doubt(self, topic: str) -> Finding | None:
        """Return what to say where this could not be read, None where it could."""
        return Finding(topic=topic, verdict=Verdict.UNKNOWN, found=self.fault) if self.fault else None


Readings = Mapping[str, Reading]


async def read_version(api: ApiServer) -> Mapping[str, Any] | None:
    """Return what the API server says of itself, None if we may not know. Raises VolumeError when nobody can be asked anything."""
    try:
        return await api.read("/version")
    except ReadFailed as failure:
        if failure.trouble is Trouble.FORBIDDEN:
            return None
        raise cluster_error(api.access, failure, "the API server's version cannot be read") from failure


async def read_collections(api: ApiServer, wanted: Mapping[str, Wanted]) -> Readings:
    """Return every collection by its name. Raises nothing: what cannot be read says so."""
    gate = asyncio.Semaphore(_AT_ONCE)
    found: dict[str, Reading] = {}

    async def read(name: str, collection: Wanted) -> None:
        async with gate:
            found[name] = await read_collection(api, collection)

    async with asyncio.TaskGroup() as group:
        for name, collection in wanted.items():
            group.create_task(read(name, collection))
    return found


async def read_collection(api: ApiServer, wanted: Wanted) -> Reading:
    """Return one collection."""
    query = {"labelSelector": wanted.selector} if wanted.selector else {}
    try:
        return Reading(objects=tuple(await api.items(wanted.path, **query)))
    except ReadFailed as failure:
        if failure.trouble is Trouble.NOT_FOUND:
            return Reading()
        if failure.trouble in (Trouble.FORBIDDEN, Trouble.UNAUTHORIZED):
            return Reading(fault=f"needs the right to {wanted.right}")
        return Reading(fault=f"cannot {wanted.right}: {failure}")
