"""Logs: one JSON object a line on stderr. The one set-up of every process of ours."""

import json
import logging
import sys
import time
from typing import TextIO

# What every record has; anything else was given to it as `extra`.
_PLAIN_ATTRIBUTES = frozenset(
    {*vars(logging.makeLogRecord({})), "fields", "message", "asctime", "taskName", "exc_info", "exc_text"}
)


class EventLog:
    """Writes events, each with the fields bound to this log. Never give it a secret or a whole object."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, **fields: object) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: object) -> "EventLog":
        """Return a log whose every event carries these fields too."""
        return EventLog(self._logger, **{**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        """Tell a detail."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Tell what happens once per request, mount or process."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Tell what someone should look at."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: bool = False, **fields: object) -> None:
        """Tell that we failed."""
        self._write(logging.ERROR, event, fields, exc_info=exc_info)

    def _write(self, level: int, event: str, fields: dict[str, object], *, exc_info: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"fields": {**self._fields, **fields}}
            self._logger.log(level, "%s", event, extra=extra, exc_info=exc_info)


class JsonLines(logging.Formatter):
    """Renders a record as one JSON object; also the records that libraries write in their own way."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "event": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _PLAIN_ATTRIBUTES},
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(process: str, *, level: str = "info", stream: TextIO | None = None) -> EventLog:
    """Send every record of this process to stderr as JSON lines and return the log of `process`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # a log that cannot be written must not make noise of its own
    return log(process)


def log(name: str, **fields: object) -> EventLog:
    """Return a log. `name` is the logger's, for levels and tests."""
    return EventLog(logging.getLogger(f"sidemount.{name}"), **fields)
