"""Which volumes a pod gets and how: every request resolved, decided and found in the pod's spec.volumes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sidemount.model.decide import Csi, DeliveryFacts, Refuse, Sidecar, VolumeTraits, decide
from sidemount.model.errors import (
    Faults,
    InvalidRequest,
    PolicyDenied,
    Reason,
    Unsupported,
    VolumeError,
    shown,
)
from sidemount.model.facts import Facts, NamespaceFacts
from sidemount.model.names import CSI_DRIVER, volume_name_fault
from sidemount.model.resolve import ResolvedVolume, resolve
from sidemount.model.volume_request import Claim, Delivery, VolumeRequest
from webhook.csi_volume import CLAIM, CSI, csi_source, is_same_csi
from webhook.injection_settings import InjectionSettings
from webhook.outcome import VolumeOutcome
from webhook.shape import PodShape, VolumeShape

EMPTY_DIR = "emptyDir"
_EXCLUSIVE = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a pod is planned in: its namespace, the cluster, the operator's settings.

    `carried` names the volumes that a keeper in the pod serves already.
    """

    namespace: NamespaceFacts
    facts: Facts
    delivery: DeliveryFacts
    settings: InjectionSettings
    carried: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenVolume:
    """A request that will be served. `index` is its place in spec.volumes, None if `mountPath` alone asks for it."""

    resolved: ResolvedVolume
    decision: Sidecar | Csi
    index: int | None
    found: VolumeShape | None = None

    @property
    def name(self) -> str:
        """The volume's name."""
        return self.resolved.request.name

    @property
    def is_sidecar(self) -> bool:
        """Whether a keeper and daemon deliver it."""
        return isinstance(self.decision, Sidecar)

    @property
    def is_claim(self) -> bool:
        """Whether it is a claim of the pod's namespace."""
        return isinstance(self.resolved.request.origin, Claim)

    @property
    def is_inline(self) -> bool:
        """Whether it becomes an inline CSI volume."""
        return not self.is_sidecar and not self.is_claim

    @property
    def is_implicit(self) -> bool:
        """Whether nobody asked for it: the pod uses a claim whose PersistentVolume is ours."""
        origin = self.resolved.request.origin
        return isinstance(origin, Claim) and origin.implicit


def choose(request: VolumeRequest, shape: PodShape, setting: Setting) -> ChosenVolume:
    """Resolve, decide and find one request. Raises VolumeError."""
    fault = volume_name_fault(request.name)
    if fault:
        raise InvalidRequest(f"{request.where}: volume name {shown(request.name)} {fault}", hint="rename it")
    resolved = resolve(
        request, setting.namespace, setting.facts, existing_enabled=setting.settings.existing_enabled
    )
    index, found = _find(request.name, shape)
    decision = decide(
        resolved.request, resolved.driver_class, setting.delivery, _traits(resolved, found, setting)
    )
    if isinstance(decision, Refuse):
        raise PolicyDenied(decision.message, reason=decision.reason, hint=decision.hint)
    if found is not None:
        _check_kind(resolved, found, isinstance(decision, Sidecar))
    elif not request.mount_path:
        raise InvalidRequest(
            f"{request.where}: the pod declares no volume {shown(request.name)} in spec.volumes",
            reason=Reason.UNKNOWN_VOLUME,
            hint=f"add {{name: {request.name}, emptyDir: {{}}}} and mount it, or give mountPath in the list form",
        )
    return ChosenVolume(resolved=resolved, decision=decision, index=index, found=found)


def collect(errors: Iterable[VolumeError]) -> list[VolumeError]:
    """Return the single faults of errors, each text once."""
    flat: dict[str, VolumeError] = {}
    for error in errors:
        for fault in error.faults if isinstance(error, Faults) else (error,):
            flat.setdefault(str(fault), fault)
    return list(flat.values())


def decoded_field(volume: VolumeShape, field: str) -> Any:
    """Return one field of a volume as plain JSON; None if it is absent."""
    for key, raw in volume.fields:
        if key == field:
            return msgspec.json.decode(raw)
    return None


def _find(name: str, shape: PodShape) -> tuple[int | None, VolumeShape | None]:
    """Return where a volume is in spec.volumes, and the volume; None, None if it is not."""
    for index, volume in enumerate(shape.volumes):
        if isinstance(volume, VolumeShape) and volume.name == name:
            return index, volume
    return None, None


def _traits(resolved: ResolvedVolume, found: VolumeShape | None, setting: Setting) -> VolumeTraits:
    name = resolved.request.name
    carried: Delivery | None = None
    if name in setting.carried:
        carried = Delivery.SIDECAR
    elif found is not None and CSI in found.kinds and not isinstance(resolved.request.origin, Claim):
        csi = decoded_field(found, CSI)
        carried = Delivery.CSI if isinstance(csi, dict) and csi.get("driver") == CSI_DRIVER else None
    return VolumeTraits(
        source=resolved.spec.source,
        exclusive=resolved.volume is not None and _EXCLUSIVE in resolved.volume.access_modes,
        has_secret=resolved.volume is not None and resolved.volume.has_secret and not resolved.request.secret,
        carried=carried,
    )


def _check_kind(resolved: ResolvedVolume, volume: VolumeShape, is_sidecar: bool) -> None:
    request = resolved.request
    kinds = volume.kinds
    if not kinds or EMPTY_DIR in kinds:
        # Without a source Kubernetes makes it an emptyDir.
        return
    if CLAIM in kinds and isinstance(request.origin, Claim):
        claim = decoded_field(volume, CLAIM)
        if isinstance(claim, dict) and claim.get("claimName") == request.origin.name:
            return
    if CSI in kinds and not is_sidecar and not isinstance(request.origin, Claim):
        if is_same_csi(decoded_field(volume, CSI), csi_source(resolved)[CSI]):
            return
        raise Unsupported(
            f"{request.where}: volume {shown(request.name)} is a csi volume that differs from what the annotation asks",
            reason=Reason.HAND_MADE,
            hint="make it an emptyDir: the webhook writes the csi volume",
        )
    raise InvalidRequest(
        f"{request.where}: volume {shown(request.name)} of spec.volumes is a {kinds[0]}, not an emptyDir",
        reason=Reason.NAME_COLLISION,
        hint="rename one of the two, or make it an emptyDir",
    )


def volume_outcome(volume: ChosenVolume) -> VolumeOutcome:
    """Return the outcome of a chosen volume, its mounts still to be told."""
    return VolumeOutcome(
        volume=volume.name,
        driver_class=volume.resolved.driver_class.name,
        source=volume.resolved.spec.source,
        delivery="sidecar" if volume.is_sidecar else CSI,
        reason=volume.decision.reason,
        message=volume.decision.message,
    )


def as_sidecar(volume: ChosenVolume, selinux_context: str) -> ChosenVolume:
    """Return the volume with what its MountSpec gets from the pod: the SELinux label of the mount."""
    spec = replace(volume.resolved.spec, selinux_context=selinux_context)
    return replace(volume, resolved=replace(volume.resolved, spec=spec))
