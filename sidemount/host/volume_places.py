"""Where one volume is shown: its own directory and one for every other view, all in the pod's mounts volume.

Nothing is ever mounted on the mounts volume itself, and nothing else may lie in it.
"""

import contextlib
import errno as errnos
import os
import stat
from dataclasses import dataclass
from typing import Protocol

from sidemount.host import mount_api, syscalls
from sidemount.host.mount_points import clear_aside, clone_for, is_marker
from sidemount.host.mount_table import (
    OwnedBy,
    detach_layers,
    is_fuse,
    mount_by_id,
    mount_id_of,
    read_mount_table,
)
from sidemount.host.read_ahead import widen_read_ahead
from sidemount.host.views import clone_directory
from sidemount.model.errors import BadMessage, HostFailure
from sidemount.model.mountinfo import Mount, layers_at, mount_at
from sidemount.model.mountspec import KeeperMount, MountSpec, View
from sidemount.model.names import client_place

LAYERS_MAX = 64
_READ_AHEAD_KIB = {"objects": 1024}  # a store is far away, and each request costs what eight small ones do
_DIRECTORY_MODE = 0o555  # not even root's daemons write here by accident before something is mounted


@dataclass(frozen=True, slots=True)
class Place:
    """A view and the path it is shown at."""

    view: View
    path: str


class NewMount(Protocol):
    """A mount that is attached nowhere yet, by its descriptor; -1 once that is given up."""

    mount: int

    def attach(self, target: str) -> int:
        """Show it at `target`, over what is there, and return its mount id."""
        ...

    def release_mount(self) -> None:
        """Close the descriptor. A mount that was not attached ends with that."""
        ...


@dataclass(slots=True)
class ClientClone:
    """A detached copy of what a client has mounted by itself: it can be attached where the client's mount is not."""

    mount: int

    def attach(self, target: str) -> int:
        """Show it at `target`, over what is there, and return its mount id."""
        mount_id = mount_id_of(self.mount)
        mount_api.move_mount(self.mount, target)
        return mount_id

    def release_mount(self) -> None:
        """Close the descriptor."""
        if self.mount >= 0:
            os.close(self.mount)
            self.mount = -1


