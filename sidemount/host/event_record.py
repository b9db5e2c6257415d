"""EventRecord: one Event object, which stands for every occurrence of one reason at one volume of one object, mostly a pod.

Its name follows from what it is about, and it says itself what it has told last: whoever comes after a restart finds it and
tells nothing twice. Source: https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/ (core/v1 is what
`kubectl describe` reads).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, Protocol

from sidemount.model.timestamp import parse_timestamp_ms, render_timestamp

_LAST = "sidemount.io/last-occurrence"
_PREFIX_MAX = 220
_COUNT_MAX = (1 << 31) - 1
_MS_MAX = 1 << 53

Key = tuple[str, str, str, str]
"""Namespace, the object's uid, reason, what of the object it is about."""


class Occurrence(Protocol):
    """One thing that happened to a pod. `reason` is of the teller's own, `message` holds no secret and at most 1,024 characters.

    `about`: which of several things of the pod; `field_path`: where in the pod, "" if nowhere.
    """

    @property
    def namespace(self) -> str: ...

    @property
    def pod(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def reason(self) -> Enum: ...

    @property
    def is_warning(self) -> bool: ...

    @property
    def at_ms(self) -> int: ...

    @property
    def message(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def field_path(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Teller:
    """Who tells: what of us, and which one."""

    component: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """What an Event says. `version` is its resourceVersion, "" before it is made."""

    count: int
    first_ms: int
    last_ms: int
    version: str = ""


def key_of(occurrence: Occurrence) -> Key:
    """Return which Event tells of it."""
    return occurrence.namespace, occurrence.uid, occurrence.reason.value, occurrence.about


def event_name(occurrence: Occurrence) -> str:
    """Return the Event's name: the pod's, and a hash of what it is about."""
    digest = sha256("/".join(key_of(occurrence)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{occurrence.pod[:_PREFIX_MAX].rstrip('.-')}.{digest}"


def read_record(document: Mapping[str, Any]) -> EventRecord:
    """Return what an Event says. What is missing or odd counts as nothing told."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    annotations = metadata.get("annotations")
    last = annotations.get(_LAST) if isinstance(annotations, dict) else None
    count, version = document.get("count"), metadata.get("resourceVersion")
    is_number = isinstance(last, str) and last.isascii() and last.isdigit() and len(last) < 17
    first_ms = parse_timestamp_ms(document.get("firstTimestamp"))
    return EventRecord(
        count=count
        if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= _COUNT_MAX
        else 0,
        first_ms=0 if first_ms is None else first_ms,
        last_ms=min(int(last), _MS_MAX) if is_number and last else 0,
        version=version if isinstance(version, str) else "",
    )


def merged(record: EventRecord | None, moments_ms: Iterable[int]) -> EventRecord | None:
    """Return the record with further occurrences, None if it tells of all of them already."""
    last_ms = record.last_ms if record is not None else -1
    fresh = [moment for moment in moments_ms if moment > last_ms]
    if not fresh:
        return None
    return EventRecord(
        count=min((record.count if record is not None else 0) + len(fresh), _COUNT_MAX),
        first_ms=(record.first_ms if record is not None else 0) or min(fresh),
        last_ms=max(fresh),
        version=record.version if record is not None else "",
    )


def render_event(occurrence: Occurrence, record: EventRecord, teller: Teller) -> dict[str, Any]:
    """Return a new Event; `occurrence` is the latest."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(occurrence),
            "namespace": occurrence.namespace,
            "annotations": {_LAST: str(record.last_ms)},
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": occurrence.namespace,
            "name": occurrence.pod,
            "uid": occurrence.uid,
            **({"fieldPath": occurrence.field_path} if occurrence.field_path else {}),
        },
        "reason": occurrence.reason.value,
        "message": occurrence.message,
        "type": "Warning" if occurrence.is_warning else "Normal",
        "source": {"component": teller.component},
        "reportingComponent": teller.component,
        "reportingInstance": teller.instance[:128],
        "firstTimestamp": render_timestamp(record.first_ms),
        "lastTimestamp": render_timestamp(record.last_ms),
        "count": record.count,
    }


def render_update(occurrence: Occurrence, record: EventRecord) -> Sequence[Mapping[str, Any]]:
    """Return the JSON Patch that brings an Event up to date, if nobody else has meanwhile."""
    return (
        {"op": "test", "path": "/metadata/resourceVersion", "value": record.version},
        {"op": "add", "path": "/metadata/annotations", "value": {_LAST: str(record.last_ms)}},
        {"op": "add", "path": "/count", "value": record.count},
        {"op": "add", "path": "/lastTimestamp", "value": render_timestamp(record.last_ms)},
        {"op": "add", "path": "/message", "value": occurrence.message},
    )
