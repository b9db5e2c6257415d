"""Which pods have ended, as the API server tells it."""

from collections.abc import Collection

from sidemount.host.cluster import Cluster, Place

_MIRROR = "kubernetes.io/config.mirror"  # what a static pod's directories are called by


class ApiEvidence:
    """A pod that is deleted, or of which the API server knows nothing any more, gets no container again."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        """`cluster` may list pods."""
        self._cluster = cluster
        self._node = node

    async def look(self) -> None:
        """Need nothing: it is asked when there is something to ask."""

    async def ended(self, pod_uids: Collection[str]) -> frozenset[str]:
        """Return those that are gone or told to go. Raises VolumeError if nobody answers."""
        place = Place(kind="Pod", collection="/api/v1/pods", name="")
        listed = await self._cluster.list_all(place, "", fields=f"spec.nodeName={self._node}")
        if "items" not in listed or listed.get("metadata", {}).get("continue"):
            return frozenset()  # not all of them are in the answer
        living = {
            uid
            for pod in listed["items"]
            if not pod["metadata"].get("deletionTimestamp")
            for uid in (pod["metadata"]["uid"], pod["metadata"].get("annotations", {}).get(_MIRROR))
        }
        return frozenset(uid for uid in pod_uids if uid not in living)
