"""Inline CSI volumes of a pod: one for each (sub-path, read-only) pair that its containers show.

The kubelet could find a sub-path within one volume, and make a mount read-only, by itself. But what it binds is a part of one mount:
a later mount of the volume, which replaces a dead one, would not show there, and would be writable. A volume of its own has its own
target, where the node service mounts again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sidemount.model.errors import Unsupported, VolumeError
from sidemount.model.mountspec import View
from sidemount.model.names import CSI_DRIVER, INLINE_PREFIX
from webhook.choice import ChosenVolume
from webhook.csi_volume import CSI, csi_source
from webhook.views import KnownViews, Use, inline_name, view_of

INLINE_MAX = 64
_Json = Mapping[str, Any]


def is_inline_view(volume: _Json) -> bool:
    """Say whether a pod volume may be a view of ours: by its name and its driver."""
    source = volume.get(CSI)
    return str(volume.get("name")).startswith(INLINE_PREFIX) and _field(source, "driver") == CSI_DRIVER


def present_views(chosen: Iterable[ChosenVolume], found: Mapping[str, _Json]) -> KnownViews:
    """Return the views that a pod carries as volumes already, by the volume's name; those that belong to no request are left out.

    What they show is read from them and holds only if it gives the very same name.
    """
    known: dict[str, tuple[str, View]] = {}
    for volume in chosen:
        spec = volume.resolved.spec
        for name, there in found.items() if volume.is_inline else ():
            attributes = _field(there.get(CSI), "volumeAttributes")
            sub_path = _beneath(spec.sub_path, str(_field(attributes, "subPath") or ""))
            view = view_of(volume.name, sub_path, _field(attributes, "readOnly") == "true")
            if inline_name(volume.name, spec.read_only, view) == name:
                known[name] = (volume.name, view)
    return known


def view_volumes(
    chosen: Iterable[ChosenVolume], uses: Iterable[Use], known: KnownViews, faults: list[VolumeError]
) -> tuple[dict[str, Any], ...]:
    """Return the volumes of all views beside the whole ones, those that are there already too: a view is never taken back."""
    by_name = {volume.name: volume for volume in chosen if volume.is_inline}
    views = dict(known)
    for use in uses:
        if use.view is not None and use.volume in by_name and use.shown_by != use.volume:
            views[use.shown_by] = (use.volume, use.view)
    if len(views) + len(by_name) > INLINE_MAX:
        faults.append(
            Unsupported(
                f"the pod needs {len(views) + len(by_name)} inline CSI volumes, one for each volume and each of its sub-paths and "
                f"read-only mounts, more than {INLINE_MAX}",
                hint="mount a common parent directory instead of many sub-paths",
            )
        )
        return ()
    rendered = []
    for name, (volume, view) in sorted(views.items()):
        try:
            rendered.append({"name": name, **csi_source(by_name[volume].resolved, view)})
        except VolumeError as fault:
            faults.append(fault)
    return tuple(rendered)


def check_whole(chosen: Sequence[ChosenVolume], faults: list[VolumeError]) -> None:
    """Add a fault for every volume that cannot be written as a volume of the pod."""
    for volume in chosen:
        if volume.is_inline:
            try:
                csi_source(volume.resolved)
            except VolumeError as fault:
                faults.append(fault)


def _beneath(root: str, sub_path: str) -> str:
    return sub_path.removeprefix(root).removeprefix("/") if root else sub_path


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
