"""Moments as Kubernetes writes them (RFC 3339), as milliseconds or nanoseconds since 1970. Nothing that is no moment raises."""

import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)\Z", re.ASCII)
_MS_MAX = 253402300799999  # the end of the year 9999


def parse_timestamp_ns(value: object) -> int | None:
    """Return a moment in nanoseconds, None if the value is none."""
    match = _STAMP.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    moment, fraction, zone = match.groups()
    try:
        since = datetime.fromisoformat(moment + ("+00:00" if zone == "Z" else zone)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    return (since.days * 86400 + since.seconds) * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def parse_timestamp_ms(value: object) -> int | None:
    """Return a moment in milliseconds, None if the value is none."""
    found = parse_timestamp_ns(value)
    return None if found is None else found // 1_000_000


def render_timestamp(moment_ms: int) -> str:
    """Return a moment in whole seconds, which is all that metav1.Time holds."""
    bounded = _EPOCH + timedelta(milliseconds=min(max(moment_ms, 0), _MS_MAX))
    return bounded.strftime("%Y-%m-%dT%H:%M:%SZ")