class VolumePlaces:
    """The mount points of one volume. No method contacts what is mounted there.

    `anchor` is the volume's own place, `all_paths` every place that containers see. `client` is where a client that mounts by
    itself does it, which no container sees; "" for one that is given a descriptor.
    """

    def __init__(self, mounts_dir: str, mount: KeeperMount) -> None:
        """`mounts_dir` is resolved: what the mount table calls it. Raises BadMessage on a view that is not this volume's."""
        anchor = f"{mounts_dir}/{mount.spec.volume}"
        views = tuple(
            Place(view, f"{mounts_dir}/{view.name}") for view in mount.views if not _is_anchor(mount, view)
        )
        self._lay_out(mount.spec, anchor, views, f"{mounts_dir}/{client_place(mount.spec.volume)}")
        self._mounts_dir = mounts_dir

    @classmethod
    def at_target(cls, spec: MountSpec, target: str, client: str) -> "VolumePlaces":
        """Return the places of a volume that is shown at one path of somebody else's, resolved, who has prepared it.

        `client` is a private directory for a client that mounts by itself.
        """
        places = cls.__new__(cls)
        places._lay_out(spec, target, (), client)
        return places

    def _lay_out(self, spec: MountSpec, anchor: str, views: tuple[Place, ...], client: str) -> None:
        self._spec = spec
        self._mounts_dir = ""  # none of ours
        self._owned = OwnedBy(any_fuse=not spec.descriptor)
        self.anchor = anchor
        self.views = views
        self.all_paths = (anchor, *(place.path for place in views))
        self.client = "" if spec.descriptor else client
        self._every_path = (*self.all_paths, self.client) if self.client else self.all_paths

    def prepare(self) -> None:
        """Make the directories; those of an earlier keeper stay. Raises HostFailure."""
        for path in self._every_path:
            if self._mounts_dir:
                clear_aside(path)
            _prepare_directory(path)

    def find(self) -> Mount | None:
        """Return the volume's mount if it is there: what a look-up of its place ends on, and ours."""
        return self._found_at(self.anchor)

    def find_client(self) -> Mount | None:
        """Return what the client has mounted by itself, None if that is nothing."""
        return self._found_at(self.client) if self.client else None

    def shows_client(self) -> bool:
        """Tell whether containers see what the client has mounted by itself."""
        client, shown = self.find_client(), self.find()
        return client is not None and shown is not None and client.minor == shown.minor

    def open_root(self) -> int:
        """Return an O_PATH descriptor of the mounted volume's root, as it is served now. Raises HostFailure if there is none."""
        return self._open(self.client or self.anchor)

    def open_shown(self) -> int:
        """Return an O_PATH descriptor of the root that containers see, be it dead. Raises HostFailure if there is none."""
        return self._open(self.anchor)

    def clone_of_client(self) -> ClientClone:
        """Return a copy of the client's mount, to be shown; nosuid and nodev whatever the client thinks of that. Raises HostFailure."""
        root = self._open(self.client)
        try:
            return ClientClone(clone_directory(root, read_only=self._spec.read_only, target=self.client))
        finally:
            os.close(root)

    def clear_client(self) -> None:
        """Take away what the client has mounted, for the next one: most refuse a place with a dead mount. Nobody sees it."""
        detach_layers(self.client, self._owned)

    def attach_anchor(self, new: NewMount) -> Mount:
        """Show a new mount at the volume's place, over what is there, and return its entry in the mount table."""
        self._make_room(self.anchor)
        mount_id = new.attach(self.anchor)
        mount = mount_by_id(read_mount_table(), mount_id)
        if mount is None:
            raise HostFailure(f"{self.anchor}: the mount is gone as soon as it was made", errno=errnos.ENOENT)
        if (kib := _READ_AHEAD_KIB.get(self._spec.filesystem)) is not None:
            widen_read_ahead(mount.minor, kib)
        return mount

    def missing_views(self, anchor: Mount) -> tuple[Place, ...]:
        """Return the views that do not show what `anchor` shows, in the way they should."""
        table = read_mount_table()
        return tuple(
            place for place in self.views if not _shows(mount_at(table, place.path), anchor, place.view)
        )

    def attach_view(self, place: Place, clone: int) -> None:
        """Show a view's detached mount at its place, over what is there."""
        self._make_room(place.path)
        mount_api.move_mount(clone, place.path)

    def detach_all(self) -> int:
        """Detach every layer of ours: views first, then the volume. Return how many of those that containers saw."""
        detached = sum(detach_layers(path, self._owned) for path in reversed(self.all_paths))
        if self.client:
            self.clear_client()
        return detached

    def lend(self) -> int | None:
        """Return a descriptor by which the volume's daemon can take the mounts away; None if they are not in a directory of ours.

        Raises HostFailure, OSError.
        """
        return clone_for(self._mounts_dir, self._spec.uid) if self._mounts_dir else None

    def layers(self) -> int:
        """Return the greatest number of mounts of ours at one place."""
        table = read_mount_table()
        return max(sum(map(self._owned, layers_at(table, path))) for path in self._every_path)

    def _found_at(self, path: str) -> Mount | None:
        top = mount_at(read_mount_table(), path)
        return top if top is not None and self._owned(top) and is_fuse(top) else None

    def _open(self, path: str) -> int:
        try:
            root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise syscalls.failure("open", path, error.errno or 0) from error
        mount = mount_by_id(read_mount_table(), mount_id_of(root))
        if mount is None or not (self._owned(mount) and is_fuse(mount)):
            os.close(root)
            raise HostFailure(f"{path}: the volume is not mounted there any more", errno=errnos.ENOENT)
        return root

    def _make_room(self, path: str) -> None:
        """Keep the number of layers bounded: all but the lowest are taken off when there are too many.

        They are dead, and no look-up can end on the bare directory meanwhile. A container started on one of them loses
        its link and has to be restarted to see the volume again, hence the bound is not lower.
        """
        table = read_mount_table()
        layers = layers_at(table, path)
        if self._mounts_dir and not layers:
            _prepare_directory(path)  # a daemon may have taken it for a pod's end, and it was none
        ours = sum(map(self._owned, layers))
        if ours >= LAYERS_MAX:
            for _ in range(ours - 1):
                mount_api.detach(path)


def prepare_mounts_dir(path: str) -> str:
    """Return the resolved directory that holds every mount point, owned by root. Raises HostFailure."""
    resolved = os.path.realpath(path)
    try:
        if not stat.S_ISDIR(os.lstat(resolved).st_mode):
            raise NotADirectoryError(errnos.ENOTDIR, os.strerror(errnos.ENOTDIR))
        os.chown(resolved, 0, 0)
        # Whoever may remove a mount point takes the mount away from everybody.
        os.chmod(resolved, 0o755)  # noqa: S103 - every container looks its mount up in it
    except OSError as error:
        raise syscalls.failure("prepare", path, error.errno or 0) from error
    return resolved


def _prepare_directory(path: str) -> None:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, _DIRECTORY_MODE)
        if layers_at(read_mount_table(), path):
            return  # an earlier keeper made it; never look at what is mounted there
        if is_marker(path):  # a daemon took the mount away
            os.unlink(path)
            os.mkdir(path, _DIRECTORY_MODE)
        # By descriptor: daemons can change names here, and what a link names is none of ours.
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(directory, 0, 0)
            os.fchmod(directory, _DIRECTORY_MODE)
        finally:
            os.close(directory)
    except OSError as error:
        raise syscalls.failure("prepare", path, error.errno or 0) from error


def _is_anchor(mount: KeeperMount, view: View) -> bool:
    volume = mount.spec.volume
    if view.name == volume and not view.sub_path and not view.read_only:
        return True
    if not view.name.startswith(f"{volume}."):
        raise BadMessage(f'keeper config: view "{view.name}" is no view of volume "{volume}"')
    return False


def _shows(top: Mount | None, anchor: Mount, view: View) -> bool:
    return (
        top is not None
        and (top.major, top.minor) == (anchor.major, anchor.minor)
        and top.is_read_only == (view.read_only or anchor.is_read_only)
    )
