"""What a volume counts, and how it is told: in the log, now and then, and to whoever asks."""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass

from sidecar.objects.keys import Hidden
from sidemount.stores.store import StoreFault

_LOG = logging.getLogger(__name__)
_MOST_PREFIXES = 1024
_SHOWN = 200
_EVERY_S = 60.0


class Metrics:
    """Counters of one volume. Safe to use from several threads. `sources` add numbers of their own by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hidden: Counter[Hidden] = Counter()
        self._faults: Counter[str] = Counter()
        self._told: set[tuple[Hidden, str]] = set()
        self._last: dict[str, int] = {}
        self._is_closed = threading.Event()
        self.sources: dict[str, Callable[[], Mapping[str, int]]] = {}

    def hide(self, kind: Hidden, prefix: str, key: str) -> None:
        """Count a key that is not shown; the first of its kind with that prefix is logged."""
        with self._lock:
            self._hidden[kind] += 1
            is_new = (kind, prefix) not in self._told and len(self._told) < _MOST_PREFIXES
            if is_new:
                self._told.add((kind, prefix))
        if is_new:
            _LOG.warning(
                "key_hidden",
                extra={"why": kind.value, "prefix": _shown(prefix), "key": _shown(key)},
            )

    def fault(self, fault: StoreFault) -> None:
        """Count a call to the store that failed for good."""
        with self._lock:
            self._faults[fault.kind.value] += 1

    def numbers(self) -> dict[str, int]:
        """Return all numbers by name."""
        with self._lock:
            found = {f"hidden_{kind.value}": count for kind, count in self._hidden.items()}
            found |= {f"fault_{kind}": count for kind, count in self._faults.items()}
        for source, numbers in self.sources.items():
            found |= {f"{source}_{name}": count for name, count in numbers().items()}
        return found

    def begin(self, every_s: float = _EVERY_S) -> None:
        """Tell the log from now on, as often as that, if anything has changed."""
        with contextlib.suppress(RuntimeError):  # no memory for a thread: then nobody hears of it
            threading.Thread(target=self._tell, args=(every_s,), name="numbers", daemon=True).start()

    def close(self) -> None:
        """Tell the log for the last time."""
        self._is_closed.set()
        self._tell_changes()

    def _tell(self, every_s: float) -> None:
        while not self._is_closed.wait(every_s):
            self._tell_changes()

    def _tell_changes(self) -> None:
        numbers = self.numbers()
        with self._lock:
            is_same, self._last = numbers == self._last, numbers
        if not is_same:
            _LOG.info("numbers", extra={name: count for name, count in sorted(numbers.items()) if count})


def numbers_in(statistics: object, prefix: str = "") -> dict[str, int]:
    """Return the numbers in a dataclass, and in those that are in it."""
    found: dict[str, int] = {}
    for field in fields(statistics):  # type: ignore[arg-type]  # whoever calls has a dataclass
        value = getattr(statistics, field.name)
        if is_dataclass(value):
            found |= numbers_in(value, f"{prefix}{field.name}_")
        elif isinstance(value, int):
            found[f"{prefix}{field.name}"] = int(value)
    return found


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN])
