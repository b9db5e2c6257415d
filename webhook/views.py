"""Which mounts of the pod's containers show which volume, through which view."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sidemount.model.errors import InvalidRequest, Reason, Unsupported, VolumeError, shown
from sidemount.model.mountspec import View
from sidemount.model.names import MOUNTS_VOLUME, view_name
from sidemount.model.sub_path import sub_path_fault
from webhook.pod import Mount
from webhook.shape import ContainerShape, PodShape, is_own_container, is_reserved

HOST_TO_CONTAINER = "HostToContainer"
BIDIRECTIONAL = "Bidirectional"
_PLAIN_RECURSION = ("", "Disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A container of the pod: its list in spec, its index there, its name."""

    section: str
    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the mounts of one volume shall become. `is_sidecar`: they show a view of ours; else the volume stays theirs.

    `keeps_choice`: what the user chose is kept (a claim that nobody asked us to deliver).
    """

    volume: str
    is_sidecar: bool
    read_only: bool = False
    mount_path: str = ""
    containers: tuple[str, ...] | None = None
    where: str = ""
    keeps_choice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One mount of a container that shows a volume, as found. `view` is None when the volume is not shown through views.

    `index` is its place in volumeMounts; None for one that is still to be added at `path`.
    """

    place: Place
    index: int | None
    volume: str
    path: str
    sub_path: str
    read_only: bool
    view: View | None
    found: Mount | None
    keeps_choice: bool = False


KnownViews = Mapping[str, tuple[str, View]]  # view name → (volume, view), of a pod that has a keeper already


def places(shape: PodShape) -> Iterable[tuple[Place, ContainerShape]]:
    """Yield every container that is not ours: init containers first, as they run."""
    for section, containers in (("initContainers", shape.init_containers), ("containers", shape.containers)):
        for index, container in enumerate(containers):
            if not is_own_container(container.name):
                yield Place(section=section, index=index, name=container.name), container


def read_uses(
    shape: PodShape, wanted: Mapping[str, Wanted], known: KnownViews
) -> tuple[list[Use], list[tuple[str, VolumeError]]]:
    """Return every mount of a wanted volume, and what is wrong with those that cannot be, each with its volume's name."""
    uses: list[Use] = []
    faults: list[tuple[str, VolumeError]] = []
    for place, container in places(shape):
        faults += [(device, _is_device(place, device)) for device in container.devices if device in wanted]
        for index, mount in enumerate(container.mounts):
            if isinstance(mount, Mount):
                try:
                    uses.extend(_use(place, index, mount, wanted, known))
                except VolumeError as fault:
                    faults.append((mount.name, fault))
    return uses, faults


def views_of(volume: str, uses: Iterable[Use], read_only: bool) -> tuple[View, ...]:
    """Return the views of a volume, sorted; one of its root where no container mounts it, as a keeper needs one."""
    found = {use.view.name: use.view for use in uses if use.view is not None and use.volume == volume}
    if not found:
        root = view_of(volume, "", read_only)
        found[root.name] = root
    return tuple(sorted(found.values(), key=_view_order))


def fields_to_set(use: Use) -> dict[str, object]:
    """Return the fields of a mount that differ from what they shall be, with what they shall be."""
    want: dict[str, object] = {}
    mount = use.found
    assert mount is not None
    if use.view is not None:
        if mount.name != MOUNTS_VOLUME:
            want["name"] = MOUNTS_VOLUME
        if mount.sub_path != use.view.name:
            want["subPath"] = use.view.name
    if mount.mount_propagation != HOST_TO_CONTAINER and not (use.keeps_choice and mount.mount_propagation):
        want["mountPropagation"] = HOST_TO_CONTAINER
    if use.read_only and not mount.read_only and not use.keeps_choice:
        want["readOnly"] = True
    return want


def rendered_mount(use: Use) -> dict[str, object]:
    """Return a mount that is to be added."""
    mount: dict[str, object] = {
        "name": use.volume if use.view is None else MOUNTS_VOLUME,
        "mountPath": use.path,
        "mountPropagation": HOST_TO_CONTAINER,
    }
    if use.view is not None:
        mount["subPath"] = use.view.name
    if use.read_only:
        mount["readOnly"] = True
    return mount


