"""Views: mounts made from a volume for one (sub-path, read-only) pair. Runs in a disposable child: every step here may hang.

The directory is opened beneath the volume's root, following nothing; what is shown is a detached clone of exactly that
directory, whatever is renamed meanwhile. Read-only and private propagation are set before anyone can see it: set later,
read-only does not reach running containers, and a clone that shares its origin's peer group would mount itself into the volume.
"""

import errno as errnos
import os
from collections.abc import Mapping

from sidemount.host import mount_api
from sidemount.host.openat2 import open_directory_beneath
from sidemount.model.errors import HostFailure
from sidemount.model.mountspec import View
from sidemount.model.sub_path import sub_path_fault

_ALWAYS = mount_api.MOUNT_ATTR_NOSUID | mount_api.MOUNT_ATTR_NODEV
_FAULTS: Mapping[int, str] = {
    errnos.ENOENT: "does not exist on the volume",
    errnos.ELOOP: "crosses a symbolic link",
    errnos.ENOTDIR: "is not a directory",
    errnos.EXDEV: "leaves the volume or crosses another mount",
    errnos.EACCES: "is not accessible to root on the volume",
    errnos.ENAMETOOLONG: "has a name that is too long for the volume",
}
_HINTS: Mapping[int, str] = {
    errnos.ENOENT: "create the directory on the volume (nothing is created by mounting), or correct the sub-path",
    errnos.ELOOP: "name the real directory: links are not followed, even within the volume",
    errnos.ENOTDIR: "name a directory",
    errnos.EXDEV: "name a directory of the volume itself",
}


def clone_view(root: int, view: View, volume: str) -> int:
    """Return a descriptor of a detached mount of the view, ready to be attached. `root` is the volume's open root.

    Creates nothing. Raises HostFailure that names sub-path, volume and reason.
    """
    target = f'sub-path "{view.sub_path}" of volume "{volume}"'
    fault = sub_path_fault(view.sub_path)
    if fault:
        raise HostFailure(f"{target} {fault}", errno=errnos.EINVAL)
    try:
        directory = open_directory_beneath(root, view.sub_path, target)
    except HostFailure as error:
        raise _explained(error, target) from error
    try:
        return clone_directory(directory, read_only=view.read_only, target=target)
    finally:
        os.close(directory)


def clone_directory(directory: int, *, read_only: bool, target: str) -> int:
    """Return a descriptor of a detached mount of the open directory, nosuid and nodev whatever it is a copy of. Raises HostFailure."""
    clone = mount_api.open_tree_clone(directory, target)
    try:
        mount_api.mount_setattr(
            clone,
            attributes=_ALWAYS | mount_api.MOUNT_ATTR_RDONLY if read_only else _ALWAYS,
            propagation=mount_api.MS_PRIVATE,
            target=target,
        )
    except BaseException:
        os.close(clone)
        raise
    return clone


def _explained(error: HostFailure, target: str) -> HostFailure:
    fault = _FAULTS.get(error.errno)
    if fault is None:
        return error
    return HostFailure(f"{target} {fault}", errno=error.errno, hint=_HINTS.get(error.errno, ""))
