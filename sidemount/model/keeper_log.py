"""What a keeper's log tells of its volumes: lines in, events and health out. Whatever else a log holds is passed over.

A log is text of a container, so anything may be in it: no line makes this raise, and nothing that is kept grows with the log.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from sidemount.model.names import volume_name_fault
from sidemount.model.object_numbers import NAMES_MAX, NUMBER_MAX, Report, known_numbers
from sidemount.model.timestamp import parse_timestamp_ms, parse_timestamp_ns

LINE_MAX = 1 << 16
TEXT_MAX = 200
STALLS_MAX = 32
VOLUMES_MAX = 64
_COUNT_MAX = 1 << 31
_SCRUBBED_MAX = 4096
_STAMP_MAX = 40
_USER_INFO = re.compile(r"//[^/@\s]{1,512}@")
_SECRET = re.compile(
    r"(?i)((?:secret|token|passw|pwd|signature|credential|access_?key|api_?key|authorization)[\w.-]{0,64}[\"']?\s{0,4}[=:]\s{0,4})"
    r"(?:(?:bearer|basic)\s{1,4})?[^\s&,;]+"
)


class Kind(Enum):
    """What a line tells, by its `event`."""

    PHASE = "phase_changed"
    MOUNTED = "volume_mounted"
    SERVED = "served"  # live for the first time
    TAKEN_OVER = "taken_over"  # a fresh daemon continues the connection: a pause, nothing more
    REMOUNTED = "remounted"  # a fresh connection: files that were open are lost
    CAME_BACK = "came_back"  # a restarted keeper has found everything in its place
    ABNORMAL = "daemon_abnormal"
    RECOVERED = "daemon_recovered"
    HUNG = "container_called_hung"
    WORKS_AGAIN = "container_works_again"
    DETACHED = "volume_detached"
    COUNTED = "volume_counted"  # what its daemon's process has counted since it began
    FAULT = "fault"  # any other warning or error


class HealthState(Enum):
    """How a volume is."""

    SERVING = "serving"
    WAITING = "waiting"  # not live: it is being made, or waits for its daemon
    ABNORMAL = "abnormal"  # live or trying, but its daemon dies again and again
    HUNG = "hung"  # nobody in the daemon's container does anything any more
    DETACHED = "detached"  # the pod is ending


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperEvent:
    """One line that matters. `volume` is "" for the keeper itself; `text` is a cause, a reason or a fault, "" if there is none."""

    at_ms: int
    kind: Kind
    volume: str
    phase: str = ""
    generation: int | None = None
    stall_ms: int | None = None
    layers: int | None = None
    text: str = ""
    counted: Report | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHealth:
    """What is known of a volume from its keeper's log, so since that keeper started.

    `stalls_ms`: the latest pauses, oldest first; `worst_stall_ms` is the longest of all. `at_ms`: when anything was last told.
    `numbers`: what the process that serves has counted, for a bucket's volume.
    """

    volume: str = ""
    phase: str = ""
    abnormal: str = ""
    hung: str = ""
    generation: int = 0
    takeovers: int = 0
    remounts: int = 0
    layers: int = 0
    stalls_ms: tuple[int, ...] = ()
    worst_stall_ms: int = 0
    fault: str = ""
    fault_at_ms: int = 0
    at_ms: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def state(self) -> HealthState:
        """How it is now."""
        if self.phase in _ENDING:
            return HealthState.DETACHED
        if self.hung:
            return HealthState.HUNG
        if self.abnormal:
            return HealthState.ABNORMAL
        return HealthState.SERVING if self.phase == _SERVING else HealthState.WAITING

    @property
    def last_stall_ms(self) -> int | None:
        """The latest pause, None if there was none."""
        return self.stalls_ms[-1] if self.stalls_ms else None


_SERVING = "Serving"
_ENDING = ("Flushing", "Detached")
_FRESH = ("Mounting", "Aborted")
_PHASES = frozenset(
    {"Mounting", "Adopting", "WaitingForDaemon", "Starting", "Attaching", _SERVING, "Aborted", *_ENDING}
)
_KINDS: Mapping[str, Kind] = {kind.value: kind for kind in Kind if kind is not Kind.FAULT}
_BAD_LEVELS = ("warning", "error", "critical")
_TEXTS = ("fault", "what", "why", "cause", "was", "detail", "consequence")


def parse_line(text: str) -> KeeperEvent | None:
    """Return what a line tells, None if it tells nothing of ours. A stamp of the container runtime before it is allowed."""
    if not isinstance(text, str) or len(text) > LINE_MAX:
        return None
    stamp_ns, line = split_stamp(text)
    fields = _object(line)
    if fields is None or fields.get("process") != "keeper":
        return None
    name, level, volume = fields.get("event"), fields.get("level"), fields.get("volume", "")
    at_ms = parse_timestamp_ms(fields.get("time"))
    if at_ms is None and stamp_ns is not None:
        at_ms = stamp_ns // 1_000_000
    if at_ms is None or not isinstance(name, str) or not isinstance(volume, str):
        return None
    if volume and volume_name_fault(volume):
        return None
    if name == Kind.COUNTED.value:
        return _counted(fields, at_ms, volume)
    kind = _KINDS.get(name)
    if kind is None and level not in _BAD_LEVELS:
        return None
    said = next((fields[key] for key in _TEXTS if isinstance(fields.get(key), str) and fields[key]), "")
    if kind is None:
        kind, said = Kind.FAULT, f"{name}: {said}" if said else name
    phase = fields.get("phase")
    return KeeperEvent(
        at_ms=at_ms,
        kind=kind,
        volume=volume,
        phase=phase if isinstance(phase, str) and phase in _PHASES else "",
        generation=_count(fields.get("generation")),
        stall_ms=_count(fields.get("stall_ms")),
        layers=_count(fields.get("layers")),
        text=told(said),
    )


def _counted(fields: Mapping[str, Any], at_ms: int, volume: str) -> KeeperEvent | None:
    instance, numbers = fields.get("instance"), fields.get("numbers")
    if type(instance) is not int or not 0 <= instance <= NUMBER_MAX:
        return None
    if type(numbers) is not dict or len(numbers) > NAMES_MAX:
        return None
    report = Report(instance, known_numbers(numbers))
    return KeeperEvent(at_ms=at_ms, kind=Kind.COUNTED, volume=volume, counted=report)


def observe(events: Iterable[KeeperEvent], before: VolumeHealth | None = None) -> VolumeHealth:
    """Return a volume's health after events, in the log's order. They are of one volume: `by_volume` parts them."""
    health = before or VolumeHealth()
    for event in events:
        health = _after(health, event)
    return health


def by_volume(
    events: Iterable[KeeperEvent], before: Mapping[str, VolumeHealth] | None = None
) -> dict[str, VolumeHealth]:
    """Return every volume's health after a keeper's events; of no more volumes than a pod could have."""
    found = dict(before or {})
    for event in events:
        known = found.get(event.volume)
        if event.volume and (known is not None or len(found) < VOLUMES_MAX):
            found[event.volume] = _after(known or VolumeHealth(), event)
    return found


def split_stamp(text: str) -> tuple[int | None, str]:
    """Return a line's stamp (`kubectl logs --timestamps`) in nanoseconds since 1970, None if it has none, and the rest."""
    stamp, space, _ = text[:_STAMP_MAX].partition(" ")
    stamp_ns = parse_timestamp_ns(stamp) if space else None
    return (None, text) if stamp_ns is None else (stamp_ns, text[len(stamp) + 1 :])


