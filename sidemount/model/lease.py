"""Who leads: one holder of a Lease. Pure: records in, the next record out.

No clock of another machine is believed: a holder is gone once its record has not changed for the lease's duration, by the
watcher's own monotonic clock (client-go's rule). Leading saves work; it is not what keeps a rotation safe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

DURATION_S = 15.0
RENEW_EVERY_S = 5.0
_MAX_DURATION_S = 120.0
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """What a Lease says. `holder` "" means that it was released."""

    holder: str
    duration_s: float
    acquired: str
    renewed: str
    transitions: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A record (None: there is no Lease), and since when, on the monotonic clock, it has looked like this."""

    record: LeaseRecord | None
    since_s: float


def watch(before: Watched | None, record: LeaseRecord | None, now_s: float) -> Watched:
    """Return what is known of a record that was just read."""
    if before is not None and before.record == record:
        return before
    return Watched(record, now_s)


def claim(watched: Watched, identity: str, *, now: datetime, now_s: float) -> LeaseRecord | None:
    """Return the record to write in order to lead or to go on leading, None if somebody else leads."""
    record, stamp = watched.record, now.astimezone(UTC).strftime(_TIME)
    if record is not None and record.holder == identity:
        return replace(record, renewed=stamp, duration_s=DURATION_S)
    if record is not None and record.holder and now_s - watched.since_s < record.duration_s:
        return None
    transitions = record.transitions + 1 if record is not None else 0
    return LeaseRecord(
        holder=identity, duration_s=DURATION_S, acquired=stamp, renewed=stamp, transitions=transitions
    )


def release(record: LeaseRecord, identity: str, *, now: datetime) -> LeaseRecord | None:
    """Return the record that lets the next one lead at once, None if we do not lead."""
    if record.holder != identity:
        return None
    return replace(record, holder="", duration_s=1.0, renewed=now.astimezone(UTC).strftime(_TIME))


def parse_lease(spec: Mapping[str, Any]) -> LeaseRecord:
    """Return what a Lease's spec says; whatever is missing or odd counts as nothing."""
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    known = isinstance(duration, int) and 0 < duration <= _MAX_DURATION_S
    return LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=float(duration) if known and isinstance(duration, int) else DURATION_S,
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        transitions=transitions if isinstance(transitions, int) and 0 <= transitions < (1 << 31) - 1 else 0,
    )


def render_lease(record: LeaseRecord) -> dict[str, Any]:
    """Return a Lease's spec."""
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, int(record.duration_s)),
        "acquireTime": record.acquired or None,
        "renewTime": record.renewed or None,
        "leaseTransitions": record.transitions,
    }
