"""InjectionPlan: everything that a pod is to carry for its volumes, computed from its shape. No patch yet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sidemount.model.amounts import Amounts, amount, merge
from sidemount.model.driver_class import DAEMON_MEMORY_MIN_BYTES
from sidemount.model.errors import (
    BadMessage,
    PolicyDenied,
    Reason,
    Unsupported,
    VolumeError,
    raise_faults,
    shown,
)
from sidemount.model.mountspec import (
    KeeperConfig,
    KeeperMount,
    View,
    decode_keeper_config,
    encode_keeper_config,
)
from sidemount.model.names import KEEPER_CONTAINER, daemon_container
from sidemount.model.volume_request import Claim, VolumeRequest
from webhook.added_mounts import added_uses
from webhook.choice import EMPTY_DIR, ChosenVolume, Setting, as_sidecar, choose, collect, volume_outcome
from webhook.csi_volume import CLAIM, CSI, csi_source
from webhook.fitted import fitted
from webhook.image import Registries
from webhook.injection_settings import InjectionSettings
from webhook.inline import check_whole, present_views, view_volumes
from webhook.left import LeftClaim
from webhook.marks import Marks, marks
from webhook.outcome import MountOutcome, VolumeOutcome
from webhook.present import Present
from webhook.render import Daemon, daemon_container_of, keeper_container, own_volumes
from webhook.resources import show
from webhook.security import selinux_context
from webhook.shape import PodShape, is_own_container
from webhook.sources import cache_attachment, secret_attachment, source_attachment
from webhook.views import How, Use, Wanted, left_uses, read_uses, views_of

_SOURCES = (EMPTY_DIR, CLAIM, CSI)
MOUNTS_MAX = 1024
CONFIG_MAX_BYTES = 120_000  # execve(2) takes at most 128 KiB in one string


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionPlan:
    """What a pod shall carry.

    `containers`: ours, the keeper first. `volumes`: ours, and new ones of the user's names. `changed_volumes`: index in
    spec.volumes → what stands there. `uses`: mounts as found; `added`: mounts to add.
    """

    containers: tuple[dict[str, Any], ...]
    volumes: tuple[dict[str, Any], ...]
    new_volumes: tuple[dict[str, Any], ...]
    changed_volumes: Mapping[int, dict[str, Any]]
    uses: tuple[Use, ...]
    added: tuple[Use, ...]
    config: KeeperConfig
    marks: Marks
    outcomes: tuple[VolumeOutcome, ...]
    warnings: tuple[str, ...]
    registries: Registries


def make_plan(
    shape: PodShape,
    requests: tuple[VolumeRequest, ...],
    present: Present,
    setting: Setting,
    left: tuple[LeftClaim, ...] = (),
) -> InjectionPlan:
    """Plan every request. Raises VolumeError: the one fault there is, or Faults with all of them."""
    chosen, uses, added, views = _judged(requests, shape, present, setting)
    all_uses = [*uses, *added]
    heard = () if setting.delivery.windows else left  # propagation is Linux' alone
    alone = left_uses(shape, {claim.outcome.volume: claim.read_only for claim in heard})
    config = _config([volume for volume in chosen if volume.is_sidecar], all_uses, present)
    daemons = tuple(_daemon(volume, setting.settings) for volume in chosen if volume.is_sidecar)
    keeper, daemons, told_of_fit = _fitted(daemons, shape, present, setting)
    outcomes = (*(_told(volume, all_uses) for volume in chosen), *(claim.outcome for claim in left))
    found_marks = marks(shape, chosen, daemons, outcomes, setting.settings)
    return InjectionPlan(
        containers=_containers(config, keeper, daemons, shape, setting.settings),
        volumes=(*(own_volumes(daemons) if daemons else ()), *views),
        new_volumes=tuple(
            {"name": volume.name, **csi_source(volume.resolved)}
            for volume in chosen
            if volume.index is None and (volume.is_claim or not volume.is_sidecar)
        ),
        changed_volumes=_changed_volumes(chosen),
        uses=(*uses, *alone),
        added=tuple(added),
        config=config,
        marks=found_marks,
        outcomes=outcomes,
        warnings=(
            *_warnings(chosen, all_uses, outcomes, found_marks),
            *_csi_warnings(chosen, shape),
            *told_of_fit,
            *_memory_warnings(daemons),
        ),
        registries=setting.settings.registries,
    )


def _judged(
    requests: tuple[VolumeRequest, ...], shape: PodShape, present: Present, setting: Setting
) -> tuple[list[ChosenVolume], list[Use], list[Use], tuple[dict[str, Any], ...]]:
    """Return the chosen volumes, their mounts as found and those to add, and pod volumes that show parts of inline ones.

    Raises VolumeError with every fault there is.
    """
    faults: list[VolumeError] = []
    chosen = _chosen(requests, shape, setting, faults)
    wanted = {volume.name: wanted_of(volume) for volume in chosen}
    inline = present_views(chosen, present.volumes)
    uses, mount_faults = read_uses(shape, wanted, present.views, inline)
    faults += [fault for _, fault in mount_faults]
    added = added_uses(shape, wanted, uses, setting.settings.network_containers, faults)
    for volume in chosen:
        _check_shared_uid(shape, volume, faults)
    _check_count(len(uses) + len(added), faults)
    check_whole(chosen, faults)
    views = view_volumes(chosen, [*uses, *added], inline, faults)
    raise_faults(collect(faults))
    return chosen, uses, added, views


def _chosen(
    requests: tuple[VolumeRequest, ...], shape: PodShape, setting: Setting, faults: list[VolumeError]
) -> list[ChosenVolume]:
    chosen = []
    for request in requests:
        try:
            volume = choose(request, shape, setting)
            if volume.is_sidecar:
                volume = as_sidecar(volume, selinux_context(shape, volume.resolved.driver_class))
        except VolumeError as fault:
            faults.append(fault)
        else:
            chosen.append(volume)
    return chosen


def _check_count(mounts: int, faults: list[VolumeError]) -> None:
    """Every mount costs several operations, and admission is asked by everybody at once."""
    if mounts > MOUNTS_MAX:
        faults.append(
            Unsupported(
                f"the pod's containers mount our volumes {mounts} times, more than {MOUNTS_MAX}",
                hint="mount a volume once in a container, or name the containers that shall have it",
            )
        )


def wanted_of(volume: ChosenVolume) -> Wanted:
    """Return what the mounts of a chosen volume shall become."""
    request = volume.resolved.request
    how = How.KEEPER if volume.is_sidecar else How.CLAIM if volume.is_claim else How.INLINE
    return Wanted(
        volume=volume.name,
        how=how,
        # The node service serves a sub-path where the filesystem is built in.
        splits=bool(volume.resolved.driver_class.filesystem),
        read_only=volume.resolved.spec.read_only,
        mount_path=request.mount_path,
        containers=request.containers,
        where=request.where,
        keeps_choice=volume.is_implicit and not volume.is_sidecar,
    )


def _config(sidecars: list[ChosenVolume], uses: list[Use], present: Present) -> KeeperConfig:
    """Return what the keeper makes: for each volume the views in use, and those that it makes already.

    The keeper gets it as one variable, and Linux bounds what one variable may hold. Raises Unsupported.
    """
    config = KeeperConfig(
        mounts=tuple(
            KeeperMount(spec=volume.resolved.spec, views=_all_views(volume, uses, present))
            for volume in sidecars
        )
    )
    text = encode_keeper_config(config)
    if len(text) > CONFIG_MAX_BYTES:
        views = sum(len(mount.views) for mount in config.mounts)
        raise Unsupported(
            f"the pod's {len(config.mounts)} volumes with {views} different sub-paths need a keeper configuration of "
            f"{len(text)} bytes, more than {CONFIG_MAX_BYTES}",
            hint="mount a common parent directory instead of many sub-paths",
        )
    try:
        decode_keeper_config(text)
    except BadMessage as error:  # what the keeper would refuse is refused here, where somebody sees it
        raise Unsupported(f"the keeper cannot be configured so: {error.message}", hint=error.hint) from error
    return config


def _all_views(volume: ChosenVolume, uses: list[Use], present: Present) -> tuple[View, ...]:
    """Return the views in use and those that a keeper of this pod makes already: a view is never taken back."""
    views = {view.name: view for view in views_of(volume.name, uses, volume.resolved.spec.read_only)}
    made = {name: view for name, (owner, view) in present.views.items() if owner == volume.name}
    if made and not any(use.volume == volume.name for use in uses):
        views = {}
    return tuple(sorted({**views, **made}.values(), key=_view_order))


def _view_order(view: View) -> tuple[str, bool]:
    return view.sub_path, view.read_only


def _check_shared_uid(shape: PodShape, volume: ChosenVolume, faults: list[VolumeError]) -> None:
    """With one process namespace a process of the daemon's uid could reach into it, where its credentials are."""
    if not shape.shared_processes or not volume.is_sidecar or not volume.resolved.request.secret:
        return
    uid = volume.resolved.spec.uid
    for container in (*shape.init_containers, *shape.containers):
        runs_as = shape.security.run_as_user if container.run_as_user is None else container.run_as_user
        if runs_as == uid and not is_own_container(container.name):
            faults.append(
                PolicyDenied(
                    f"{volume.resolved.request.where}: the pod's containers share one process namespace, and "
                    f"{shown(container.name)} runs as uid {uid}, as the client of volume {shown(volume.name)} that holds credentials",
                    reason=Reason.SHARED_UID,
                    hint="set another runAsUser, or drop shareProcessNamespace and hostPID",
                )
            )


