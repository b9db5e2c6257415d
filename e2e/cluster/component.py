"""A component: one program of the control plane or of a node, as the node's first process starts it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A program with its arguments and environment; started anew whenever it ends without having been told to."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "argv": list(self.argv)}


def component_of(fields: Mapping[str, Any]) -> Component:
    """Return the component of JSON values. Raises KeyError, TypeError."""
    return Component(name=fields["name"], argv=tuple(fields["argv"]), env=dict(fields["env"]))


def flags(**values: object) -> tuple[str, ...]:
    """Return Go flags: `service_cidr=x` → `--service-cidr=x`; booleans as Go writes them."""
    return tuple(
        f"--{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in values.items()
    )
