"""VolumeNews: what becomes of volumes, made of what keeper and launcher report of them: counted by class, and told as Events.

Nothing here waits or fails: whoever reports goes on.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from csi.event_reasons import MESSAGE_MAX, Occurrence, Reason
from csi.event_subject import PodRef, pod_of
from csi.keeper_link import VolumeStatus
from csi.launcher import Ended
from csi.metrics_volumes import VolumeTally
from csi.records import Record, Stage
from sidemount.model.errors import OperationPending, VolumeError, shown
from sidemount.model.keeper_log import told

CRASHES = 3
WITHIN_S = 600.0
_NAMED = re.compile(r"/volumes/kubernetes\.io~csi/([^/]+)/mount")
_FORGET_AT = 256
_KNOWN_MAX = 4096
_OUT_OF_MEMORY = "OOMKilled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a volume is now. `deaths`: how often its daemon has ended so far. `mount_pod`: the one that it runs in, None for none."""

    status: VolumeStatus
    ended: Ended | None = None
    deaths: int = 0
    mount_pod: PodRef | None = None


@dataclass(slots=True)
class _Known:
    """What was known last of a volume."""

    stage: Stage
    deaths: int
    takeovers: int = 0
    remounts: int = 0
    trouble: str = ""
    ended: Ended | None = None
    crashes: "deque[float]" = field(default_factory=lambda: deque(maxlen=CRASHES))


class VolumeNews:
    """Of all volumes of a node."""

    def __init__(
        self,
        tally: VolumeTally,
        tell: Callable[[Occurrence], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._tally = tally
        self._tell = tell
        self._clock = clock
        self._wall_ms = wall_ms
        self._known: dict[str, _Known] = {}

    def __len__(self) -> int:
        """Return of how many volumes something is known."""
        return len(self._known)

    def publish_failed(
        self, volume_id: str, target: str, context: Mapping[str, str], error: VolumeError
    ) -> None:
        """Take note of a publish that came to nothing. One that only has to wait for another is no news."""
        self._tally.publish_failed(error.reason)
        pod = pod_of(context)
        if pod is not None and not isinstance(error, OperationPending):
            message = f"{_volume(volume_id, target)}: {error} ({error.reason.value})"
            self._say(pod, Reason.MOUNT_FAILED, volume_id, message)

    def changed(self, record: Record, report: Report) -> None:
        """Take note of how a volume is now."""
        known = self._known.get(record.name)
        if known is None or (record.stage is Stage.PUBLISHING) > (known.stage is Stage.PUBLISHING):
            self._forget_some()
            known = self._known[record.name] = _Known(record.stage, report.deaths)
        known.stage = record.stage
        if record.stage is Stage.REMOVING:
            return
        self._note_end(record, known, report)
        self._note_deaths(record, known, report)
        if record.stage is Stage.PUBLISHED:
            self._note_interruptions(record, known, report)
            self._note_trouble(record, known, report)

    # What has changed --------------------------------------------------------------------------------

    def _note_end(self, record: Record, known: _Known, report: Report) -> None:
        ended = report.ended
        if ended is None or ended == known.ended:
            return
        known.ended = ended
        if _OUT_OF_MEMORY in ended.what:
            text = f"its daemon used more memory than its limit and was killed ({ended.told})"
            self._about(record, report, Reason.OOM_KILLED, text)
        elif ended.code < 0 and ended.what and not ended.words.is_own and report.mount_pod is not None:
            self._about(record, report, Reason.MOUNT_POD_NOT_RUNNING, ended.told)

    def _note_deaths(self, record: Record, known: _Known, report: Report) -> None:
        deaths = max(0, report.deaths - known.deaths)
        known.deaths = report.deaths
        if not deaths:
            return
        self._tally.daemon_ended(record.spec.driver_class, deaths)
        now = self._clock()
        known.crashes.extend([now] * min(deaths, CRASHES))
        if len(known.crashes) == CRASHES and now - known.crashes[0] <= WITHIN_S:
            why = f" ({report.ended.told})" if report.ended is not None else ""
            self._about(record, report, Reason.DAEMON_CRASH_LOOPING, f"its daemon ends again and again{why}")

    def _note_interruptions(self, record: Record, known: _Known, report: Report) -> None:
        status, driver_class = report.status, record.spec.driver_class
        # Each keeper counts from its own beginning.
        takeovers = status.takeovers - (known.takeovers if status.takeovers >= known.takeovers else 0)
        remounts = status.remounts - (known.remounts if status.remounts >= known.remounts else 0)
        known.takeovers, known.remounts = status.takeovers, status.remounts
        after = f" after {_length(status.pause_ms)}" if status.pause_ms else ""
        why = f" ({status.cause})" if status.cause else ""
        if takeovers:
            self._tally.interrupted(Reason.TAKEN_OVER, driver_class, takeovers, status.pause_ms)
            text = f"a fresh process serves it{after}; open files live on{why}"
            self._about(record, report, Reason.TAKEN_OVER, text)
        if remounts:
            self._tally.interrupted(Reason.REMOUNTED, driver_class, remounts, status.pause_ms)
            text = f"mounted anew{after}; new opens work, files that were open fail with ENOTCONN{why}"
            self._about(record, report, Reason.REMOUNTED, text)

    def _note_trouble(self, record: Record, known: _Known, report: Report) -> None:
        status = report.status
        hung = f"its daemon does nothing any more and is replaced ({status.hung})" if status.hung else ""
        trouble = hung or status.abnormal
        if trouble == known.trouble or (not trouble and not status.is_live):
            return  # of a volume that is not live nobody knows that it is well
        was, known.trouble = known.trouble, trouble
        if trouble:
            if not was:
                self._tally.happened(Reason.VOLUME_ABNORMAL, record.spec.driver_class)
            self._about(record, report, Reason.VOLUME_ABNORMAL, trouble)
        else:
            self._tally.happened(Reason.VOLUME_RECOVERED, record.spec.driver_class)
            self._about(record, report, Reason.VOLUME_RECOVERED, f"it works again (was: {was})")

    # Telling -----------------------------------------------------------------------------------------

    def _about(self, record: Record, report: Report, reason: Reason, text: str) -> None:
        pod = record.consumer or report.mount_pod
        if pod is not None:
            message = f"{_volume(record.volume_id, record.target)}: {text}"
            self._say(pod, reason, record.volume_id, message)

    def _say(self, pod: PodRef, reason: Reason, volume_id: str, message: str) -> None:
        self._tell(
            Occurrence(
                subject=pod,
                reason=reason,
                at_ms=self._wall_ms(),
                message=told(message, MESSAGE_MAX),
                about=volume_id,
            )
        )

    def _forget_some(self) -> None:
        """Keep what is known within bounds: of volumes that are gone nothing is heard any more."""
        if len(self._known) >= _FORGET_AT:
            for name in [name for name, known in self._known.items() if known.stage is Stage.REMOVING]:
                del self._known[name]
        while len(self._known) >= _KNOWN_MAX:  # their end was not heard of
            del self._known[next(iter(self._known))]


def _volume(volume_id: str, target: str) -> str:
    """Return the volume as its pod calls it, where kubelet's path tells, else by its id."""
    found = _NAMED.search(target)
    return f"volume {shown(found[1])[1:-1] if found else shown(volume_id)}"


def _length(pause_ms: int) -> str:
    return f"{pause_ms} ms" if pause_ms < 10_000 else f"{pause_ms / 1000:.0f} s"