def _daemon(volume: ChosenVolume, settings: InjectionSettings) -> Daemon:
    request, driver_class, spec = (
        volume.resolved.request,
        volume.resolved.driver_class,
        volume.resolved.spec,
    )
    attachments = (
        source_attachment(spec),
        secret_attachment(volume.name, request.secret, driver_class, spec.uid),
        cache_attachment(volume.name, driver_class),
    )
    amounts = merge(
        (
            (settings.daemon_requests, settings.daemon_limits),
            (driver_class.resources.requests, driver_class.resources.limits),
            (request.resources.requests, request.resources.limits),
        )
    )
    return Daemon(
        spec=spec,
        driver_class=driver_class,
        amounts=amounts,
        attachments=tuple(attachment for attachment in attachments if attachment is not None),
        claim=request.origin.name if isinstance(request.origin, Claim) and request.origin.implicit else "",
    )


def _fitted(
    daemons: tuple[Daemon, ...], shape: PodShape, present: Present, setting: Setting
) -> tuple[Amounts, tuple[Daemon, ...], tuple[str, ...]]:
    """Return the keeper's amounts and the daemons with theirs, fitted to pod and namespace, and what is told of that."""
    keeper = merge(((setting.settings.keeper_requests, setting.settings.keeper_limits),))
    if not daemons:
        return keeper, daemons, ()
    ours = {daemon_container(daemon.spec.volume): daemon.amounts for daemon in daemons}
    found = fitted(
        shape, {KEEPER_CONTAINER: keeper, **ours}, setting.facts, is_first_round=not present.containers
    )
    fitted_daemons = tuple(
        replace(daemon, amounts=found.amounts[daemon_container(daemon.spec.volume)]) for daemon in daemons
    )
    return found.amounts[KEEPER_CONTAINER], fitted_daemons, found.warnings


