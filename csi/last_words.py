"""Why a daemon has ended, from the end of its log: its own error if it wrote one, else its last lines. No secret passes."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sidemount.model.redaction import spellings, without

_TAIL_BYTES = 8192
_TOLD_CHARS = 600


@dataclass(frozen=True, slots=True)
class LastWords:
    """`fault` and `hint`, "" if there are none. `is_own`: the daemon's own error, in our words."""

    fault: str
    hint: str = ""
    is_own: bool = False


def read_last_words(path: str, secrets: Iterable[str] = ()) -> LastWords:
    """Return what the log's end tells."""
    return last_words_of(_tail(path), secrets)


def last_words_of(lines: Sequence[str], secrets: Iterable[str] = ()) -> LastWords:
    """Return what a log's last lines tell."""
    secrets = tuple(secrets)
    for line in reversed(lines):
        event = _event(line)
        if event.get("level") != "error":
            continue
        if "fault" in event:
            fault, hint = str(event["fault"]), str(event.get("hint", ""))
            return LastWords(redacted(fault, secrets), redacted(hint, secrets), is_own=True)
        if isinstance(event.get("output"), list):  # an external client's last lines
            return LastWords(redacted(" | ".join(map(str, event["output"][-4:])), secrets))
    plain = [line for line in lines if not line.startswith("{")]
    return LastWords(redacted(" | ".join(plain[-4:]), secrets))


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # a client's own output, and that may be anything
        return {}
    return event if isinstance(event, dict) else {}


def _tail(path: str) -> list[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        size = os.fstat(descriptor).st_size
        raw = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    finally:
        os.close(descriptor)
    if size > len(raw):  # what begins in the middle may be the rest of anything
        raw = raw.partition(b"\n")[2]
    return [line for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return the text, bounded, without any of the secrets."""
    return without(text, spellings(secrets))[:_TOLD_CHARS]
