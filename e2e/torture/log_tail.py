"""A file of JSON lines that somebody is still writing."""

import contextlib
import json
from pathlib import Path
from typing import Any


class LogTail:
    """Follows it. Lines that are not JSON objects are passed over."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.path = path
        self._file = path.open("rb")
        self._rest = b""
        self.lines: list[dict[str, Any]] = []
        self._counts: dict[tuple[object, ...], tuple[int, int]] = {}

    def read(self) -> None:
        """Take what has been written since."""
        if self._file.closed:
            return
        self._rest += self._file.read()
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                self.lines += [value] if isinstance(value, dict) else []

    def count(self, event: str, **fields: object) -> int:
        """Return how many events of a name there were, with these fields."""
        self.read()
        asked = (event, *sorted(fields.items()))
        seen, number = self._counts.get(asked, (0, 0))
        wanted = {"event": event, **fields}.items()
        number += sum(all(line.get(k) == v for k, v in wanted) for line in self.lines[seen:])
        self._counts[asked] = len(self.lines), number
        return number

    def close(self) -> None:
        """Follow no more."""
        self._file.close()
