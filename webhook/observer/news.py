"""News of a pod: what happened to its volumes, in words for a person. Pure; bounded, and without what looks like a secret."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from sidemount.model.keeper_log import KeeperEvent, Kind, told
from sidemount.model.names import KEEPER_CONTAINER
from webhook.observer.pod_view import PodView, VolumeView

COMPONENT = "sidemount-observer"
MESSAGE_MAX = 1000  # an Event's message may hold 1,024


class Reason(Enum):
    """What happened, as `kubectl describe` shows it. Never rename a value: alerts of users key on it."""

    INJECTED = "Injected"
    TAKEN_OVER = "TakenOver"
    REMOUNTED = "Remounted"
    KEEPER_RESTARTED = "KeeperRestarted"
    VOLUME_ABNORMAL = "VolumeAbnormal"
    VOLUME_RECOVERED = "VolumeRecovered"
    OOM_KILLED = "OOMKilled"


WARNINGS = frozenset({Reason.REMOUNTED, Reason.VOLUME_ABNORMAL, Reason.OOM_KILLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One thing that happened to a pod, or to one of its volumes (`volume`, "" if to none). `container` is the one that shows it."""

    namespace: str
    pod: str
    uid: str
    reason: Reason
    at_ms: int
    message: str
    volume: str = ""
    container: str = ""
    driver_class: str = ""
    stall_ms: int | None = None

    @property
    def is_warning(self) -> bool:
        """Whether somebody should look."""
        return self.reason in WARNINGS

    @property
    def about(self) -> str:
        """What of the pod it is about."""
        return self.volume or self.container

    @property
    def field_path(self) -> str:
        """The container in the pod."""
        return f"spec.initContainers{{{self.container}}}" if self.container else ""


def injected(pod: PodView) -> Occurrence:
    """Return that a pod was given volumes."""
    return _occurrence(
        pod, Reason.INJECTED, pod.created_ms, "; ".join(_injected(volume) for volume in pod.volumes)
    )


def deaths(pod: PodView) -> Iterator[Occurrence]:
    """Yield the last death of memory of each container of ours."""
    for container in pod.containers:
        if container.killed_at_ms is not None:
            message = f"container {container.name} used more memory than its limit and was killed"
            volume = pod.volume_of(container.name)
            if container.name == KEEPER_CONTAINER or volume:
                yield _occurrence(
                    pod, Reason.OOM_KILLED, container.killed_at_ms, message, volume, container.name
                )


def told_by_keeper(pod: PodView, event: KeeperEvent) -> Occurrence | None:
    """Return what a line of the keeper's log is as news, None if it is none, or of no volume of the pod's."""
    if not any(volume.name == event.volume for volume in pod.volumes):
        return None
    after = "" if event.stall_ms is None else f" after {_length(event.stall_ms)}"
    why = f" ({event.text})" if event.text else ""
    match event.kind:
        case Kind.TAKEN_OVER:
            reason, text = Reason.TAKEN_OVER, f"a fresh process serves it{after}; open files live on{why}"
        case Kind.REMOUNTED:
            reason = Reason.REMOUNTED
            text = f"mounted anew{after}; new opens work, files that were open fail with ENOTCONN{why}"
        case Kind.CAME_BACK:
            reason = Reason.KEEPER_RESTARTED
            text = "the keeper was started again and took it back; nothing was interrupted"
        case Kind.ABNORMAL:
            reason, text = Reason.VOLUME_ABNORMAL, event.text or "its daemon does not work as it should"
        case Kind.HUNG:
            reason = Reason.VOLUME_ABNORMAL
            text = f"its daemon's container does nothing any more and is to be restarted{why}"
        case Kind.RECOVERED | Kind.WORKS_AGAIN:
            reason, text = Reason.VOLUME_RECOVERED, f"it works again{why}"
        case _:
            return None
    message = f"volume {event.volume}: {text}"
    found = _occurrence(pod, reason, event.at_ms, message, event.volume, KEEPER_CONTAINER, event.stall_ms)
    return found


def _occurrence(
    pod: PodView,
    reason: Reason,
    at_ms: int,
    message: str,
    volume: str = "",
    container: str = "",
    stall_ms: int | None = None,
) -> Occurrence:
    return Occurrence(
        namespace=pod.namespace,
        pod=pod.name,
        uid=pod.uid,
        reason=reason,
        at_ms=at_ms,
        message=message if len(message) <= MESSAGE_MAX else f"{message[: MESSAGE_MAX - 1]}…",
        volume=volume,
        container=container,
        driver_class=pod.class_of(volume),
        stall_ms=stall_ms,
    )


def _injected(volume: VolumeView) -> str:
    named = f", class {volume.driver_class}" if volume.driver_class else ""
    return told(f"volume {volume.name}: {volume.delivery or 'given'}{named} ({volume.reason or 'no reason'})")


def _length(stall_ms: int) -> str:
    return f"{stall_ms} ms" if stall_ms < 10_000 else f"{stall_ms / 1000:.0f} s"
