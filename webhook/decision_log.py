"""One INFO line a decision, cheap enough for the hot path: rendered at once, written together with its neighbours."""

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable

import msgspec

from webhook.metrics import Path
from webhook.outcome import Answer, Outcome, VolumeOutcome

_FLUSH_AFTER_S = 0.05
_HELD_MAX = 1000
_MESSAGE_MAX = 1024
_TOLD_MAX = 512
_UID = re.compile(rb'"uid":"([A-Za-z0-9-]{1,64})"')
_UID_WITHIN = 256

_encode = msgspec.json.Encoder().encode


def write_to_stderr(lines: bytes) -> None:
    """Write whole lines to standard error; a reader that went away is no failure of ours."""
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        left = memoryview(lines)
        while left:
            left = left[os.write(2, left) :]


class DecisionLog:
    """Collects lines and writes them at most 50 ms later. One event loop's."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None] = write_to_stderr
    ) -> None:
        self._loop = loop
        self._write = write
        self._held: list[bytes] = []
        self._second = 0
        self._second_text = b""
        self._told: dict[tuple[str, int], tuple[Outcome, bytes]] = {}

    def decided(self, path: Path, answer: Answer, elapsed_s: float, size_bytes: int) -> None:
        """Note one decision. Nothing of the pod itself is written but what the decision names."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        # The uid is taken from the answer, which begins with it; one that would need escaping is not repeated.
        found = _UID.search(answer.body, 0, _UID_WITHIN)
        self._held.append(
            b'{"time":"%b.%03dZ",%b,"uid":"%b","elapsed_us":%d,"size_bytes":%d}\n'
            % (
                self._second_text,
                (now - second) * 1000,
                self._what(path, answer.outcome),
                found[1] if found is not None else b"",
                elapsed_s * 1e6,
                size_bytes,
            )
        )
        if len(self._held) == 1:
            self._loop.call_later(_FLUSH_AFTER_S, self.flush)
        elif len(self._held) >= _HELD_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            lines = b"".join(self._held)
            self._held.clear()
            self._write(lines)

    def _what(self, path: Path, outcome: Outcome) -> bytes:
        """Return what a line says of an outcome. One outcome answers for all pods of a workload: it is rendered once."""
        key = (path._value_, id(outcome))  # not the enum: its hash runs Python code
        told = self._told.get(key)
        if told is not None and told[0] is outcome:
            return told[1]
        fields = {
            "level": "info",
            "process": "webhook",
            "event": "review_decided",
            "path": path.value,
            "verdict": outcome.verdict.value,
            "reason": outcome.reason.value,
            "code": outcome.code,
            "message": outcome.message[:_MESSAGE_MAX],
            "volumes": [_volume(volume) for volume in outcome.volumes],
        }
        what = _encode(fields)[1:-1]
        if len(self._told) >= _TOLD_MAX:
            self._told.clear()
        self._told[key] = (outcome, what)
        return what


def _volume(volume: VolumeOutcome) -> dict[str, str]:
    return {
        "volume": volume.volume,
        "driver_class": volume.driver_class,
        "delivery": volume.delivery,
        "reason": volume.reason.value,
    }