def _containers(
    config: KeeperConfig,
    keeper: Amounts,
    daemons: tuple[Daemon, ...],
    shape: PodShape,
    settings: InjectionSettings,
) -> tuple[dict[str, Any], ...]:
    if not daemons:
        return ()
    return (
        keeper_container(config, keeper, shape, settings),
        *(daemon_container_of(daemon, shape, settings) for daemon in daemons),
    )


def _changed_volumes(chosen: list[ChosenVolume]) -> dict[int, dict[str, Any]]:
    """Return what stands in spec.volumes in place of what a request's volume was; fields that we do not know are kept."""
    changed = {}
    for volume in chosen:
        if volume.index is None or volume.found is None:
            continue
        kinds = {key for key in volume.found.kinds if key in _SOURCES}
        # A claim stays where Kubernetes sees it, though no container mounts it then and so no kubelet: the scheduler heeds its
        # topology, and nobody deletes it while the pod uses it.
        is_plain = volume.is_sidecar and not volume.is_claim
        source = {EMPTY_DIR: {}} if is_plain else csi_source(volume.resolved)
        if kinds == set(source) or (is_plain and not kinds):
            continue
        kept = {key: msgspec.json.decode(raw) for key, raw in volume.found.fields if key not in _SOURCES}
        changed[volume.index] = {"name": volume.name, **kept, **source}
    return changed


