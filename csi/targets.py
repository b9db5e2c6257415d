"""Targets: directories of somebody else's that a volume is shown at. Nothing here contacts what is mounted there.

Source: https://github.com/container-storage-interface/spec/blob/v1.12.0/spec.md#nodepublishvolume
"""

import contextlib
import errno as errnos
import os
import stat

from csi.faults import WrongState
from sidemount.host.mount_table import read_mount_table
from sidemount.model.errors import HostFailure, InvalidRequest, PublishConflict, shown
from sidemount.model.mountinfo import Mount, layers_at

_MODE = 0o750


class Targets:
    """The roots beneath which targets may lie."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots = roots

    def root_of(self, target: str) -> str | None:
        """Return the root that a target lies beneath, the longest if several; None if none. A root itself is no target."""
        found = [root for root in self._roots if target.startswith(f"{root}/")]
        return max(found, key=len) if found else None

    def resolve(self, target: str) -> str:
        """Return the target's real path: its root may be reached by links, nothing beneath it may.

        Raises InvalidRequest if it lies beneath no root or crosses a link, WrongState if its parent is missing or it lies within a
        volume of ours, HostFailure.
        """
        root = self.root_of(target)
        if root is None:
            roots = ", ".join(self._roots)
            raise InvalidRequest(
                f"target_path {shown(target)} lies beneath none of the target roots {roots}",
                hint="have the admin add the root (--target-root)",
            )
        relative = os.path.dirname(target[len(root) + 1 :])
        try:
            real = os.path.realpath(root, strict=True)
            _check_not_within(f"{real}/{relative}", real, target)
            top = os.open(real, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WrongState(f"target root {root}: {error.strerror}") from error
        try:
            os.close(_open_beneath(top, relative, target))
        finally:
            os.close(top)
        return os.path.normpath(f"{real}/{target[len(root) + 1 :]}")


def check_free(path: str) -> None:
    """See that nothing of anybody else's is at the target: a mount, a file, or files in it. Raises PublishConflict, WrongState."""
    if foreign_mount(path) is not None:
        raise PublishConflict(
            f"target_path {shown(path)}: something else is mounted there",
            hint="unmount it, or name another target",
        )
    if own_layers(path):
        return  # nobody looks into it
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostFailure(f"target_path {path}: {error.strerror}", errno=error.errno or 0) from error
    if not stat.S_ISDIR(status.st_mode):
        raise WrongState(f"target_path {shown(path)} is not a directory")
    with os.scandir(path) as entries:
        if next(entries, None) is not None:
            raise WrongState(
                f"target_path {shown(path)} is not empty",
                hint="a mount would hide what lies there: move it away",
            )


def make(path: str) -> bool:
    """Make the target's directory; False if it was there. Its parent has to be: it is the caller's. Raises WrongState, HostFailure."""
    try:
        os.mkdir(path, _MODE)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise WrongState(f"target_path {shown(path)}: its parent directory does not exist") from None
    except OSError as error:
        raise HostFailure(f"mkdir {path}: {error.strerror}", errno=error.errno or 0) from error
    return True


def make_again(path: str) -> None:
    """Make the target of a volume anew that somebody has taken away. Raises WrongState, HostFailure."""
    if not own_layers(path) and not make(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
        raise WrongState(f"target_path {shown(path)} is not a directory any more")


def remove(path: str) -> bool:
    """Remove the target's directory, never what is in it; False if something is. Raises WrongState, HostFailure."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errnos.ENOTEMPTY, errnos.EEXIST, errnos.ENOTDIR):
            return False
        if error.errno == errnos.EBUSY and foreign_mount(path) is not None:
            raise WrongState(
                f"target_path {shown(path)}: something else is mounted there", hint="unmount that first"
            ) from error
        raise HostFailure(f"rmdir {path}: {error.strerror}", errno=error.errno or 0) from error
    return True


def foreign_mount(path: str) -> Mount | None:
    """Return a mount at the target that no node service of ours has made, None if there is none."""
    return next((mount for mount in layers_at(read_mount_table(), path) if not _is_own(mount)), None)


def own_layers(path: str) -> tuple[Mount, ...]:
    """Return the mounts at the target that a node service of ours has made, bottom first."""
    return tuple(mount for mount in layers_at(read_mount_table(), path) if _is_own(mount))


def is_free_of_mounts(directory: str) -> bool:
    """Tell whether nothing is mounted at a directory or below."""
    return not any(is_within(mount.mount_point, directory) for mount in read_mount_table())


def is_within(path: str, directory: str) -> bool:
    """Tell whether a path is a directory's own or lies below. Both are normal."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def _is_own(mount: Mount) -> bool:
    return mount.is_ours and mount.source.startswith("sidemount:csi/")


def _check_not_within(parent: str, root: str, target: str) -> None:
    """See that a target's parent lies in no volume of ours beneath the root: it would hang with that, and go with it."""
    for mount in read_mount_table():
        place = mount.mount_point
        if _is_own(mount) and place != root and is_within(place, root) and is_within(parent, place):
            raise WrongState(
                f"target_path {shown(target)} lies in the volume that is shown at {shown(place)}",
                hint="name a target outside of it",
            )


def _open_beneath(top: int, relative: str, target: str) -> int:
    """Open the target's parent. Mounts may be crossed on the way, links not."""
    here = os.dup(top)
    for part in [part for part in relative.split("/") if part]:
        try:
            further = _open_part(here, part, target)
        finally:
            with contextlib.suppress(OSError):
                os.close(here)
        here = further
    return here


def _open_part(directory: int, part: str, target: str) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(part, flags, dir_fd=directory)
    except FileNotFoundError:
        raise WrongState(f"target_path {shown(target)}: its parent directory does not exist") from None
    except NotADirectoryError:
        raise InvalidRequest(
            f"target_path {shown(target)}: {shown(part)} is a link, or no directory"
        ) from None
    except OSError as error:
        raise HostFailure(f"target_path {target}: {error.strerror}", errno=error.errno or 0) from error
