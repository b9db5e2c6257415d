"""What the controller remembers of a volume and of a snapshot: `volume.json`, `snapshot.json`. Pure. Holds no secret."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sidemount.model.errors import BadMessage

VERSION = 1
_SIZE_MAX = (1 << 63) - 1


class Kind(Enum):
    """What a pool holds."""

    VOLUME = "volume"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a volume was made from."""

    kind: Kind
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeState:
    """One volume. `capacity_bytes` is what was promised, 0 if nothing was; `limit_bytes` is what it was first limited to, 0: thin.

    `parameters` are those it was asked for with, `context` is what its publishers need to name.
    """

    id: str
    name: str
    pool: str
    capacity_bytes: int
    limit_bytes: int
    parameters: Mapping[str, str]
    context: Mapping[str, str]
    content: Content | None = None
    created_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotState:
    """One snapshot. `size_bytes` and `created_ns` are of the cut."""

    id: str
    name: str
    pool: str
    source_volume_id: str
    size_bytes: int = 0
    created_ns: int = 0


def encode_volume(state: VolumeState) -> str:
    """Render as versioned JSON. The pool is where it lies, and may be mounted elsewhere tomorrow."""
    content = state.content
    return json.dumps(
        {
            "version": VERSION,
            "id": state.id,
            "name": state.name,
            "capacityBytes": state.capacity_bytes,
            "limitBytes": state.limit_bytes,
            "parameters": dict(state.parameters),
            "context": dict(state.context),
            "content": None if content is None else {"kind": content.kind.value, "id": content.id},
            "createdNs": state.created_ns,
        }
    )


def decode_volume(text: str, pool: str) -> VolumeState:
    """Parse what `encode_volume` wrote. Raises BadMessage."""
    try:
        raw = _object(text)
        content = raw["content"]
        return VolumeState(
            id=_text(raw["id"]),
            name=_text(raw["name"]),
            pool=pool,
            capacity_bytes=_size(raw["capacityBytes"]),
            limit_bytes=_size(raw["limitBytes"]),
            parameters=_texts(raw["parameters"]),
            context=_texts(raw["context"]),
            content=None if content is None else Content(kind=Kind(content["kind"]), id=_text(content["id"])),
            created_ns=_size(raw["createdNs"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadMessage(f"no volume of ours ({type(error).__name__})") from error


def encode_snapshot(state: SnapshotState) -> str:
    """Render as versioned JSON."""
    return json.dumps(
        {
            "version": VERSION,
            "id": state.id,
            "name": state.name,
            "sourceVolumeId": state.source_volume_id,
            "sizeBytes": state.size_bytes,
            "createdNs": state.created_ns,
        }
    )


def decode_snapshot(text: str, pool: str) -> SnapshotState:
    """Parse what `encode_snapshot` wrote. Raises BadMessage."""
    try:
        raw = _object(text)
        return SnapshotState(
            id=_text(raw["id"]),
            name=_text(raw["name"]),
            pool=pool,
            source_volume_id=_text(raw["sourceVolumeId"]),
            size_bytes=_size(raw["sizeBytes"]),
            created_ns=_size(raw["createdNs"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadMessage(f"no snapshot of ours ({type(error).__name__})") from error


def _object(text: str) -> Mapping[str, Any]:
    raw: Mapping[str, Any] = json.loads(text)
    if raw["version"] != VERSION:
        raise BadMessage(f"it is of version {raw['version']!r}; this program reads {VERSION}")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(type(raw).__name__)
    raw.encode()  # half a character cannot be told to anybody
    return raw


def _texts(raw: Any) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in raw.items()}


def _size(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw <= _SIZE_MAX:
        raise TypeError(type(raw).__name__)
    return raw
