"""What of a class a mount pod is made from, as a record remembers it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLaunch:
    """`image` is the class's own, "" for the one that runs the built-in filesystems. `nfs_path` is "" without an NFS source."""

    image: str = ""
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    cache_size: str = ""
    nfs_server: str = ""
    nfs_path: str = ""


def encode_pod_launch(launch: PodLaunch) -> dict[str, Any]:
    """Return it as JSON has it."""
    raw = {entry.name: getattr(launch, entry.name) for entry in fields(launch)}
    return {**raw, "pull_secrets": list(launch.pull_secrets)}


def decode_pod_launch(raw: Mapping[str, Any]) -> PodLaunch:
    """Return what `encode_pod_launch` has rendered. Raises TypeError, KeyError."""
    texts = {
        name: _text(raw[name]) for name in ("image", "pull_policy", "cache_size", "nfs_server", "nfs_path")
    }
    return PodLaunch(
        **texts,
        pull_secrets=tuple(_text(name) for name in raw["pull_secrets"]),
        requests={_text(name): _text(value) for name, value in raw["requests"].items()},
        limits={_text(name): _text(value) for name, value in raw["limits"].items()},
    )


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(type(raw).__name__)
    return raw
