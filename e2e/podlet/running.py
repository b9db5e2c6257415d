"""A pod's status in a client's hands."""

import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """One container, as in containerStatuses. `state` is "running", "waiting" or "terminated"."""

    name: str
    kind: str
    ready: bool
    started: bool
    restart_count: int
    state: str
    reason: str
    message: str
    exit_code: int | None
    last_reason: str
    last_exit_code: int | None
    last_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus:
    """One pod. `summary` is kubectl's STATUS column; `faults` say what keeps a deleted pod from going."""

    name: str
    phase: str
    reason: str
    summary: str
    ready: bool
    grace_s: int
    is_gone: bool
    faults: tuple[str, ...]
    broken: str
    version: int
    containers: Mapping[str, ContainerStatus]
    raw: Mapping[str, object]


def parse_status(raw: dict[str, object]) -> PodStatus:
    """Read what the node rendered."""
    listed = raw["containers"]
    faults = raw["faults"]
    version = raw["version"]
    grace = raw["graceSeconds"]
    assert isinstance(grace, int)
    assert isinstance(listed, list)
    assert isinstance(faults, list)
    assert isinstance(version, int)
    containers = [_container(entry) for entry in listed]
    return PodStatus(
        name=str(raw["name"]),
        phase=str(raw["phase"]),
        reason=str(raw["reason"]),
        summary=str(raw["status"]),
        ready=raw["ready"] is True,
        grace_s=grace,
        is_gone=raw["isGone"] is True,
        faults=tuple(map(str, faults)),
        broken=str(raw["broken"]),
        version=version,
        containers={container.name: container for container in containers},
        raw=raw,
    )


def _container(entry: dict[str, object]) -> ContainerStatus:
    state, fields = _state(entry["state"])
    _, last = _state(entry.get("lastState") or {"terminated": {}})
    restarts = entry["restartCount"]
    assert isinstance(restarts, int)
    return ContainerStatus(
        name=str(entry["name"]),
        kind=str(entry["kind"]),
        ready=entry["ready"] is True,
        started=entry["started"] is True,
        restart_count=restarts,
        state=state,
        reason=str(fields.get("reason", "")),
        message=str(fields.get("message", "")),
        exit_code=_exit_code(fields),
        last_reason=str(last.get("reason", "")),
        last_exit_code=_exit_code(last),
        last_message=str(last.get("message", "")),
    )


def _state(value: object) -> tuple[str, Mapping[str, object]]:
    assert isinstance(value, dict)
    ((name, fields),) = value.items()
    return str(name), fields


def _exit_code(fields: Mapping[str, object]) -> int | None:
    code = fields.get("exitCode")
    return code if isinstance(code, int) else None


def render_table(status: PodStatus) -> str:
    """Return the pod and its containers as a table for a person."""
    rows = [("CONTAINER", "KIND", "READY", "STATE", "RESTARTS")]
    for c in status.containers.values():
        state = "Running" if c.state == "running" else c.reason or c.state
        rows.append((c.name, c.kind, "yes" if c.ready else "no", state, str(c.restart_count)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([f"pod {status.name}: {status.summary}", *lines])


def seconds_left(deadline: float) -> float:
    """Return how long until a monotonic deadline, never negative."""
    return max(deadline - time.monotonic(), 0.0)
