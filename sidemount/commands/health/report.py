"""Reports as text for a person and as a document for a program."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sidemount.commands.health.judgement import UNHEALTHY, Health, PodReport, VolumeReport
from sidemount.commands.output import printable, table

_NONE = "-"
_VIEWS_TOLD = 4
_REMARKS_MAX = 20
_TOLD_NUMBERS = (
    ("write_files_lost", "closed files were given up and will never be in the store"),
    ("write_abandoned", "closed files are not in the store yet: their commit fails and is tried again"),
    ("fault_credentials", "operations failed for want of usable credentials"),
    ("fault_denied", "operations were denied by the store"),
)


def render_table(reports: Sequence[PodReport], *, now_ms: int, wide: bool, namespaces: bool) -> str:
    """Return a line a volume, and beneath it what is wrong and what to do."""
    header = _header(wide=wide, namespaces=namespaces)
    rows = [
        _row(report, volume, now_ms=now_ms, wide=wide, namespaces=namespaces)
        for report in reports
        for volume in report.volumes
    ]
    # What needs a look goes first, whatever else there is to say.
    told = [line for report in sorted(reports, key=_needs_no_look) for line in _remarks(report)]
    if len(told) > _REMARKS_MAX:
        told[_REMARKS_MAX:] = [f"and {len(told) - _REMARKS_MAX} more: -o json has all"]
    return "\n".join([table(header, rows), *([""] if told else []), *told, "", summary(reports)])


def _needs_no_look(report: PodReport) -> bool:
    return not report.is_unhealthy


def summary(reports: Sequence[PodReport]) -> str:
    """Return one line that says how all is."""
    volumes = [volume for report in reports for volume in report.volumes]
    bad = sum(volume.health in UNHEALTHY for volume in volumes)
    counts = {health: sum(volume.health is health for volume in volumes) for health in Health}
    listed = ", ".join(f"{count} {health.value}" for health, count in counts.items() if count)
    return f"status: {_many(len(reports), 'pod')}, {_many(len(volumes), 'volume')}: {listed}" + (
        f"; {bad} {'needs' if bad == 1 else 'need'} a look" if bad else ""
    )


def as_document(reports: Sequence[PodReport], notes: Sequence[str]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "healthy": not any(report.is_unhealthy for report in reports),
        "pods": [_pod(report) for report in reports],
        "notes": list(notes),
    }


def _header(*, wide: bool, namespaces: bool) -> tuple[str, ...]:
    first = ("NAMESPACE",) if namespaces else ()
    usual = (
        *first,
        "POD",
        "VOLUME",
        "CLASS",
        "SOURCE",
        "MODE",
        "HEALTH",
        "TAKEOVERS",
        "STALL",
        "RESTARTS",
        "SINCE",
    )
    return (*usual, "DELIVERY", "VIEWS", "REMOUNTS", "LAYERS", "NODE") if wide else usual


def _row(
    report: PodReport, found: VolumeReport, *, now_ms: int, wide: bool, namespaces: bool
) -> tuple[str, ...]:
    pod, volume, log = report.pod, found.volume, found.log
    more = "" if report.is_counted else "+"
    usual = (
        *((pod.namespace,) if namespaces else ()),
        pod.name,
        volume.name or _NONE,
        volume.driver_class or _NONE,
        volume.source or _NONE,
        ("ro" if volume.read_only else "rw") if volume.delivery else _NONE,
        found.health.value,
        _NONE if log is None else f"{log.takeovers}{more}",
        _NONE if log is None or log.last_stall_ms is None else duration(log.last_stall_ms),
        _restarts(report, found),
        age(now_ms - found.since_ms) if found.since_ms else _NONE,
    )
    if not wide:
        return usual
    return (
        *usual,
        volume.delivery or _NONE,
        _views(volume.views),
        _NONE if log is None else f"{log.remounts}{more}",
        _NONE if log is None else str(log.layers),
        pod.node or _NONE,
    )


def _restarts(report: PodReport, found: VolumeReport) -> str:
    daemon, keeper = found.volume.container, report.pod.keeper
    if daemon is None:
        return _NONE
    own = str(daemon.restarts)
    return f"{own} (keeper {keeper.restarts})" if keeper is not None and keeper.restarts else own


def _views(views: Sequence[tuple[str, bool]]) -> str:
    told = [f"{sub_path or '/'}{':ro' if read_only else ''}" for sub_path, read_only in views[:_VIEWS_TOLD]]
    more = f",+{len(views) - _VIEWS_TOLD}" if len(views) > _VIEWS_TOLD else ""
    return ",".join(told) + more or _NONE


def _remarks(report: PodReport) -> list[str]:
    """Return what to say beneath the table of volumes that are not simply serving: once for those of one fault."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for found in report.volumes:
        if found.why and found.health not in (Health.SERVING, Health.ENDED, Health.ENDING):
            said.setdefault((found.health.value, found.why, found.way_out), []).append(found.volume.name)
    remarks = [
        printable(
            f"{report.pod.namespace}/{report.pod.name}"
            + "".join(f" {name}" for name in [", ".join(filter(None, names))] if name)
            + f": {health}: {why}"
            + (f"; {way_out}" if way_out else "")
        )
        for (health, why, way_out), names in said.items()
    ]
    return [*remarks, *_remarks_of_buckets(report)]


