"""LeftClaim: a claim of ours that the pod uses and that CSI serves as it is."""

from dataclasses import dataclass

from webhook.outcome import VolumeOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftClaim:
    """What is told of it, and whether the pod has it read-only as a whole."""

    outcome: VolumeOutcome
    read_only: bool
