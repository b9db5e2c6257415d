"""Mounts that a request with `mountPath` adds to containers, where they are not there already."""

import posixpath
from collections.abc import Iterable, Mapping

from sidemount.model.errors import InvalidRequest, Reason, VolumeError, shown
from sidemount.model.names import MOUNTS_VOLUME
from webhook.shape import ContainerShape, PodShape
from webhook.views import How, Place, Use, Wanted, places, view_of


def added_uses(
    shape: PodShape,
    wanted: Mapping[str, Wanted],
    uses: Iterable[Use],
    skipped: frozenset[str],
    faults: list[VolumeError],
) -> list[Use]:
    """Return the mounts to add, with faults for paths that are taken and containers that are not there.

    `skipped` names containers of other injectors, which get none unless a request names them.
    """
    asking = [want for want in wanted.values() if want.mount_path]
    if not asking:
        return []
    containers = list(places(shape))
    taken: dict[tuple[Place, str], Use | None] = {
        (place, _normal(path)): None
        for place, container in containers
        for path in container.mounts
        if isinstance(path, str)
    }
    taken |= {(use.place, _normal(use.path)): use for use in uses}
    added: list[Use] = []
    for want in asking:
        faults += _unknown_containers(want, containers)
        for place, _ in containers:
            if not _is_meant(want, place, skipped):
                continue
            use, key = _addition(place, want), (place, _normal(want.mount_path))
            if key not in taken:
                taken[key] = use
                added.append(use)
            elif not _is_same(taken[key], use):
                faults.append(_path_taken(place, want))
    return added


def _is_meant(want: Wanted, place: Place, skipped: frozenset[str]) -> bool:
    if want.containers is None:
        return place.name not in skipped
    return place.name in want.containers


def _is_same(found: Use | None, use: Use) -> bool:
    return found is not None and (found.volume, found.view) == (use.volume, use.view)


def _unknown_containers(want: Wanted, containers: list[tuple[Place, ContainerShape]]) -> list[VolumeError]:
    names = {place.name: None for place, _ in containers}
    return [
        InvalidRequest(
            f"{want.where}: containers names {shown(name)}, which the pod does not have",
            reason=Reason.UNKNOWN_VOLUME,
            hint=f"its containers are {', '.join(names) or 'none'}",
        )
        for name in want.containers or ()
        if name not in names
    ]


def _addition(place: Place, want: Wanted) -> Use:
    view = view_of(want.volume, "", want.read_only)
    is_of_keeper = want.how is How.KEEPER
    return Use(
        place=place,
        index=None,
        volume=want.volume,
        path=want.mount_path,
        sub_path="",
        read_only=want.read_only,
        view=None if want.how is How.CLAIM else view,
        found=None,
        shown_by=MOUNTS_VOLUME if is_of_keeper else want.volume,
        shown_path=view.name if is_of_keeper else "",
    )


def _path_taken(place: Place, want: Wanted) -> InvalidRequest:
    return InvalidRequest(
        f"{want.where}: mountPath {shown(want.mount_path)} is taken in container {shown(place.name)} by another mount",
        reason=Reason.MOUNT_PATH_COLLISION,
        hint="choose another mountPath, or name the containers that shall have it",
    )


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
