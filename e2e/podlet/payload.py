"""The files of secret, configMap, downwardAPI and projected volumes, laid out as kubelet's atomic writer does.

Each file is a symlink through `..data` to a timestamped directory, so that a new version appears at once.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from e2e.podlet.env import field, resource
from e2e.podlet.objects import MissingObject, Objects
from e2e.podlet.pod import (
    FieldProjection,
    FieldRef,
    Item,
    ObjectProjection,
    Pod,
    Projected,
    ResourceRef,
    TokenProjection,
)

_FAKE_TOKEN = b"podlet.has.no-api-server"
_DATA = "..data"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file to write."""

    content: bytes
    mode: int
    owner: int | None = None


def collect(pod: Pod, source: Projected, objects: Objects) -> dict[str, File]:
    """Return relative path → file. Raises MissingObject."""
    files: dict[str, File] = {}
    for projection in source.sources:
        match projection:
            case ObjectProjection():
                files.update(_object_files(pod, projection, source.default_mode, objects))
            case FieldProjection(items=items):
                for item in items:
                    files[item.path] = File(content=_field(pod, item), mode=_mode(item, source.default_mode))
            case TokenProjection(path=path):
                files[path] = _token(pod, source.default_mode)
    return files


def write_payload(directory: Path, files: dict[str, File]) -> None:
    """Write a new version beside the old one and swing `..data` to it."""
    version = directory / datetime.now(UTC).strftime("..%Y_%m_%d_%H_%M_%S.%f")
    version.mkdir(mode=0o755)
    version.chmod(0o755)
    for path, file in files.items():
        target = version / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
        if file.owner is not None:
            os.chown(target, file.owner, -1)
    swing = directory / "..data_tmp"
    swing.symlink_to(version.name)
    swing.rename(directory / _DATA)
    for top in sorted({path.split("/")[0] for path in files}):
        link = directory / top
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{top}")


def _object_files(
    pod: Pod, projection: ObjectProjection, default_mode: int, objects: Objects
) -> dict[str, File]:
    content = objects.find(projection.kind, pod.namespace, projection.name)
    if content is None:
        if projection.optional:
            return {}
        raise MissingObject(f'{projection.kind.lower()} "{projection.name}" not found')
    if not projection.items:
        return {key: File(content=value, mode=default_mode) for key, value in content.items()}
    files: dict[str, File] = {}
    for item in projection.items:
        if item.key in content:
            files[item.path] = File(content=content[item.key], mode=_mode(item, default_mode))
        elif not projection.optional:
            raise MissingObject(f"references non-existent {projection.kind.lower()} key: {item.key}")
    return files


def _token(pod: Pod, default_mode: int) -> File:
    """Return the token: readable by its one user or the fsGroup alone where the pod has them."""
    users = {container.security.run_as_user for container in pod.containers}
    owner = next(iter(users)) if len(users) == 1 else None
    is_narrow = owner is not None or pod.fs_group is not None
    return File(content=_FAKE_TOKEN, mode=0o600 if is_narrow else default_mode, owner=owner)


def _field(pod: Pod, item: Item) -> bytes:
    match item.source:
        case FieldRef(path=path):
            return field(pod, path).encode(errors="surrogateescape")
        case ResourceRef() as reference:
            return resource(pod, reference.container, reference).encode()
        case None:
            raise AssertionError("a downwardAPI item always has a source")


def _mode(item: Item, default_mode: int) -> int:
    return default_mode if item.mode is None else item.mode
