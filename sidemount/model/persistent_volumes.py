"""Claims and existing volumes: from a reference to the source that its PersistentVolume names."""

from dataclasses import replace

from sidemount.model.errors import (
    Faults,
    InvalidRequest,
    PolicyDenied,
    Reason,
    Unsupported,
    VolumeError,
    shown,
)
from sidemount.model.facts import Facts, VolumeFacts
from sidemount.model.mountspec import OptionValue
from sidemount.model.names import CSI_DRIVER
from sidemount.model.requests import parse_volume_context
from sidemount.model.sub_path import join_sub_paths
from sidemount.model.volume_request import AccessMode, Claim, Existing, SourceUri, VolumeRequest

# Which modes a PersistentVolume's access modes permit a reference to ask (S2-13).
_PERMITTED = {
    "ReadWriteMany": frozenset({AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY}),
    "ReadOnlyMany": frozenset({AccessMode.READ_ONLY_MANY}),
}
_READ_ONLY_MODES = frozenset({"ReadOnlyMany"})


def volume_of_claim(request: VolumeRequest, claim: Claim, namespace: str, facts: Facts) -> VolumeFacts:
    """Return the bound PersistentVolume of a claim. Raises PolicyDenied."""
    where = f"{request.where}, claim {shown(claim.name)}"
    found = facts.claim(namespace, claim.name)
    if found is None:
        raise PolicyDenied(
            f"{where}: namespace {shown(namespace)} has no such PersistentVolumeClaim",
            reason=Reason.CLAIM_NOT_FOUND,
            hint="create the claim first, or name another",
        )
    if not found.volume:
        raise PolicyDenied(
            f"{where}: it is not bound to a PersistentVolume yet",
            reason=Reason.CLAIM_NOT_FOUND,
            hint="wait until it is Bound, then create the pod again",
        )
    volume = facts.volume(found.volume)
    if volume is None:
        raise PolicyDenied(
            f"{where}: its PersistentVolume {shown(found.volume)} is not there, or is of no CSI driver",
            reason=Reason.CLAIM_NOT_OURS,
        )
    if volume.driver != CSI_DRIVER:
        raise PolicyDenied(
            f"{where}: PersistentVolume {shown(volume.name)} is of driver {shown(volume.driver)}, not {CSI_DRIVER}",
            reason=Reason.CLAIM_NOT_OURS,
            hint="use the claim in spec.volumes as any other",
        )
    if volume.claim is not None and volume.claim != (namespace, claim.name):
        owner = "/".join(volume.claim)
        raise PolicyDenied(
            f"{where}: PersistentVolume {shown(volume.name)} is bound to another claim, {shown(owner)}",
            reason=Reason.CLAIM_NOT_FOUND,
        )
    return volume


def volume_of_reference(request: VolumeRequest, existing: Existing, facts: Facts) -> VolumeFacts:
    """Return the PersistentVolume that an existing-volume reference names and may use (S2-10…13). Raises PolicyDenied."""
    where = f"{request.where}, existing volume {shown(existing.handle)}"
    if existing.driver != CSI_DRIVER:
        raise PolicyDenied(
            f"{where}: unknown driver {shown(existing.driver)}",
            reason=Reason.UNKNOWN_DRIVER,
            hint=f"known: {CSI_DRIVER}",
        )
    held = sorted(
        (v for v in facts.volumes_by_handle(existing.driver, existing.handle) if v.driver == existing.driver),
        key=_volume_name,
    )
    if not held:
        raise PolicyDenied(
            f"{where}: no PersistentVolume of driver {shown(existing.driver)} holds volume {shown(existing.handle)}",
            reason=Reason.NO_SUCH_VOLUME,
            hint="create a PersistentVolume with that volumeHandle first",
        )
    for volume in held:
        if any(existing.access_mode in _PERMITTED.get(mode, ()) for mode in volume.access_modes):
            return volume
    told = ", ".join(
        f"PersistentVolume {shown(v.name)} permits [{', '.join(sorted(v.access_modes))}]" for v in held
    )
    raise PolicyDenied(
        f"{where}: {told}, not {existing.access_mode.value}",
        reason=Reason.ACCESS_MODE,
        hint="ask READ_ONLY_MANY of a ReadOnlyMany volume, and either of a ReadWriteMany one",
    )


def _volume_name(volume: VolumeFacts) -> str:
    return volume.name


def with_attributes(request: VolumeRequest, volume: VolumeFacts) -> VolumeRequest:
    """Return the request as the PersistentVolume's attributes complete it: class, source, sub-path, options.

    What both say must agree; neither may override the other. The request's sub-path is beneath the volume's (S2-07).
    Raises VolumeError.
    """
    where = f"PersistentVolume {shown(volume.name)}"
    if "source" not in volume.attributes:
        raise Unsupported(
            f"{request.where}: {where} has no attribute source: a provisioned volume is served by its CSI driver alone",
            hint="use the claim in spec.volumes, or a PersistentVolume whose volumeAttributes give class and source",
        )
    given = _attributes(request, volume, where)
    read_only_mode = bool(volume.access_modes) and volume.access_modes <= _READ_ONLY_MODES
    mounted_read_only = "ro" in volume.mount_options
    return replace(
        request,
        origin=given.origin,
        driver_class=_agreed(request, where, "class", given.driver_class, request.driver_class),
        secret=_agreed(request, where, "secret", given.secret, request.secret),
        sub_path=join_sub_paths(given.sub_path, request.sub_path),
        read_only=any(
            (request.read_only, given.read_only, volume.read_only, read_only_mode, mounted_read_only)
        ),
        delivery=request.delivery or given.delivery,
        provisioned=given.provisioned,
        options=_joined_options(given.options, request.options),
    )


def _attributes(request: VolumeRequest, volume: VolumeFacts, where: str) -> VolumeRequest:
    try:
        given = parse_volume_context(request.name, volume.attributes)
    except Faults as error:
        raise Faults(tuple(_told_of(where, fault) for fault in error.faults)) from error
    if not isinstance(given.origin, SourceUri):
        raise InvalidRequest(f"{where}: its attribute source is empty", hint="set it to a source URI")
    return given


def _told_of(where: str, fault: VolumeError) -> VolumeError:
    return InvalidRequest(f"{where}: {fault.message}", reason=fault.reason, hint=fault.hint)


def _agreed(request: VolumeRequest, where: str, what: str, of_volume: str, of_request: str) -> str:
    if of_volume and of_request and of_volume != of_request:
        raise InvalidRequest(
            f"{request.where}: {what} {shown(of_request)} differs from {shown(of_volume)} of {where}",
            hint=f"leave {what} out",
        )
    return of_volume or of_request


def _joined_options(
    of_volume: tuple[tuple[str, OptionValue], ...], of_request: tuple[tuple[str, OptionValue], ...]
) -> tuple[tuple[str, OptionValue], ...]:
    """Join, keeping a name that both give: the option check refuses it as given twice."""
    return (*of_volume, *of_request)
