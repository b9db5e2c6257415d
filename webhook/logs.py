"""Logging of the service: JSON lines on standard error."""

import json
import logging
import sys
import time
from typing import Any, TextIO

_PLAIN = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


class JsonFormatter(logging.Formatter):
    """One line a record: time, level, logger, event, and whatever `extra` holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields: dict[str, Any] = {
            "time": rfc3339(record.created),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        fields.update((key, value) for key, value in record.__dict__.items() if key not in _PLAIN)
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send every record of this process to standard error as JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def rfc3339(seconds: float) -> str:
    """Return a time since the epoch as text, UTC, to the millisecond."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds * 1000) % 1000:03d}Z"
