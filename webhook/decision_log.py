"""One INFO line a decision, cheap enough for the hot path: rendered at once, written together with its neighbours."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable

import msgspec

from webhook.metrics import Path
from webhook.outcome import Outcome, VolumeOutcome

_FLUSH_AFTER_S = 0.05
_HELD_MAX = 1000
_MESSAGE_MAX = 1024

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
        self._middles: dict[tuple[str, str, str, int], bytes] = {}

    def decided(self, path: Path, outcome: Outcome, elapsed_s: float, size_bytes: int) -> None:
        """Note one decision. Nothing of the pod itself is written but what the decision names."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        self._held.append(
            b'{"time":"%b.%03dZ"%b,"elapsed_us":%d,"size_bytes":%d%b}\n'
            % (
                self._second_text,
                (now - second) * 1000,
                self._middle(path, outcome),
                elapsed_s * 1e6,
                size_bytes,
                _details(outcome) if outcome.message or outcome.volumes else b"",
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

    def _middle(self, path: Path, outcome: Outcome) -> bytes:
        """Return what is the same for every decision of a kind: there are few kinds, all from enums."""
        # `_value_`: `.value` and an enum's hash run Python code, each as slow as all the rest of this.
        key = (path._value_, outcome.verdict._value_, outcome.reason._value_, outcome.code)
        middle = self._middles.get(key)
        if middle is None:
            fields = {
                "level": "INFO",
                "logger": "webhook.decision",
                "event": "review_decided",
                "path": path.value,
                "verdict": outcome.verdict.value,
                "reason": outcome.reason.value,
                "code": outcome.code,
            }
            middle = self._middles[key] = b"," + _encode(fields)[1:-1]
        return middle


def _details(outcome: Outcome) -> bytes:
    fields = {
        "message": outcome.message[:_MESSAGE_MAX],
        "volumes": [_volume(volume) for volume in outcome.volumes],
    }
    return b"," + _encode(fields)[1:-1]


def _volume(volume: VolumeOutcome) -> dict[str, str]:
    return {
        "volume": volume.volume,
        "driver_class": volume.driver_class,
        "delivery": volume.delivery,
        "reason": volume.reason.value,
    }