def _told(volume: ChosenVolume, uses: list[Use]) -> VolumeOutcome:
    mounts = tuple(
        MountOutcome(container=u.place.name, path=u.path, sub_path=u.sub_path, read_only=u.read_only)
        for u in uses
        if u.volume == volume.name
    )
    return replace(volume_outcome(volume), mounts=mounts)


def _csi_warnings(chosen: list[ChosenVolume], shape: PodShape) -> Iterator[str]:
    """Yield what the kubelet or the runtime does to a volume that it mounts."""
    if not shape.host_users:
        for volume in chosen:
            if not volume.is_sidecar:
                yield f"sidemount: volume {volume.name}: with hostUsers: false its containers will not start, for the kernel maps no ids of a FUSE mount"
    if shape.security.fs_group is None or shape.security.fs_group_change_policy == "OnRootMismatch":
        return
    for volume in chosen:
        if not volume.is_sidecar and not volume.resolved.spec.read_only:
            yield f"sidemount: volume {volume.name}: each start sets fsGroup on all its files; see fsGroupChangePolicy: OnRootMismatch"


def _memory_warnings(daemons: tuple[Daemon, ...]) -> Iterator[str]:
    for daemon in daemons:
        limit = amount(daemon.amounts.limits.get("memory"))
        if daemon.spec.filesystem and 0 < limit < DAEMON_MEMORY_MIN_BYTES:
            yield (
                f"sidemount: volume {daemon.spec.volume}: its memory limit of {show('memory', limit)} is below "
                f"{DAEMON_MEMORY_MIN_BYTES >> 20}Mi, so the kernel may kill its container when it is used heavily"
            )


def _warnings(
    chosen: list[ChosenVolume], uses: list[Use], outcomes: tuple[VolumeOutcome, ...], found: Marks
) -> tuple[str, ...]:
    told = [
        f"sidemount: volume {o.volume}: {o.delivery}, {f'class {o.driver_class} ' if o.driver_class else ''}({o.reason.value})"
        for o in outcomes
    ]
    used = {use.volume for use in uses}
    told += [f"sidemount: volume {v.name} is mounted by no container" for v in chosen if v.name not in used]
    told += [
        f"sidemount: volume {v.name}: class {v.resolved.driver_class.name} cannot take a descriptor, so its container is privileged"
        for v in chosen
        if v.is_sidecar and not v.resolved.driver_class.abilities.descriptor
    ]
    if found.grace_s is not None:
        told.append(
            f"sidemount: terminationGracePeriodSeconds raised to {found.grace_s}, so that volumes can be unmounted"
        )
    return tuple(told)
