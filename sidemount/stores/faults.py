"""What can go wrong at a store: the one table from kinds to errno, which kinds are tried again, and how many there were."""

import errno
import os
import threading
from collections.abc import Callable, Mapping

from sidemount.stores.store import FaultKind, StoreFault

ERRNO: Mapping[FaultKind, int] = {
    FaultKind.MISSING: errno.ENOENT,
    FaultKind.DENIED: errno.EACCES,
    FaultKind.CREDENTIALS: errno.EACCES,
    FaultKind.EXISTS: errno.EEXIST,
    FaultKind.CHANGED: errno.ESTALE,
    FaultKind.CONFLICT: errno.EBUSY,
    FaultKind.RANGE: errno.EINVAL,
    FaultKind.REQUEST: errno.EIO,
    FaultKind.THROTTLED: errno.EIO,
    FaultKind.SERVER: errno.EIO,
    FaultKind.TIMEOUT: errno.ETIMEDOUT,
    FaultKind.RESET: errno.EIO,
    FaultKind.NAME: errno.EHOSTUNREACH,
    FaultKind.TLS: errno.EIO,
    FaultKind.TRUNCATED: errno.EIO,
    FaultKind.CHECKSUM: errno.EIO,
    FaultKind.ANSWER: errno.EIO,
    FaultKind.UNSUPPORTED: errno.EOPNOTSUPP,
    FaultKind.TOO_LARGE: errno.EFBIG,
}

RETRIED = frozenset(
    {
        FaultKind.THROTTLED,
        FaultKind.SERVER,
        FaultKind.TIMEOUT,
        FaultKind.RESET,
        FaultKind.NAME,
        FaultKind.TRUNCATED,
        FaultKind.CHECKSUM,
        FaultKind.ANSWER,
    }
)
"""Kinds that may pass by themselves. Everything else is an answer to what was asked."""

# After these nobody knows whether the store has carried out what it was asked.
DOUBTFUL = RETRIED - {FaultKind.THROTTLED, FaultKind.NAME}


def kind_of_status(status: int) -> FaultKind:
    """Return the kind of an HTTP status that is no success, for stores and answers that say no more than that."""
    match status:
        case 404 | 410:
            return FaultKind.MISSING
        case 401 | 403 | 407:
            return FaultKind.DENIED
        case 408:
            return FaultKind.TIMEOUT
        case 409:
            return FaultKind.CONFLICT
        case 412:
            return FaultKind.CHANGED
        case 413:
            return FaultKind.TOO_LARGE
        case 416:
            return FaultKind.RANGE
        case 429 | 503:
            return FaultKind.THROTTLED
        case 501:
            return FaultKind.UNSUPPORTED
    if 300 <= status < 500:  # where a redirect leads is for the protocol to follow, or not
        return FaultKind.REQUEST
    return FaultKind.SERVER if status >= 500 else FaultKind.ANSWER


def fault(kind: FaultKind, message: str, *, number: int = 0) -> StoreFault:
    """Return the fault that an application gets for a kind. `number` overrides the table's errno."""
    return StoreFault(number or ERRNO[kind], kind, message)


def plain(kind: FaultKind, what: str) -> StoreFault:
    """Return a fault that nothing more can be said of than what it is of."""
    return fault(kind, f"{what}: {os.strerror(ERRNO[kind])}")


class Counts:
    """Plain numbers of what was asked of a store and what failed. `observe` hears of each fault, in the thread that met it."""

    def __init__(self, observe: Callable[[FaultKind], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._observe = observe
        self.requests = 0
        self.retries = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.unreadable_keys = 0  # listed, and no UTF-8: no path of ours could name them
        self.faults: dict[FaultKind, int] = dict.fromkeys(FaultKind, 0)

    def asked(self, *, again: bool) -> None:
        """Count a request; `again`, if it repeats one that failed."""
        with self._lock:
            self.requests += 1
            self.retries += again

    def moved(self, received: int, sent: int) -> None:
        """Count bytes of bodies."""
        with self._lock:
            self.received_bytes += received
            self.sent_bytes += sent

    def failed(self, kind: FaultKind) -> None:
        """Count a fault, whether it is tried again or not."""
        with self._lock:
            self.faults[kind] += 1
        if self._observe is not None:
            self._observe(kind)

    def numbers(self) -> dict[str, int]:
        """Return everything by name."""
        with self._lock:
            return {
                "requests": self.requests,
                "retries": self.retries,
                "received_bytes": self.received_bytes,
                "sent_bytes": self.sent_bytes,
                "unreadable_keys": self.unreadable_keys,
                **{f"faults_{kind.value}": count for kind, count in self.faults.items()},
            }
