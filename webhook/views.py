"""Which mounts of the pod's containers show which volume, through which view."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from sidemount.model.errors import InvalidRequest, Reason, Unsupported, VolumeError, shown
from sidemount.model.mountspec import View
from sidemount.model.names import MOUNTS_VOLUME, inline_volume, view_name
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


class How(Enum):
    """How a container's mount comes to show a volume."""

    KEEPER = "keeper"  # by a view that the keeper makes, in the mounts volume
    INLINE = "inline"  # by an inline CSI volume for each (sub-path, read-only) pair
    CLAIM = "claim"  # by the volume itself: kubelet mounts the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the mounts of one volume shall become.

    `splits`: an inline volume shows a sub-path; else the kubelet has to find it within the whole. `keeps_choice`: what the user
    chose is kept (a claim that nobody asked us to deliver).
    """

    volume: str
    how: How
    splits: bool = True
    read_only: bool = False
    mount_path: str = ""
    containers: tuple[str, ...] | None = None
    where: str = ""
    keeps_choice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One mount of a container that shows a volume, as found. `view` is None for a claim, which is not shown through views.

    `index` is its place in volumeMounts; None for one that is still to be added at `path`. `shown_by` and `shown_path` are the pod
    volume that it shall name and the subPath there. `heals`: what is mounted later may show in it.
    """

    place: Place
    index: int | None
    volume: str
    path: str
    sub_path: str
    read_only: bool
    view: View | None
    found: Mount | None
    shown_by: str
    shown_path: str = ""
    keeps_choice: bool = False
    heals: bool = True

    @property
    def is_of_keeper(self) -> bool:
        """Whether it shows a view that the keeper makes."""
        return self.shown_by == MOUNTS_VOLUME


KnownViews = Mapping[str, tuple[str, View]]
"""View name → (volume, view), of a pod that has a keeper already; or name of the pod volume, of inline ones."""


def places(shape: PodShape) -> Iterable[tuple[Place, ContainerShape]]:
    """Yield every container that is not ours: init containers first, as they run."""
    for section, containers in (("initContainers", shape.init_containers), ("containers", shape.containers)):
        for index, container in enumerate(containers):
            if not is_own_container(container.name):
                yield Place(section=section, index=index, name=container.name), container


def read_uses(
    shape: PodShape, wanted: Mapping[str, Wanted], known: KnownViews, inline: KnownViews
) -> tuple[list[Use], list[tuple[str, VolumeError]]]:
    """Return every mount of a wanted volume, and what is wrong with those that cannot be, each with its volume's name.

    `known` are the views of the pod's keeper, `inline` those that are pod volumes already.
    """
    uses: list[Use] = []
    faults: list[tuple[str, VolumeError]] = []
    for place, container in places(shape):
        faults += [(device, _is_device(place, device)) for device in container.devices if device in wanted]
        for index, mount in enumerate(container.mounts):
            if isinstance(mount, Mount):
                try:
                    uses.extend(_use(place, index, mount, wanted, known, inline))
                except VolumeError as fault:
                    faults.append((mount.name, fault))
    return uses, faults


def left_uses(shape: PodShape, claims: Mapping[str, bool]) -> list[Use]:
    """Return the mounts of claims that CSI serves as they are: volume → whether it is read-only as a whole.

    Where a container cannot have what is mounted later, because it asks for another propagation, its mount stays as it is.
    """
    return [
        _claim_use(place, index, mount, claims[mount.name], keeps_choice=True)
        for place, container in places(shape)
        for index, mount in enumerate(container.mounts)
        if isinstance(mount, Mount) and mount.name in claims and mount.recursive_read_only in _PLAIN_RECURSION
    ]


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
    if mount.name != use.shown_by:
        want["name"] = use.shown_by
    if mount.sub_path != use.shown_path:
        want["subPath"] = use.shown_path
    keeps_propagation = not use.heals or (use.keeps_choice and mount.mount_propagation)
    if mount.mount_propagation != HOST_TO_CONTAINER and not keeps_propagation:
        want["mountPropagation"] = HOST_TO_CONTAINER
    if use.read_only and not mount.read_only and not use.keeps_choice:
        want["readOnly"] = True
    return want


def rendered_mount(use: Use) -> dict[str, object]:
    """Return a mount that is to be added."""
    mount: dict[str, object] = {
        "name": use.shown_by,
        "mountPath": use.path,
        "mountPropagation": HOST_TO_CONTAINER,
    }
    if use.shown_path:
        mount["subPath"] = use.shown_path
    if use.read_only:
        mount["readOnly"] = True
    return mount


