"""What CSI tells apart and the common error tree does not: each is one of its errors, with a code of its own here."""

from sidemount.model.errors import HostFailure, InvalidRequest, PublishConflict, Reason


class NotFound(InvalidRequest):
    """No such volume, or not published there."""

    default_reason = Reason.NO_SUCH_VOLUME


class WrongState(PublishConflict):
    """Understood, but the node, the target or the volume is not as the call needs it."""


class PoolClosed(WrongState):
    """A pool in a bucket that nobody can look into now: no class serves it, or there are no credentials for it."""


class BeyondRange(InvalidRequest):
    """A size that the volume cannot have."""


class TooLate(HostFailure):
    """What was waited for did not come in time. The caller may try again."""


class NoRoom(HostFailure):
    """The machine or the store is full. The caller may try again."""
