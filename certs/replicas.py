"""What the other replicas serve: seen as an API server sees it, by a handshake with every endpoint of the Service."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from cryptography import x509

from certs.handshake import shake_hands
from certs.live import ServiceName
from sidemount.host.cluster import Cluster, Document, Place

_AT_ONCE = 8
_MAX_ENDPOINTS = 200


async def replicas_verify(
    cluster: Cluster, service: ServiceName, port: int, bundle: Collection[x509.Certificate]
) -> bool:
    """Tell whether there is a ready endpoint, and each serves what verifies under this bundle alone.

    Raises: as the cluster.
    """
    collection = f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices"
    slices = await cluster.list_all(
        Place("EndpointSlice", collection, "of the Service " + service.name),
        f"kubernetes.io/service-name={service.name}",
    )
    addresses = ready_addresses(slices)
    if not addresses or len(addresses) > _MAX_ENDPOINTS or _mapping(slices.get("metadata")).get("continue"):
        return False
    limiter = asyncio.Semaphore(_AT_ONCE)

    async def verifies(address: str) -> bool:
        async with limiter:
            return (await shake_hands(address, port, service.host, bundle)).is_verified

    async with asyncio.TaskGroup() as group:
        checks = [group.create_task(verifies(address)) for address in addresses]
    return all(check.result() for check in checks)


def ready_addresses(slices: Document) -> tuple[str, ...]:
    """Return the addresses that may get calls. An unknown condition counts as ready, as it does for kube-proxy."""
    found: dict[str, None] = {}
    for slice_ in _sequence(slices.get("items")):
        for endpoint in _sequence(_mapping(slice_).get("endpoints")):
            conditions = _mapping(_mapping(endpoint).get("conditions"))
            if conditions.get("ready") is False and conditions.get("serving") is not True:
                continue
            for address in _sequence(_mapping(endpoint).get("addresses")):
                found[str(address)] = None
    return tuple(found)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
