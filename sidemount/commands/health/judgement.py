"""How each volume of a pod is, from the pod's own status and its keeper's log. Pure and total."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sidemount.commands.health.csi import CSI_NAMESPACE, CsiView
from sidemount.commands.health.pod import PATIENT, ContainerView, PodView, PodVolume
from sidemount.model.keeper_log import HealthState, VolumeHealth
from sidemount.model.names import CSI_DRIVER, KEEPER_CONTAINER


class Health(Enum):
    """How a volume is."""

    SERVING = "serving"
    STARTING = "starting"  # it has not been there yet; the pod's own containers wait for it
    WAITING = "waiting"  # it was there and is not just now: applications wait, or find the bare directory
    ABNORMAL = "abnormal"  # its daemon dies again and again, or says that something is wrong
    HUNG = "hung"  # nobody in the daemon's container does anything any more
    FAILING = "failing"  # a container of it cannot start, or is not there
    MISSING = "missing"  # the pod asks for it and does not carry it
    ENDING = "ending"  # the pod is being deleted
    ENDED = "ended"  # the pod has run to its end
    UNKNOWN = "unknown"  # nothing here tells: its state cannot be read, or it is delivered by CSI from a process of the node


UNHEALTHY = frozenset({Health.WAITING, Health.ABNORMAL, Health.HUNG, Health.FAILING, Health.MISSING})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperLog:
    """What the keeper's log said. `fault`: why it could not be read. `is_cut`: its beginning is not among it."""

    volumes: Mapping[str, VolumeHealth]
    fault: str = ""
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeReport:
    """A volume, how it is and why, and what to look at. `log` is None where there is none to go by."""

    volume: PodVolume
    health: Health
    why: str = ""
    way_out: str = ""
    since_ms: int = 0
    log: VolumeHealth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """A pod and its volumes. `is_counted`: takeovers and stalls are all since the keeper started, not the latest alone."""

    pod: PodView
    volumes: tuple[VolumeReport, ...]
    log_fault: str = ""
    is_counted: bool = True

    @property
    def is_unhealthy(self) -> bool:
        """Whether any volume needs a look."""
        return any(report.health in UNHEALTHY for report in self.volumes)


def judge(pod: PodView, log: KeeperLog | None, csi: CsiView | None = None) -> PodReport:
    """Return the report on a pod. Without a log the containers' states alone decide; `csi` tells of volumes by CSI."""
    known: Mapping[str, VolumeHealth] = {} if log is None else log.volumes
    reports = [_judge_volume(pod, volume, known.get(volume.name), csi) for volume in pod.volumes]
    reports += [_absent(pod, name) for name in pod.missing]
    if not reports:
        why = "; ".join(pod.faults) or "its annotations name no volume that could be understood"
        reports.append(VolumeReport(volume=PodVolume(name=""), health=_whole(pod) or Health.UNKNOWN, why=why))
    return PodReport(
        pod=pod,
        volumes=tuple(reports),
        log_fault="" if log is None else log.fault,
        is_counted=log is None or not log.is_cut,
    )


def _whole(pod: PodView) -> Health | None:
    """Return what goes for every volume of a pod, whatever else is said of it."""
    if pod.is_over:
        return Health.ENDED
    return Health.ENDING if pod.is_ending else None


def _absent(pod: PodView, name: str) -> VolumeReport:
    volume, whole = PodVolume(name=name), _whole(pod)
    if whole is not None:
        return VolumeReport(volume=volume, health=whole)
    return VolumeReport(
        volume=volume,
        health=Health.MISSING,
        why="the pod asks for it and does not carry it (NotInjected)",
        way_out="run sidemount doctor --cluster, then create the pod anew",
    )


def _judge_volume(
    pod: PodView, volume: PodVolume, log: VolumeHealth | None, csi: CsiView | None
) -> VolumeReport:
    def report(health: Health, why: str = "", way_out: str = "", since_ms: int = 0) -> VolumeReport:
        return VolumeReport(
            volume=volume,
            health=health,
            why=why,
            way_out=way_out,
            since_ms=since_ms or pod.created_ms,
            log=log,
        )

    whole = _whole(pod)
    if whole is not None:
        return report(whole)
    if volume.delivery != "sidecar":
        return report(*_by_csi(pod, volume, csi or CsiView()))
    health, why, way_out = _served(pod, volume, log)
    container = volume.container
    started_ms = container.started_ms if container is not None else 0
    since_ms = log.at_ms if log is not None and log.at_ms else started_ms
    return report(health, why, way_out, since_ms)


_Judged = tuple[Health, str, str]


