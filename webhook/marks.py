"""What injection sets on the pod itself, beside containers and volumes: annotations, a label, pull secrets, the grace period."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sidemount.model.names import INJECTED, INJECTED_LABEL, STATUS_ANNOTATION
from webhook.choice import ChosenVolume
from webhook.injection_settings import InjectionSettings
from webhook.outcome import VolumeOutcome
from webhook.render import Daemon, own_volumes, status_annotation
from webhook.shape import (
    DEFAULT_CONTAINER,
    DEFAULT_LOGS_CONTAINER,
    SAFE_LOCAL_VOLUMES,
    SAFE_TO_EVICT,
    PodShape,
)

_DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Annotations and labels as they shall be, names of pull secrets to add, the grace period as it shall be (None: as it is)."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=lambda: {INJECTED_LABEL: INJECTED})
    pull_secrets: tuple[str, ...] = ()
    grace_s: int | None = None


def marks(
    shape: PodShape,
    chosen: Sequence[ChosenVolume],
    daemons: tuple[Daemon, ...],
    outcomes: tuple[VolumeOutcome, ...],
    settings: InjectionSettings,
) -> Marks:
    """Return what the pod itself shall say."""
    annotations = {STATUS_ANNOTATION: status_annotation(_status(outcomes))}
    if not daemons:
        return Marks(annotations=annotations)
    foreign = dict(shape.foreign)
    default = _default_container(shape, foreign, settings)
    if default and not foreign.get(DEFAULT_CONTAINER):
        annotations[DEFAULT_CONTAINER] = default
    safe = _safe_volumes(chosen, daemons, foreign)
    if safe:
        annotations[SAFE_LOCAL_VOLUMES] = safe
    return Marks(
        annotations=annotations,
        pull_secrets=_pull_secrets(shape, daemons, settings),
        grace_s=_grace_s(shape, settings),
    )


def _status(outcomes: tuple[VolumeOutcome, ...]) -> dict[str, dict[str, str]]:
    return {
        o.volume: {"class": o.driver_class, "delivery": o.delivery, "reason": o.reason.value}
        for o in outcomes
    }


def _default_container(shape: PodShape, foreign: Mapping[str, str], settings: InjectionSettings) -> str:
    """Return the container that `kubectl logs` and `exec` mean when none is named: the user's first."""
    names = [container.name for container in shape.containers]
    for_logs = foreign.get(DEFAULT_LOGS_CONTAINER)
    if for_logs in names:
        return for_logs or ""
    users = [name for name in names if name not in settings.network_containers]
    return (users or names or [""])[0]


def _safe_volumes(
    chosen: Sequence[ChosenVolume], daemons: tuple[Daemon, ...], foreign: Mapping[str, str]
) -> str:
    """Return the emptyDirs that do not keep a node from being scaled down, the user's own list first; "" for no change.

    Ours hold no data of the pod's, and what has become a FUSE volume holds none on the node either.
    """
    if foreign.get(SAFE_TO_EVICT) == "false":
        return ""
    listed = foreign.get(SAFE_LOCAL_VOLUMES, "")
    known = {name.strip() for name in listed.split(",")}
    ours = [volume["name"] for volume in own_volumes(daemons) if "emptyDir" in volume]
    ours += [v.name for v in chosen if v.is_sidecar and v.index is not None and not v.is_claim]
    missing = [name for name in ours if name not in known]
    return ",".join([*([listed] if listed.strip() else []), *missing]) if missing else ""


def _pull_secrets(
    shape: PodShape, daemons: tuple[Daemon, ...], settings: InjectionSettings
) -> tuple[str, ...]:
    wanted = [*settings.image_pull_secrets]
    for daemon in daemons:
        wanted += daemon.driver_class.image_pull_secrets
    return tuple(name for name in dict.fromkeys(wanted) if name not in shape.pull_secrets)


def _grace_s(shape: PodShape, settings: InjectionSettings) -> int | None:
    """Teardown detaches the mounts before anything else, but it needs some seconds to flush what was written."""
    grace_s = _DEFAULT_GRACE_S if shape.grace_s is None else shape.grace_s
    return settings.grace_floor_s if grace_s < settings.grace_floor_s else None
