"""What the first process of a node is told: the node, its directories and its components. Written as JSON for root alone."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.component import Component, component_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node. `cgroup` is empty where no pods will run. `hosts` is the text of /etc/hosts. `shared` is /srv of all nodes."""

    name: str
    address: str
    prefix: int
    hosts: str
    cgroup: str
    disk: Path
    shared: Path
    cni: Path
    logs: Path
    socket: Path
    source: Path
    components: tuple[Component, ...]

    def render(self) -> str:
        """Return the text that `read_spec` reads."""
        paths = ("disk", "shared", "cni", "logs", "socket", "source")
        texts = ("name", "address", "prefix", "hosts", "cgroup")
        return json.dumps(
            {
                **{name: str(getattr(self, name)) for name in paths},
                **{name: getattr(self, name) for name in texts},
                "components": [component.to_json() for component in self.components],
            },
            indent=1,
        )


def parse_spec(text: str) -> NodeSpec:
    """Return the spec that `render` wrote. Raises KeyError, ValueError."""
    fields: Mapping[str, Any] = json.loads(text)
    components: Sequence[Mapping[str, Any]] = fields["components"]
    return NodeSpec(
        name=fields["name"],
        address=fields["address"],
        prefix=fields["prefix"],
        hosts=fields["hosts"],
        cgroup=fields["cgroup"],
        disk=Path(fields["disk"]),
        shared=Path(fields["shared"]),
        cni=Path(fields["cni"]),
        logs=Path(fields["logs"]),
        socket=Path(fields["socket"]),
        source=Path(fields["source"]),
        components=tuple(component_of(component) for component in components),
    )
