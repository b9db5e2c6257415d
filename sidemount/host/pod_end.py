"""What SIGTERM means to a keeper: that the pod ends, or that another keeper takes its place. Pure.

kubelet sends it at a pod's end, and when the keeper's image is changed while the pod goes on. It ends native sidecars in reverse order,
each after the later ones are gone; where the grace period leaves no time for that, all of them at once and two seconds before
SIGKILL. So at a pod's end every daemon has ended or been told to, before the keeper or within those two seconds.
Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kuberuntime/kuberuntime_termination_order.go
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sidemount.host.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What one volume tells. `was_told` and `has_answered` are its daemon's; the latter counts from the signal.

    `may_return`: a mount of an earlier keeper is there, whose daemon has not found us yet. `needs_us`: only this keeper holds its
    connection, which would be lost with us.
    """

    is_linked: bool = False
    was_told: bool = False
    has_answered: bool = False
    may_return: bool = False
    needs_us: bool = False


class Meaning(Enum):
    """What is known so far. The values are for the log."""

    UNKNOWN = "not known yet"
    DAEMON_TOLD = "a daemon was told to end, too"
    NO_DAEMON = "no daemon is there"
    NO_ANSWER = "no daemon answers"
    REPLACED = "daemons live and were not told to end"

    @property
    def is_end(self) -> bool:
        """Tell whether the pod ends."""
        return self in (Meaning.DAEMON_TOLD, Meaning.NO_DAEMON, Meaning.NO_ANSWER)


def decide(witnesses: Sequence[Witness], elapsed_s: float, limits: Limits) -> Meaning:
    """Return what the signal means, so long after it came."""
    if any(witness.was_told for witness in witnesses):
        return Meaning.DAEMON_TOLD
    if not any(witness.is_linked or witness.may_return for witness in witnesses):
        return Meaning.NO_DAEMON
    if not any(witness.is_linked and witness.has_answered for witness in witnesses):
        return Meaning.UNKNOWN if elapsed_s < limits.answer_s else Meaning.NO_ANSWER
    is_needed = any(witness.needs_us for witness in witnesses)
    return (
        Meaning.UNKNOWN
        if elapsed_s < (limits.leave_s if is_needed else limits.settle_s)
        else Meaning.REPLACED
    )
