"""From any exception to the errno that the caller of a system call gets."""

import errno
import logging
from collections import Counter

from sidecar.protocol_filesystem import OperationAbsent
from sidemount.model.errors import (
    BadMessage,
    HostFailure,
    InvalidRequest,
    NotReady,
    OperationPending,
    PolicyDenied,
    PublishConflict,
    UnknownDriverClass,
    Unsupported,
    VolumeError,
)

_LOG = logging.getLogger(__name__)
_LAST_ERRNO = 511  # the kernel refuses an answer beyond it, and the request would hang for ever

ERRNO: dict[type[VolumeError], int] = {
    InvalidRequest: errno.EINVAL,
    UnknownDriverClass: errno.ENODEV,
    PolicyDenied: errno.EACCES,
    PublishConflict: errno.EEXIST,
    OperationPending: errno.EBUSY,
    NotReady: errno.EAGAIN,
    Unsupported: errno.EOPNOTSUPP,
    HostFailure: errno.EIO,
    BadMessage: errno.EIO,
}

# Answers that mean trouble of the store, not of the caller.
_ALARMING = frozenset(
    {errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.ENODEV, errno.EUCLEAN, errno.EREMOTEIO, errno.ENOMEM}
)


class ErrnoTable:
    """Turns exceptions into errnos and logs the ones that somebody should see.

    A defect is logged with its trace the first time, then without at every power of two: a filesystem that fails a
    thousand times a second must not bury its first report.
    """

    def __init__(self) -> None:
        self._seen: Counter[tuple[object, ...]] = Counter()

    def answer(self, operation: str, error: BaseException) -> int:
        """Return the errno for an exception that came out of an operation."""
        match error:
            case OperationAbsent():
                return errno.ENOSYS
            case MemoryError():
                return self._alarm(operation, errno.ENOMEM, error)
            case OSError():
                number = sane(error.errno)
            case HostFailure():
                number = sane(error.errno)
            case VolumeError():
                return next(ERRNO[kind] for kind in type(error).__mro__ if kind in ERRNO)
            case _:
                return self.defect(operation, error)
        return self._alarm(operation, number, error) if number in _ALARMING else number

    def defect(self, operation: str, error: BaseException) -> int:
        """Log an exception that nobody expected, and return EIO."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        line = (place.tb_frame.f_code.co_filename, place.tb_lineno) if place is not None else None
        count = self._count((operation, type(error), line))
        if count == 1:
            _LOG.error("operation_raised", extra={"operation": operation}, exc_info=error)
        elif count.bit_count() == 1:
            _LOG.error(
                "operation_raised", extra={"operation": operation, "error": repr(error), "times": count}
            )
        return errno.EIO

    def _alarm(self, operation: str, number: int, error: BaseException) -> int:
        count = self._count((operation, number))
        if count.bit_count() == 1:
            _LOG.warning(
                "store_failed",
                extra={"operation": operation, "errno": errno.errorcode[number], "times": count},
                exc_info=error if isinstance(error, MemoryError) else None,
            )
        return number

    def _count(self, what: tuple[object, ...]) -> int:
        self._seen[what] += 1
        return self._seen[what]


def sane(number: int | None) -> int:
    """Return an errno that the kernel takes.

    A store's own ENOSYS becomes EOPNOTSUPP: passed on, it would switch the operation off for every file of the mount.
    """
    if number == errno.ENOSYS:
        return errno.EOPNOTSUPP
    return number if number is not None and 0 < number <= _LAST_ERRNO else errno.EIO
