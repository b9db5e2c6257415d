"""Provisioned volumes: the id that names one, its place in a pool, and the pools that nobody else may reach into. Pure."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from sidemount.model.driver_class import DriverClass
from sidemount.model.facts import Facts
from sidemount.model.names import CSI_DRIVER
from sidemount.model.pool_layout import volume_dir
from sidemount.model.source_glob import glob_matches
from sidemount.model.source_uri import scheme_of, source_parts

VOLUME_FILESYSTEM = "volume"  # serves a provisioned volume's files within its budget; no class names it

POOL_SCHEMES: Mapping[str, tuple[str, ...]] = {
    "directory": ("dir",),
    "objects": ("s3", "gs", "az", "file", "memory"),
}
"""What a pool's source begins with, by the filesystem that serves its volumes: directories, or prefixes in buckets."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


def provisioned_id_fault(volume_id: str) -> str:
    """Return why a text is no id of a provisioned volume or snapshot (S4-22), "" if it is one: a name of one directory."""
    if not _ID.match(volume_id):
        return "is not 1 to 128 letters, digits, dots, dashes and underscores"
    return "is no name of a directory of its own" if volume_id in (".", "..") else ""


def pool_source(pool: str) -> str:
    """Return the source of a pool by its name: a directory's path, or the URI of a prefix in a bucket."""
    return pool if "://" in pool else f"dir://{pool}"


def provisioned_source(pool: str, volume_id: str) -> str:
    """Return the source URI of a volume in a pool, itself a source."""
    return volume_dir(pool.removesuffix("/"), volume_id)


def holds_volumes(facts: Facts, pool: str) -> bool:
    """Tell whether a PersistentVolume of ours is known that lies in a pool, itself a name."""
    sources = (pool_source(pool), f"{pool_source(pool)}/")
    return any(volume.attributes.get("source") in sources for volume in facts.volumes_of(CSI_DRIVER))


def pool_reached(source: str, classes: Iterable[DriverClass]) -> DriverClass | None:
    """Return a class that provisions and whose pool is, lies in or holds this source; None if there is none."""
    places = {_place(source), _place(unquote(source))}  # a client may undo escapes that we keep
    return next(
        (c for c in classes if c.provisions and any(_meet(_place(g), p) for g in c.sources for p in places)),
        None,
    )


def _place(source: str) -> str:
    """Return a source, or a glob of some, as what it stands for: one place has one text."""
    scheme, found = scheme_of(source), source_parts(source)
    path = found["path"].rstrip("/")
    if scheme in ("dir", "file"):
        return f"dir://{path}"
    return f"{scheme}://{found['host'].lower()}{path}"


def _meet(glob: str, source: str) -> bool:
    """Tell whether a place and one that the glob matches may be the same, or one within the other: component by component."""
    for pattern, part in zip(glob.split("/"), source.split("/"), strict=False):
        head, any_depth, _ = pattern.partition("**")
        if any_depth:
            return glob_matches(f"{head}**", part)
        if not glob_matches(pattern, part):
            return False
    return True
