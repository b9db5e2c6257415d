"""A pod's volumes: set up before its first container, torn down after its last, as a kubelet's plugins do.

Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/emptydir/empty_dir.go
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.podlet import mounts
from e2e.podlet.errors import PodletError
from e2e.podlet.objects import MissingObject, Objects
from e2e.podlet.paths import NodePaths
from e2e.podlet.payload import collect, write_payload
from e2e.podlet.pod import Claim, EmptyDir, HostPath, Pod, Projected, Volume
from e2e.podlet.removal import remove_all
from e2e.podlet.subpath import clean_sub_paths
from sidemount.model.mountinfo import mount_at

_TYPE_CHECKS: dict[str, tuple[str, Callable[[int], bool]]] = {
    "Directory": ("a directory", stat.S_ISDIR),
    "DirectoryOrCreate": ("a directory", stat.S_ISDIR),
    "File": ("a file", stat.S_ISREG),
    "FileOrCreate": ("a file", stat.S_ISREG),
    "Socket": ("a socket file", stat.S_ISSOCK),
    "CharDevice": ("a character device", stat.S_ISCHR),
    "BlockDevice": ("a block device", stat.S_ISBLK),
}


class MountFailed(PodletError):
    """A volume cannot be set up yet: the pod waits, a kubelet would tell FailedMount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """Where a volume lies on the node."""

    path: Path
    read_only: bool


class Volumes:
    """The volumes of one pod."""

    def __init__(self, paths: NodePaths, pod: Pod, objects: Objects) -> None:
        self._paths = paths
        self._pod = pod
        self._objects = objects

    def set_up(self, volume: Volume) -> None:
        """Make a volume ready. Repeatable. Raises MountFailed."""
        try:
            match volume.source:
                case EmptyDir() as source:
                    self._set_up_empty_dir(volume.name, source)
                case HostPath(path=path, type=kind):
                    _check_host_path(Path(path), kind)
                case Claim():
                    _check_host_path(self.located(volume).path, "Directory")
                case Projected() as source:
                    self._set_up_projected(volume.name, source)
        except (OSError, MissingObject) as error:
            raise MountFailed(f'MountVolume.SetUp failed for volume "{volume.name}": {error}') from error

    def located(self, volume: Volume) -> Mounted:
        """Return where the volume lies and whether kubelet mounts it read-only whatever the pod says."""
        match volume.source:
            case EmptyDir():
                return Mounted(path=self._directory("empty-dir", volume.name), read_only=False)
            case HostPath(path=path):
                return Mounted(path=Path(path), read_only=False)
            case Claim(claim=claim, read_only=read_only):
                if claim not in self._objects.claims:
                    raise MountFailed(f'persistentvolumeclaim "{claim}" not found')
                return Mounted(path=self._objects.claims[claim], read_only=read_only)
            case Projected(plugin=plugin):
                return Mounted(path=self._directory(plugin, volume.name), read_only=True)

    def tear_down(self, volume: Volume) -> None:
        """Undo set_up and the subPath binds. Repeatable. Raises OSError while something is in the way."""
        clean_sub_paths(self._paths.pod(self._pod.uid), volume.name)
        match volume.source:
            case EmptyDir():
                self._tear_down_directory(self._directory("empty-dir", volume.name))
            case Projected(plugin=plugin):
                self._tear_down_directory(self._directory(plugin, volume.name))
            case HostPath() | Claim():
                return

    def _directory(self, plugin: str, name: str) -> Path:
        return self._paths.volume(self._pod.uid, plugin, name)

    def _set_up_empty_dir(self, name: str, source: EmptyDir) -> None:
        directory = self._directory("empty-dir", name)
        if directory.exists() and (not source.memory or mounts.is_mount_point(directory)):
            return
        directory.mkdir(parents=True, exist_ok=True)
        if source.memory:
            size = source.size_limit_bytes or self._memory_bound()
            mounts.mount("tmpfs", "tmpfs", directory, *([f"size={size}"] if size else []))
        directory.chmod(0o777)
        _give_to_group(directory, self._pod.fs_group, is_read_only=False)

    def _set_up_projected(self, name: str, source: Projected) -> None:
        directory = self._directory(source.plugin, name)
        files = collect(self._pod, source, self._objects)
        directory.mkdir(parents=True, exist_ok=True)
        if source.plugin != "configmap" and not mounts.is_mount_point(directory):
            mounts.mount("tmpfs", "tmpfs", directory, "size=16m")
        directory.chmod(0o777)
        write_payload(directory, files)
        _give_to_group(directory, self._pod.fs_group, is_read_only=True)

    def _memory_bound(self) -> int | None:
        """Return the sum of the app containers' memory limits if all have one."""
        limits = [container.resources.memory_limit_bytes for container in self._pod.containers]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if len(known) == len(limits) else None

    def _tear_down_directory(self, directory: Path) -> None:
        try:
            directory.stat()
        except FileNotFoundError:
            return
        # Only a tmpfs on top makes kubelet unmount first; anything else it deletes through.
        top = mount_at(mounts.mount_table(), str(directory))
        if top is not None and top.fstype == "tmpfs":
            mounts.unmount(directory)
        remove_all(directory)


def _check_host_path(path: Path, kind: str) -> None:
    if kind == "DirectoryOrCreate" and not path.exists():
        path.mkdir(mode=0o755, parents=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch(mode=0o644)
    if kind in _TYPE_CHECKS:
        name, matches = _TYPE_CHECKS[kind]
        if not path.exists() or not matches(path.stat().st_mode):
            raise MountFailed(f"hostPath type check failed: {path} is not {name}")


def _give_to_group(directory: Path, group: int | None, *, is_read_only: bool) -> None:
    """Apply fsGroup once, when the volume is set up: group and g+rwX, setgid on directories."""
    if group is None:
        return
    for here, directories, files in os.walk(directory):
        for path in (here, *(os.path.join(here, name) for name in (*directories, *files))):
            mode = os.lstat(path).st_mode
            os.lchown(path, -1, group)
            if stat.S_ISLNK(mode):
                continue
            added = 0o440 if is_read_only else 0o660
            if stat.S_ISDIR(mode):
                added |= 0o2110
            os.chmod(path, stat.S_IMODE(mode) | added)
