"""ClassView: a FuseDriverClass as it is in the cluster, why it is not in force, and what its status should say. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.host.live_kinds import FUSE_DRIVER_CLASS, read_fact
from sidemount.model.errors import Faults, VolumeError, shown
from sidemount.model.keeper_log import told
from sidemount.model.names import subdomain_fault
from sidemount.model.timestamp import render_timestamp

ACCEPTED = "Accepted"
_FAULTS_MAX = 64
_VALID = "Valid"
_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStatus:
    """A class's status. `since` is when its condition became what it is, "" if it never was."""

    generation: int
    used_by: int
    faults: tuple[str, ...]
    is_accepted: bool | None
    reason: str = ""
    message: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """One class. `found` is the status that it has."""

    name: str
    generation: int
    version: str
    faults: tuple[str, ...]
    reason: str
    found: ClassStatus


def read_class(manifest: Mapping[str, Any]) -> ClassView | None:
    """Return what is kept of a class, None if it has no name. A class of any content has a view: its faults."""
    metadata = _mapping(manifest.get("metadata"))
    name, generation, version = (metadata.get(key) for key in ("name", "generation", "resourceVersion"))
    if not isinstance(name, str) or subdomain_fault(name):
        return None
    faults, reason = _faults(manifest)
    return ClassView(
        name=name,
        generation=_count(generation),
        version=version if isinstance(version, str) else "",
        faults=faults,
        reason=reason,
        found=_read_status(_mapping(manifest.get("status"))),
    )


def wanted_status(found: ClassView, used_by: int, now_ms: int) -> ClassStatus | None:
    """Return the status that a class should have, None if it has it."""
    is_accepted = not found.faults
    before = found.found
    wanted = ClassStatus(
        generation=found.generation,
        used_by=used_by,
        faults=found.faults,
        is_accepted=is_accepted,
        reason=found.reason,
        message=told("; ".join(found.faults)) if found.faults else "requests may use the class",
        since=before.since
        if before.is_accepted is is_accepted and before.since
        else render_timestamp(now_ms),
    )
    return None if wanted == before else wanted


def render_status(status: ClassStatus) -> dict[str, Any]:
    """Return a status as the type has it."""
    return {
        "observedGeneration": status.generation,
        "usedBy": status.used_by,
        "faults": list(status.faults),
        "conditions": [
            {
                "type": ACCEPTED,
                "status": "True" if status.is_accepted else "False",
                "observedGeneration": status.generation,
                "reason": status.reason,
                "message": status.message,
                "lastTransitionTime": status.since,
            }
        ],
    }


def _faults(manifest: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    try:
        read_fact(FUSE_DRIVER_CLASS, manifest)
    except Faults as error:
        return tuple(told(str(fault)) for fault in error.faults[:_FAULTS_MAX]), error.reason.value
    except VolumeError as error:
        return (told(str(error)),), error.reason.value
    except Exception as error:  # whatever a class holds, it must not take the others down
        return (f"it cannot be understood ({type(error).__name__})",), "Unreadable"
    return (), _VALID


def _read_status(status: Mapping[str, Any]) -> ClassStatus:
    conditions = [_mapping(item) for item in _list(status.get("conditions"))]
    condition = next((item for item in conditions if item.get("type") == ACCEPTED), _NONE)
    accepted = {"True": True, "False": False}.get(str(condition.get("status")))
    return ClassStatus(
        generation=_count(status.get("observedGeneration"), absent=-1),
        used_by=_count(status.get("usedBy"), absent=-1),
        faults=tuple(item if isinstance(item, str) else shown(item) for item in _list(status.get("faults"))),
        is_accepted=accepted,
        reason=str(condition.get("reason") or ""),
        message=str(condition.get("message") or ""),
        since=str(condition.get("lastTransitionTime") or ""),
    )


def _count(value: object, absent: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else absent


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
