"""Outcome: what was decided about one review and why, for logs, metrics, the CLI and tests. Answer: that and the bytes."""

from dataclasses import dataclass, field
from enum import Enum

from sidemount.model.errors import Reason


class Verdict(Enum):
    """What became of a review."""

    INJECTED = "injected"
    REPAIRED = "repaired"
    UNCHANGED = "unchanged"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOutcome:
    """One mount of a container that shows a volume. `sub_path` is within the volume."""

    container: str
    path: str
    sub_path: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeOutcome:
    """What became of one requested volume. `delivery` is "sidecar", "csi" or "" when there is none."""

    volume: str
    driver_class: str
    source: str
    delivery: str
    reason: Reason
    message: str
    mounts: tuple[MountOutcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was decided. `message` is for people; `volumes` has an entry a requested volume, unless denied before.

    `patch` is the JSON Patch as sent (its JSON, not base64), empty when there is none. `proof_failed` says that a patch
    was made and withheld because it did not pass its own proof.
    """

    verdict: Verdict
    reason: Reason
    message: str = ""
    code: int = 200
    warnings: tuple[str, ...] = ()
    volumes: tuple[VolumeOutcome, ...] = field(default=())
    patch: bytes = b""
    proof_failed: bool = False

    @property
    def allowed(self) -> bool:
        """Whether the API server may go on."""
        return self.verdict is not Verdict.DENIED


@dataclass(frozen=True, slots=True)
class Doubt:
    """An object that may be there by now, or be different. An empty name means any of its kind."""

    kind: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The AdmissionReview to send back, and what it says.

    `http_status` is 200 for every verdict; 500 when no verdict can be given now and failurePolicy shall decide. `doubts` are
    facts that may only be late: a fresh look at them could change the outcome.
    """

    body: bytes
    outcome: Outcome
    http_status: int = 200
    doubts: tuple["Doubt", ...] = ()
