"""What a volume counts, and how it is told: in the log, now and then, and to whoever asks."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from sidecar.objects.keys import Hidden
from sidecar.objects.store import StoreFault

_LOG = logging.getLogger(__name__)
_MOST_PREFIXES = 1024
_SHOWN = 200


class Metrics:
    """Counters of one volume. Safe to use from several threads. `sources` add numbers of their own by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hidden: Counter[Hidden] = Counter()
        self._faults: Counter[str] = Counter()
        self._told: set[tuple[Hidden, str]] = set()
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


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN])
