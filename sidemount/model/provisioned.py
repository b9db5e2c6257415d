"""Provisioned volumes: the id that names one, its place in a pool, and the pools that nobody else may reach into. Pure."""

import re
from collections.abc import Iterable

from sidemount.model.driver_class import DriverClass
from sidemount.model.facts import Facts
from sidemount.model.names import CSI_DRIVER
from sidemount.model.pool_layout import volume_dir
from sidemount.model.source_glob import glob_matches

VOLUME_FILESYSTEM = "volume"  # serves a provisioned volume's files within its budget; no class names it

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


def provisioned_id_fault(volume_id: str) -> str:
    """Return why a text is no id of a provisioned volume or snapshot (S4-22), "" if it is one: a name of one directory."""
    if not _ID.match(volume_id):
        return "is not 1 to 128 letters, digits, dots, dashes and underscores"
    return "is no name of a directory of its own" if volume_id in (".", "..") else ""


def provisioned_source(pool: str, volume_id: str) -> str:
    """Return the source URI of a volume in a pool, itself `dir:///…`."""
    return volume_dir(pool.removesuffix("/"), volume_id)


def holds_volumes(facts: Facts, pool: str) -> bool:
    """Tell whether a PersistentVolume of ours is known that lies in a pool, itself a path."""
    sources = (f"dir://{pool}", f"dir://{pool}/")
    return any(volume.attributes.get("source") in sources for volume in facts.volumes_of(CSI_DRIVER))


def pool_reached(source: str, classes: Iterable[DriverClass]) -> DriverClass | None:
    """Return a class that provisions and whose pool is, lies in or holds this source; None if there is none."""
    return next((c for c in classes if c.provisions and any(_meet(glob, source) for glob in c.sources)), None)


def _meet(glob: str, source: str) -> bool:
    """Tell whether the directory of a source and one that the glob matches may be the same, or one within the other."""
    if glob_matches(glob, source) or glob_matches(f"{glob.removesuffix('/')}/**", source):
        return True
    literal = glob.partition("*")[0]
    return literal.startswith(f"{source.removesuffix('/')}/")