def _remarks_of_buckets(report: PodReport) -> list[str]:
    """Return what a bucket's volume counts that somebody should know: its health is that of its daemon."""
    return [
        printable(
            f"{report.pod.namespace}/{report.pod.name} {found.volume.name}: {found.log.numbers[name]} {text}"
        )
        for found in report.volumes
        for name, text in _TOLD_NUMBERS
        if found.log is not None and found.log.numbers.get(name)
    ]


def _pod(report: PodReport) -> dict[str, Any]:
    pod = report.pod
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "node": pod.node,
        "phase": pod.phase,
        "healthy": not report.is_unhealthy,
        "keeperRestarts": pod.keeper.restarts if pod.keeper is not None else None,
        "log": report.log_fault or ("read" if any(each.log for each in report.volumes) else "not read"),
        "volumes": [_volume(report, found) for found in report.volumes],
        "faults": list(pod.faults),
    }


def _volume(report: PodReport, found: VolumeReport) -> dict[str, Any]:
    volume = found.volume
    return {
        "name": volume.name,
        "class": volume.driver_class,
        "source": volume.source,
        "delivery": volume.delivery,
        "reason": volume.reason,
        "subPath": volume.sub_path,
        "readOnly": volume.read_only,
        "takeover": volume.takeover,
        "views": [{"subPath": sub_path, "readOnly": read_only} for sub_path, read_only in volume.views],
        "health": found.health.value,
        "why": found.why,
        "wayOut": found.way_out,
        "since": moment(found.since_ms) if found.since_ms else None,
        "daemonRestarts": volume.container.restarts if volume.container is not None else None,
        "lastEnd": volume.container.last_end if volume.container is not None else "",
        **_counts(report, found),
    }


def _counts(report: PodReport, found: VolumeReport) -> Mapping[str, Any]:
    """Return what only the log tells; null where there is none."""
    log = found.log
    return {
        "phase": log and log.phase,
        "takeovers": log and log.takeovers,
        "remounts": log and log.remounts,
        "lastStallMs": log and log.last_stall_ms,
        "worstStallMs": log and log.worst_stall_ms,
        "layers": log and log.layers,
        "lastFault": log and log.fault,
        "numbers": dict(sorted(log.numbers.items())) if log and log.numbers else None,
        "countedSinceStart": report.is_counted if log else None,
    }


def duration(milliseconds: int) -> str:
    """Return a short time for a person: 31 ms, 2.4 s, 5 min."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 120_000 else f"{milliseconds // 60_000} min"


def age(milliseconds: int) -> str:
    """Return a long time as kubectl does: 42s, 7m, 5h, 3d."""
    seconds = max(0, milliseconds // 1000)
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def moment(milliseconds: int) -> str:
    """Return a moment in RFC 3339."""
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