def _use(
    place: Place,
    index: int,
    mount: Mount,
    wanted: Mapping[str, Wanted],
    known: KnownViews,
    inline: KnownViews,
) -> tuple[Use, ...]:
    if is_reserved(mount.name):
        volume, view = _known_view(place, mount, known, inline)
        want = wanted.get(volume)
        if want is None or (want.how is How.KEEPER) is not (mount.name == MOUNTS_VOLUME):
            raise _not_a_view(place, mount)
        if want.how is How.INLINE and want.splits and mount.sub_path:
            raise _not_a_view(place, mount)
        return (_shown_use(place, index, mount, want, view),)
    want = wanted.get(mount.name)
    if want is None:
        return ()
    _check_mount(place, mount, want)
    if want.how is How.CLAIM:
        return (_claim_use(place, index, mount, want.read_only, keeps_choice=want.keeps_choice),)
    is_whole = want.how is How.INLINE and (not want.splits or bool(mount.sub_path_expr))
    view = view_of(mount.name, "" if is_whole else mount.sub_path, mount.read_only or want.read_only)
    return (_shown_use(place, index, mount, want, view),)


def _shown_use(place: Place, index: int, mount: Mount, want: Wanted, view: View) -> Use:
    """Return the use of a mount that shows a view."""
    shown_by, shown_path = MOUNTS_VOLUME, view.name
    if want.how is How.INLINE:
        shown_by = inline_name(want.volume, want.read_only, view)
        # What the view is not, the kubelet still has to find: the path within the whole of a client that knows no sub-paths.
        shown_path = mount.sub_path if not want.splits else ""
    return Use(
        place=place,
        index=index,
        volume=want.volume,
        path=mount.mount_path,
        sub_path=view.sub_path or (shown_path if want.how is How.INLINE else ""),
        read_only=view.read_only,
        view=view,
        found=mount,
        shown_by=shown_by,
        shown_path=shown_path,
    )


def _claim_use(place: Place, index: int, mount: Mount, read_only: bool, *, keeps_choice: bool) -> Use:
    """Return the use of a mount of a claim, itself read-only or not.

    A container that has a writable claim read-only sees no later mounts: those would be writable in it.
    """
    return Use(
        place=place,
        index=index,
        volume=mount.name,
        path=mount.mount_path,
        sub_path=mount.sub_path,
        read_only=mount.read_only or read_only,
        view=None,
        found=mount,
        shown_by=mount.name,
        shown_path=mount.sub_path,
        keeps_choice=keeps_choice,
        heals=read_only or not mount.read_only,
    )


def inline_name(volume: str, read_only: bool, view: View) -> str:
    """Return the pod volume that shows a view of an inline volume, which is itself read-only or not."""
    if not view.sub_path and view.read_only is read_only:
        return volume
    return inline_volume(volume, view.sub_path, view.read_only)


def _known_view(place: Place, mount: Mount, known: KnownViews, inline: KnownViews) -> tuple[str, View]:
    """Return what a mount that names a volume of ours shows; only a view of ours may be there."""
    is_plain = mount.mount_propagation != BIDIRECTIONAL and mount.recursive_read_only in _PLAIN_RECURSION
    if is_plain and mount.name == MOUNTS_VOLUME and mount.sub_path in known and not mount.sub_path_expr:
        return known[mount.sub_path]
    if is_plain and mount.name in inline:
        volume, view = inline[mount.name]
        # Within a view of a sub-path nothing further is looked for: such a mount we would not have made.
        if not view.sub_path or not (mount.sub_path or mount.sub_path_expr):
            return volume, view
    raise _not_a_view(place, mount)


def _not_a_view(place: Place, mount: Mount) -> InvalidRequest:
    return InvalidRequest(
        f"container {shown(place.name)} mounts {shown(mount.name)} at {shown(mount.mount_path)}: "
        "that volume is Sidemount's own, and no view of it is there to be mounted so",
        reason=Reason.HAND_MADE,
        hint="mount the volume by the name that the annotation gives it",
    )


def _check_mount(place: Place, mount: Mount, want: Wanted) -> None:
    where = f"container {shown(place.name)} mounts volume {shown(mount.name)} at {shown(mount.mount_path)}"
    if mount.sub_path_expr and want.how is How.KEEPER:
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