def told(text: str, most: int = TEXT_MAX) -> str:
    """Return a text fit to be shown to others: one line, of at most so many characters, without what looks like a secret."""
    scrubbed = _SECRET.sub(r"\1…", _USER_INFO.sub("//…@", text[:_SCRUBBED_MAX]))
    line = "".join([char if char.isprintable() else " " for char in scrubbed])
    line = " ".join(line.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _after(health: VolumeHealth, event: KeeperEvent) -> VolumeHealth:
    if event.counted is not None:  # told once a minute, whatever becomes of the volume: no news
        return replace(health, volume=event.volume, numbers=event.counted.numbers)
    health = replace(
        health,
        volume=event.volume,
        at_ms=max(health.at_ms, event.at_ms),
        generation=health.generation if event.generation is None else event.generation,
        layers=health.layers if event.layers is None or event.kind is Kind.DETACHED else event.layers,
    )
    match event.kind:
        case Kind.PHASE if event.phase in _FRESH:
            return replace(health, phase=event.phase, abnormal="")  # what was said was of another daemon
        case Kind.PHASE if event.phase:
            return replace(health, phase=event.phase)
        case Kind.SERVED | Kind.CAME_BACK:
            return replace(health, phase=_SERVING)
        case Kind.TAKEN_OVER:
            return _stalled(replace(health, takeovers=health.takeovers + 1), event)
        case Kind.REMOUNTED:
            return _stalled(replace(health, remounts=health.remounts + 1), event)
        case Kind.ABNORMAL:
            said = event.text or "no reason is given"
            return replace(health, abnormal=said, fault=said, fault_at_ms=event.at_ms)
        case Kind.RECOVERED:
            return replace(health, abnormal="")
        case Kind.HUNG:
            said = event.text or "no reason is given"
            return replace(health, hung=said, fault=said, fault_at_ms=event.at_ms)
        case Kind.WORKS_AGAIN:
            return replace(health, hung="")
        case Kind.DETACHED:
            return replace(health, phase="Detached")
        case Kind.FAULT:
            return replace(health, fault=event.text, fault_at_ms=event.at_ms)
    return health


def _stalled(health: VolumeHealth, event: KeeperEvent) -> VolumeHealth:
    health = replace(health, phase=_SERVING)
    if event.stall_ms is None:
        return health
    stalls = (*health.stalls_ms, event.stall_ms)[-STALLS_MAX:]
    return replace(health, stalls_ms=stalls, worst_stall_ms=max(health.worst_stall_ms, event.stall_ms))


def _object(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _count(value: object) -> int | None:
    """Return a number that is not negative and not absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value < _COUNT_MAX or not math.isfinite(value):
        return None
    return round(value)
