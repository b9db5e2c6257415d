"""MountSpec: what a daemon serves; View: where the keeper shows it. With their versioned JSON codec.

Standard library only: the keeper imports it.
"""

import json
from dataclasses import dataclass
from typing import Any

from sidemount.model.errors import BadMessage

VERSION = 1
OptionValue = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """One volume, the same for the same request whichever way it is delivered. Holds no secret.

    `source` is the URI of the request. `filesystem` names a built-in one, or is "" for an external
    client, whose `command` is its argv (`${mountpoint}` still in it). `sub_path` is the root of the volume within the
    source. `options` are sorted by name. `hung_after_s` is how long a daemon may be silent.
    """

    volume: str
    driver_class: str
    source: str
    filesystem: str = ""
    command: tuple[str, ...] = ()
    sub_path: str = ""
    read_only: bool = False
    options: tuple[tuple[str, OptionValue], ...] = ()
    descriptor: bool = True
    takeover: bool = False
    uid: int = 65532
    hung_after_s: int = 30
    selinux_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One (sub-path, read-only) pair of a volume. `name` is its directory in the mounts volume."""

    name: str
    sub_path: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperMount:
    """One volume that a keeper mounts, with every view of it that the pod uses (at least one)."""

    spec: MountSpec
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperConfig:
    """Everything one keeper does."""

    mounts: tuple[KeeperMount, ...]
