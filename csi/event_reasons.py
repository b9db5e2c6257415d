"""What the node service tells of volumes as Events: the reasons, and one thing that happened."""

from dataclasses import dataclass
from enum import Enum

from csi.event_subject import PodRef

MESSAGE_MAX = 1000  # an Event's message may hold 1,024


class Reason(Enum):
    """What happened, as `kubectl describe` shows it; the same words as the observer's where it is the same.

    Never rename a value: alerts of users key on it.
    """

    MOUNT_FAILED = "MountFailed"
    MOUNT_POD_NOT_RUNNING = "MountPodNotRunning"
    DAEMON_CRASH_LOOPING = "DaemonCrashLooping"
    TAKEN_OVER = "TakenOver"
    REMOUNTED = "Remounted"
    VOLUME_ABNORMAL = "VolumeAbnormal"
    VOLUME_RECOVERED = "VolumeRecovered"
    OOM_KILLED = "OOMKilled"


_NORMAL = frozenset({Reason.TAKEN_OVER, Reason.VOLUME_RECOVERED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One thing that happened to a volume (`about`, its id) of a pod. Implements `sidemount.host.event_record.Occurrence`."""

    subject: PodRef
    reason: Reason
    at_ms: int
    message: str
    about: str

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.subject.namespace

    @property
    def pod(self) -> str:
        """The pod's name."""
        return self.subject.name

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.subject.uid

    @property
    def is_warning(self) -> bool:
        """Whether somebody should look."""
        return self.reason not in _NORMAL

    @property
    def field_path(self) -> str:
        """Nowhere in the pod: the daemon is not among its containers."""
        return ""
