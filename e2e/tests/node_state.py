"""What there is on a node: mounts, processes, containers, directories of pods, cgroups; and what one state has more than another."""

import json
import sys
from collections import Counter
from dataclasses import dataclass

from e2e.cluster.running_node import RunningNode

# Run on the node, where only its own processes are seen. What came in from outside has a parent outside: number 0.
_LOOK = """
import json, os
def processes():
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                fields = open(f"/proc/{name}/stat").read()
            except OSError:
                continue
            comm, rest = fields[fields.index("(") + 1:].rsplit(")", 1)
            if rest.split()[1] != "0" or name == "1":
                yield comm
def cgroups():
    for tree in os.listdir("/sys/fs/cgroup"):
        for at, _, _ in os.walk(f"/sys/fs/cgroup/{tree}/CGROUP", followlinks=False):
            if "/pod" in at:  # those above are of the node, and made with its first pods
                yield at
pods = "/var/lib/kubelet/pods"
print(json.dumps({
    "mounts": [" ".join((words := line.split())[4:5] + words[words.index("-") + 1:][:1]) for line in open("/proc/self/mountinfo")],
    "processes": list(processes()),
    "cgroups": list(cgroups()),
    "pod directories": os.listdir(pods) if os.path.isdir(pods) else [],
}))
"""


@dataclass(frozen=True, slots=True)
class NodeState:
    """Each kind of thing with how often there is each of its kind."""

    kinds: dict[str, Counter[str]]

    def more_than(self, before: "NodeState") -> list[str]:
        """Return what is there now and was not before."""
        return [
            f"{kind}: {name}" + (f" ({count} times)" if count > 1 else "")
            for kind, found in self.kinds.items()
            for name, count in sorted((found - before.kinds[kind]).items())
        ]


def look_at_node(node: RunningNode) -> NodeState:
    """Return what there is on the node now."""
    script = _LOOK.replace("CGROUP", node.cgroup)
    found = json.loads(node.on_node(sys.executable, "-S", "-c", script))
    # Not what has ended: kubelet collects dead containers once a minute, and they hold nothing.
    found["containers"] = node.ctr("tasks", "ls", "-q").split()
    return NodeState({kind: Counter(names) for kind, names in found.items()})