def _by_csi(pod: PodView, volume: PodVolume, csi: CsiView) -> _Judged:
    """Judge by the volume's mount pod, and by what has to be on the node before there can be one."""
    found = csi.of_volume(pod, volume)
    for mount_pod in found:
        why = mount_pod.trouble(csi.now_ms)
        if why:
            return Health.FAILING, f"its mount pod {mount_pod.told}: {why}", mount_pod.look
    if pod.phase == "Pending":
        return _awaited(pod, csi)
    if not found:
        return Health.UNKNOWN, "it is delivered by CSI, and no mount pod of it can be seen", ""
    for mount_pod in found:
        if mount_pod.ends_ms:
            return Health.WAITING, f"its mount pod {mount_pod.told} is being deleted", mount_pod.look
        if mount_pod.container.state != "running":
            return Health.WAITING, f"its mount pod {mount_pod.told} is not started yet", mount_pod.look
    return Health.SERVING, "", ""


def _awaited(pod: PodView, csi: CsiView) -> _Judged:
    """Judge a volume that is not there yet."""
    look = f"kubectl -n {CSI_NAMESPACE} get pods -o wide"
    if pod.node and csi.registered is not None and pod.node not in csi.registered:
        return Health.FAILING, f"kubelet of {pod.node} does not know the driver {CSI_DRIVER}", look
    if pod.node and csi.served is not None and pod.node not in csi.served:
        return Health.FAILING, f"the CSI node service of {pod.node} is not ready", look
    return Health.STARTING, pod.pending, ""


def _served(pod: PodView, volume: PodVolume, log: VolumeHealth | None) -> _Judged:
    """Judge by the containers first: what a log says of one that is not there any more is old."""
    keeper, daemon = pod.keeper, volume.container
    if keeper is None or daemon is None:
        gone = KEEPER_CONTAINER if keeper is None else f"container for volume {volume.name}"
        return Health.FAILING, f"the pod has no {gone} (HandMade)", "create the pod anew; the webhook adds it"
    for container, what in ((keeper, "the keeper"), (daemon, "its daemon")):
        judged = _container(pod, container, what)
        if judged is not None:
            return judged
    said = None if log is None or not log.phase else _by_log(pod, volume, log)
    if said is not None:
        return said
    if daemon.is_started:
        return Health.SERVING, "", ""
    return _not_served(pod, _last_end(daemon) or "its daemon does not answer its probe yet", daemon)


def _container(pod: PodView, container: ContainerView, what: str) -> _Judged | None:
    """Return what a container that does not run means, None for one that runs."""
    match container.state:
        case "running":
            return None
        case "waiting" if container.reason not in PATIENT:
            why = "; ".join(
                part for part in (container.reason, container.message, container.last_end) if part
            )
            return Health.FAILING, f"{what}: {why}", _look(pod, container)
        case "terminated":
            return (
                Health.WAITING,
                f"{what} has ended ({container.reason}) and is started again",
                _look(pod, container),
            )
    return _not_served(pod, pod.pending or f"{what} is not started yet", container)


def _by_log(pod: PodView, volume: PodVolume, log: VolumeHealth) -> _Judged | None:
    assert volume.container is not None
    match log.state:
        case HealthState.HUNG:
            return Health.HUNG, log.hung, "kubelet restarts its container; what stops processes on that node?"
        case HealthState.ABNORMAL:
            return Health.ABNORMAL, log.abnormal, _look(pod, volume.container)
        case HealthState.SERVING:
            return Health.SERVING, "", ""
        case HealthState.DETACHED:
            return Health.FAILING, "its keeper was told to end and the pod was not", "create the pod anew"
        case HealthState.WAITING:
            return _not_served(pod, log.fault or _PHASES.get(log.phase, log.phase), volume.container)


def _not_served(pod: PodView, why: str, container: ContainerView) -> _Judged:
    if pod.is_initialized:
        return Health.WAITING, why, _look(pod, container)
    return Health.STARTING, why, ""


def _last_end(container: ContainerView) -> str:
    return f"its daemon is started anew ({container.last_end})" if container.last_end else ""


def _look(pod: PodView, container: ContainerView) -> str:
    return f"kubectl -n {pod.namespace} logs {pod.name} -c {container.name}"


_PHASES: Mapping[str, str] = {
    "Mounting": "its FUSE connection is being made",
    "Adopting": "its daemon has not come back to the restarted keeper yet",
    "WaitingForDaemon": "its daemon has not connected yet; what applications ask waits",
    "Starting": "its daemon is starting; what applications ask waits",
    "Attaching": "it is being shown",
    "Aborted": "its connection was aborted; the daemon has to end first",
}
