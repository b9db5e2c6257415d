"""Volumes that nobody asks for by annotation: claims in spec.volumes whose PersistentVolume is ours.

They are delivered like any other where that can be; where it cannot, CSI serves them as they are. They never fail a pod.
"""

from sidemount.model.errors import NotReady, Reason, Unsupported, VolumeError, shown
from sidemount.model.facts import Facts
from sidemount.model.names import CSI_DRIVER
from sidemount.model.requests import VOLUMES_MAX
from sidemount.model.volume_request import Claim, VolumeRequest
from webhook.asked import Asked
from webhook.choice import ChosenVolume, Setting, choose, decoded_field
from webhook.csi_volume import CLAIM, CSI
from webhook.left import LeftClaim
from webhook.outcome import VolumeOutcome
from webhook.plan import wanted_of
from webhook.present import Present
from webhook.shape import PodShape, VolumeShape
from webhook.views import read_uses


def taken_up(asked: Asked, present: Present) -> list[VolumeRequest]:
    """Return the requests for claims that an earlier round found in spec.volumes and delivers: they can only be served."""
    read_only = {mount.spec.volume: mount.spec.read_only for mount in present.config.mounts}
    return [
        _request(volume, claim, f"spec.volumes ({shown(volume)})", read_only=read_only.get(volume, False))
        for volume, claim in present.claims.items()
        if volume not in asked.names
    ]


def claims_in(shape: PodShape, named: frozenset[str], facts: Facts) -> list[VolumeRequest]:
    """Return a request for every claim of ours in spec.volumes that has no other."""
    requests = []
    seen = set(named)  # of two volumes of one name, which the API server refuses, one is enough
    for index, volume in enumerate(shape.volumes):
        if isinstance(volume, VolumeShape) and volume.name not in seen:
            seen.add(volume.name)
            claim = decoded_field(volume, CLAIM)
            name = claim.get("claimName") if isinstance(claim, dict) else None
            if isinstance(name, str) and _is_ours(shape.namespace, name, facts):
                where = f"spec.volumes[{index}] ({shown(volume.name)})"
                read_only = claim.get("readOnly") is True
                requests.append(_request(volume.name, name, where, read_only=read_only))
    return requests


def split(
    shape: PodShape, claims: list[VolumeRequest], others: int, setting: Setting
) -> tuple[list[VolumeRequest], list[LeftClaim]]:
    """Return the claims that can be delivered, and those that are left alone.

    `others` is how many volumes the pod has of us beside them. Raises NotReady.
    """
    chosen: dict[str, ChosenVolume] = {}
    why: dict[str, VolumeError] = {}
    for request in claims:
        try:
            if others + len(chosen) >= VOLUMES_MAX:
                raise Unsupported(f"a pod may have {VOLUMES_MAX} volumes of ours, not more")
            chosen[request.name] = choose(request, shape, setting)
        except NotReady:
            raise
        except VolumeError as fault:
            why[request.name] = fault
    wanted = {name: wanted_of(volume) for name, volume in chosen.items()}
    _, faults = read_uses(shape, wanted, {}, {})
    for name, mount_fault in faults:
        if name in chosen:
            why.setdefault(name, mount_fault)
    served = [request for request in claims if request.name not in why]
    return served, [left_alone(request, why[request.name]) for request in claims if request.name in why]


def left_alone(request: VolumeRequest, why: VolumeError) -> LeftClaim:
    """Return a claim that stays as it is."""
    claim = request.origin.name if isinstance(request.origin, Claim) else ""
    outcome = VolumeOutcome(
        volume=request.name,
        driver_class=request.driver_class,
        source=f"claim {claim}",
        delivery=CSI,
        reason=Reason.LEFT_TO_CSI,
        message=f"volume {shown(request.name)} is left to CSI: {why}",
    )
    return LeftClaim(outcome=outcome, read_only=request.read_only)


def _request(volume: str, claim: str, where: str, *, read_only: bool) -> VolumeRequest:
    return VolumeRequest(name=volume, origin=Claim(claim, implicit=True), where=where, read_only=read_only)


def _is_ours(namespace: str, name: str, facts: Facts) -> bool:
    claim = facts.claim(namespace, name)
    if claim is None:
        return False
    if not claim.volume:  # it may wait for this very pod
        return bool(claim.storage_class) and facts.provisioner(claim.storage_class) == CSI_DRIVER
    volume = facts.volume(claim.volume)
    return volume is not None and volume.driver == CSI_DRIVER
