"""The way between two nodes: a pair of network devices, one end in the network namespace of each, and routes to their pods.

The first node is the hub: every other one has a link to it, and reaches the others through it. Nothing is made outside the
nodes' own network namespaces, so that the end of either takes the link along.
"""

import subprocess

from e2e.cluster.errors import ClusterFault
from e2e.cluster.namespaces import entering_network
from e2e.cluster.topology import NETWORK, Node

UPLINK = "uplink"
_STEP_S = 30.0


def plan_link(hub: Node, hub_pid: int, spoke: Node, spoke_pid: int) -> tuple[tuple[str, ...], ...]:
    """Return the commands, each complete. The hub's end is named after the spoke.

    The gateways are no neighbours by any address of the devices, which have none: hence `onlink`.
    """
    at_hub = (*entering_network(hub_pid), "ip")
    at_spoke = (*entering_network(spoke_pid), "ip")
    pair = ("link", "add", UPLINK, "type", "veth", "peer", "name", spoke.name, "netns", str(hub_pid))
    there = ("via", spoke.address, "dev", spoke.name, "onlink", "src", hub.address)
    back = ("via", hub.address, "dev", UPLINK, "onlink", "src", spoke.address)
    return (
        (*at_spoke, *pair),
        (*at_spoke, "link", "set", UPLINK, "up"),
        (*at_hub, "link", "set", spoke.name, "up"),
        (*at_spoke, "route", "replace", NETWORK, *back),
        (*at_hub, "route", "replace", spoke.pods, *there),
    )


def link(hub: Node, hub_pid: int, spoke: Node, spoke_pid: int) -> None:
    """Link two nodes, whatever is left of an earlier link between them. Raises ClusterFault."""
    for pid, device in ((hub_pid, spoke.name), (spoke_pid, UPLINK)):
        # The kernel takes the devices of a namespace away some time after its end.
        _run((*entering_network(pid), "ip", "link", "delete", device))
    for command in plan_link(hub, hub_pid, spoke, spoke_pid):
        fault = _run(command)
        if fault:
            raise ClusterFault(f"{spoke.name} cannot be linked to {hub.name}: {' '.join(command)}: {fault}")


def _run(command: tuple[str, ...]) -> str:
    """Run a command; return what is wrong with it, or nothing."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_STEP_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""
