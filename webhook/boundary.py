"""The one table from our errors to an AdmissionResponse."""

import logging

from sidemount.model.errors import (
    BadMessage,
    HostFailure,
    InvalidRequest,
    NotReady,
    OperationPending,
    PolicyDenied,
    PublishConflict,
    Reason,
    UnknownDriverClass,
    Unsupported,
    VolumeError,
)
from webhook.outcome import Outcome, Verdict
from webhook.proof import NotProved

_log = logging.getLogger("webhook.boundary")

# The most derived class counts. A conflict of operations cannot arise where nothing is done; it is here to be total.
CODES: dict[type[VolumeError], int] = {
    InvalidRequest: 400,
    UnknownDriverClass: 400,
    PolicyDenied: 403,
    PublishConflict: 409,
    OperationPending: 409,
    NotReady: 500,
    Unsupported: 400,
    HostFailure: 500,
    BadMessage: 500,
}


def code_of(error: VolumeError) -> int:
    """Return the HTTP code of an error's class; of several faults together, the first one's."""
    faults: tuple[VolumeError, ...] = getattr(error, "faults", ())
    first = faults[0] if faults else error
    return next(CODES[kind] for kind in type(first).__mro__ if kind in CODES)


def denied(error: VolumeError) -> Outcome:
    """Return the denial that an error of ours makes."""
    return Outcome(verdict=Verdict.DENIED, reason=error.reason, message=str(error), code=code_of(error))


def not_proved(error: NotProved) -> Outcome:
    """Return the denial of a pod whose patch did not pass its proof, and say so where someone looks."""
    _log.error("patch_not_proved", extra={"reason": Reason.PATCH_NOT_PROVED.value, "why": str(error)})
    return Outcome(
        verdict=Verdict.DENIED,
        reason=Reason.PATCH_NOT_PROVED,
        message=f"the patch for this pod did not pass its own proof and was not sent ({error}); this is a fault of ours",
        code=500,
        proof_failed=True,
    )


def unexpected(error: Exception) -> Outcome:
    """Return the denial that a fault of our own makes; the trace goes to the log and nowhere else."""
    _log.error("admission_failed", extra={"error": type(error).__name__}, exc_info=error)
    return Outcome(
        verdict=Verdict.DENIED,
        reason=Reason.HOST_FAILURE,
        message=f"the webhook failed on this pod ({type(error).__name__}); its log has the trace",
        code=500,
    )
