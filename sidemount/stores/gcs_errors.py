"""What Google Cloud Storage's errors mean: https://cloud.google.com/storage/docs/json_api/v1/status-codes."""

import json
import re

from sidemount.stores.faults import kind_of_status
from sidemount.stores.http_message import Answer
from sidemount.stores.retries import Refusal
from sidemount.stores.store import FaultKind

NO_BUCKET = "bucketNotFound"  # which Google says in words only
_THROTTLED = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})
_UNLIKE = re.compile(r"hash .* doesn't match calculated", re.IGNORECASE)
_TEXT = 300


def refusal_of(answer: Answer) -> Refusal:
    """Return why the store refused."""
    reason, told = _told(answer.body)
    status = answer.status
    if status == 404 and told.startswith("The specified bucket"):
        reason = NO_BUCKET
    kind = kind_of_status(status)
    if status == 401:
        kind = FaultKind.CREDENTIALS
    elif status == 403 and reason in _THROTTLED:
        kind = FaultKind.THROTTLED
    elif status == 400 and _UNLIKE.search(told):
        kind = FaultKind.CHECKSUM
    text = f"HTTP {status}" + (f" {reason}" if reason else "") + (f": {told}" if told else "")
    pause = answer.headers.get("retry-after", "")
    pause_s = min(float(pause), 60.0) if pause.isascii() and pause.isdigit() else 0.0
    return Refusal(kind, text, reason, status, pause_s)


def _told(body: bytes) -> tuple[str, str]:
    """Return the reason and the message of an error document, "" for what it does not tell."""
    try:
        error = json.loads(body)["error"]
        reason = error["errors"][0]["reason"] if error.get("errors") else ""
        message = error.get("message", "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", ""
    return str(reason)[:80], " ".join(str(message).split())[:_TEXT]
