"""What is left of volumes of the CSI path: on nodes, in the store, of mount pods. It compares even where the plugin's own pods are others."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from e2e.cluster.running_node import RunningNode
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import CsiPath
from e2e.tests.node_state import NodeState, look_at_node

_SETTLED_S = 240.0
_STATE = "/run/sidemount/csi"
# Of a pod, of a container, of a target: which of them does not matter, only how many.
_NAMES = re.compile(
    r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{64}|(?<=kube-api-access-)\w{5}"
)
# Directories of volumes that were never mounted, or are not any more: all that is in them is kubelet's own file.
_REMAINS = """
for at in /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/*; do
  if [ "$(ls -A "$at" 2>/dev/null)" = vol_data.json ]; then echo "$at"; fi
done
"""
_FORGOTTEN_S = 60.0
_RECORDS = "cd {state} 2>/dev/null && find targets run -mindepth 1 -maxdepth 1 2>/dev/null || true"


@contextmanager
def nothing_left(path: CsiPath, *nodes: RunningNode) -> Iterator[None]:
    """See that there is nothing on the nodes afterwards that was not there before, no mount pod, and nothing new in the pool."""
    nodes = nodes or (path.cluster,)
    path.roll_out()  # what is there has to be all that belongs there
    before = {node.name: _look(node) for node in nodes}
    pool = path.in_pool()
    yield
    left: list[str] = []

    def is_settled() -> bool:
        left[:] = [
            *(f"{node.name}: {each}" for node in nodes for each in _look(node).more_than(before[node.name])),
            *(f"mount pod: {each['metadata']['name']}" for each in path.mount_pods()),
            *(f"pool: {each}" for each in sorted(path.in_pool() - pool)),
        ]
        return not left

    assert wait_for(is_settled, _SETTLED_S), "left:\n" + "\n".join(left) + "\n" + path.told()


def clear_forgotten(node: RunningNode) -> None:
    """Remove what kubelet forgets of pods that were deleted while it knew no driver: it never mounted their volumes, so it never unmounts them.

    See kubernetes/kubernetes#105536. No pod that is to live may be there; what kubelet is still at work with has time to go.
    """
    if wait_for(lambda: not _remains(node), _FORGOTTEN_S):
        return
    for place in _remains(node):
        node.on_node("rm", "-f", f"{place}/vol_data.json")


def _remains(node: RunningNode) -> list[str]:
    return node.on_node("sh", "-c", _REMAINS).split()


def records(node: RunningNode) -> list[str]:
    """Return what the plugin remembers of targets."""
    return sorted(node.on_node("sh", "-c", _RECORDS.format(state=_STATE)).split())


def fuse_mounts(node: RunningNode, of: str) -> list[str]:
    """Return the lines of mountinfo that are a volume of ours and have `of` in them."""
    lines = node.on_node("cat", "/proc/self/mountinfo").splitlines()
    return [line for line in lines if " fuse.sidemount " in line and of in line]


def _look(node: RunningNode) -> NodeState:
    found = look_at_node(node).kinds
    alike = {kind: _alike(kind, names.elements()) for kind, names in found.items()}
    return NodeState({**alike, "records": Counter(records(node))})


def _alike(kind: str, names: Iterator[str] | Sequence[str]) -> Counter[str]:
    if kind == "containers":
        return Counter("container" for _ in names)
    return Counter(_NAMES.sub("*", name) for name in names)
