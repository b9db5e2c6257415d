"""What a store's faults mean to a caller of the controller."""

import contextlib
import errno
from collections.abc import Iterator, Mapping

from csi.faults import NoRoom, WrongState
from sidemount.model.errors import HostFailure, NotReady, OperationPending, PolicyDenied, Reason, VolumeError
from sidemount.stores.store import FaultKind, StoreFault

_FULL = frozenset({errno.EDQUOT, errno.ENOSPC})
_AWAY = (
    *(FaultKind.THROTTLED, FaultKind.SERVER, FaultKind.TIMEOUT, FaultKind.RESET, FaultKind.NAME),
    *(FaultKind.TLS, FaultKind.TRUNCATED, FaultKind.CHECKSUM, FaultKind.ANSWER),
)
# The error, and the way out. Whatever is not here is a failure of ours.
_MEANINGS: Mapping[FaultKind, tuple[type[VolumeError], str]] = {
    FaultKind.MISSING: (WrongState, "make the bucket, or correct the pool's source or its class's endpoint"),
    FaultKind.CREDENTIALS: (WrongState, "correct the credentials of the class"),
    FaultKind.UNSUPPORTED: (WrongState, "use another store"),
    FaultKind.CONFLICT: (OperationPending, "try again"),
    FaultKind.EXISTS: (OperationPending, "try again"),
    FaultKind.CHANGED: (OperationPending, "try again"),
    **dict.fromkeys(_AWAY, (NotReady, "try again")),
}


@contextlib.contextmanager
def told_of_bucket(pool: str) -> Iterator[None]:
    """Turn what a store refuses into what the caller can make of it."""
    try:
        yield
    except StoreFault as fault:
        raise _meaning(pool, fault) from fault
    except OSError as error:
        raise HostFailure(f"pool {pool}: {error.strerror}", errno=error.errno or 0) from error


def _meaning(pool: str, fault: StoreFault) -> VolumeError:
    what = f"pool {pool}: {fault.strerror}"
    number = fault.errno or 0
    if number in _FULL:
        return NoRoom(what, errno=number, hint="free space in it, or make it larger")
    if fault.kind is FaultKind.DENIED:
        return PolicyDenied(
            what,
            reason=Reason.CREDENTIALS_REQUIRED,
            hint="let the controller's credentials list, read, write and delete beneath the pool's prefix",
        )
    kind, hint = _MEANINGS.get(fault.kind, (None, ""))
    return HostFailure(what, errno=number) if kind is None else kind(what, hint=hint)