def _use(
    place: Place, index: int, mount: Mount, wanted: Mapping[str, Wanted], known: KnownViews
) -> tuple[Use, ...]:
    if is_reserved(mount.name):
        volume, view = _known_view(place, mount, known)
        want = wanted.get(volume)
        if want is None or not want.is_sidecar:
            raise _not_a_view(place, mount)
        return (_found_use(place, index, mount, volume, view, view.sub_path, view.read_only, False),)
    want = wanted.get(mount.name)
    if want is None:
        return ()
    _check_mount(place, mount, want)
    read_only = mount.read_only or want.read_only
    shown_view = view_of(mount.name, mount.sub_path, read_only) if want.is_sidecar else None
    return (
        _found_use(place, index, mount, mount.name, shown_view, mount.sub_path, read_only, want.keeps_choice),
    )


def _found_use(
    place: Place,
    index: int,
    mount: Mount,
    volume: str,
    view: View | None,
    sub_path: str,
    read_only: bool,
    keeps_choice: bool,
) -> Use:
    return Use(
        place=place,
        index=index,
        volume=volume,
        path=mount.mount_path,
        sub_path=sub_path,
        read_only=read_only,
        view=view,
        found=mount,
        keeps_choice=keeps_choice,
    )


def _known_view(place: Place, mount: Mount, known: KnownViews) -> tuple[str, View]:
    """Return what a mount that names a volume of ours shows; only a view that our keeper makes may be there."""
    is_plain = (
        mount.name == MOUNTS_VOLUME
        and not mount.sub_path_expr
        and mount.mount_propagation != BIDIRECTIONAL
        and mount.recursive_read_only in _PLAIN_RECURSION
    )
    if not is_plain or mount.sub_path not in known:
        raise _not_a_view(place, mount)
    return known[mount.sub_path]


def _not_a_view(place: Place, mount: Mount) -> InvalidRequest:
    return InvalidRequest(
        f"container {shown(place.name)} mounts {shown(mount.name)} at {shown(mount.mount_path)}: "
        "that volume is Sidemount's own, and no view of it is there to be mounted so",
        reason=Reason.HAND_MADE,
        hint="mount the volume by the name that the annotation gives it",
    )


def _check_mount(place: Place, mount: Mount, want: Wanted) -> None:
    where = f"container {shown(place.name)} mounts volume {shown(mount.name)} at {shown(mount.mount_path)}"
    if mount.sub_path_expr and want.is_sidecar:
        raise Unsupported(
            f"{where} with subPathExpr {shown(mount.sub_path_expr)}, which only the kubelet can expand, too late for a view",
            reason=Reason.SUB_PATH_EXPR,
            hint="use subPath",
        )
    if mount.recursive_read_only not in _PLAIN_RECURSION:
        raise Unsupported(
            f"{where} with recursiveReadOnly {shown(mount.recursive_read_only)}, which Kubernetes allows only without propagation",
            hint="drop recursiveReadOnly: readOnly makes the whole of a FUSE volume read-only",
        )
    if mount.mount_propagation == BIDIRECTIONAL:
        raise Unsupported(
            f"{where} with mountPropagation Bidirectional: a container's own mounts cannot be shared through a FUSE volume",
            hint="drop mountPropagation, or use another volume for your own mounts",
        )
    fault = sub_path_fault(mount.sub_path)
    if fault:
        raise InvalidRequest(
            f"{where}: subPath {shown(mount.sub_path)} {fault}",
            hint="write it relative to the volume's root, such as a/b",
        )


def _is_device(place: Place, device: str) -> Unsupported:
    return Unsupported(
        f"container {shown(place.name)} has volume {shown(device)} in volumeDevices: a FUSE volume is no block device",
        hint="use volumeMounts",
    )


def view_of(volume: str, sub_path: str, read_only: bool) -> View:
    """Return the view of a sub-path."""
    return View(name=view_name(volume, sub_path, read_only), sub_path=sub_path, read_only=read_only)


def _view_order(view: View) -> tuple[str, bool]:
    return view.sub_path, view.read_only
