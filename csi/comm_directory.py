"""The way to a mount pod: its volume `comm`, through kubelet's directory of the pod.

The pod may write anything there at any moment, so nothing in it is followed; what leads there is kubelet's alone.
"""

import os
from collections.abc import Mapping
from pathlib import PurePosixPath

from csi.credentials import open_own_directory, write_credentials_at
from csi.mount_pod import COMM_VOLUME
from sidemount.host.mount_table import mount_by_id, mount_id_of, read_mount_table
from sidemount.host.openat2 import open_directory_beneath
from sidemount.model.errors import HostFailure

_MEMORY = "tmpfs"


class CommDirectories:
    """Those of the pods of a node."""

    def __init__(self, kubelet_dir: str) -> None:
        self._kubelet_dir = kubelet_dir

    def path(self, pod_uid: str) -> str | None:
        """Return the directory of a pod, None as long as kubelet has not made it. Raises HostFailure."""
        opened = self._open(pod_uid)
        if opened is None:
            return None
        os.close(opened)
        return f"{os.path.realpath(self._kubelet_dir)}/{_relative(pod_uid)}"

    def lay_out(self, pod_uid: str, secrets: Mapping[str, str], daemon_uid: int) -> bool:
        """Write the credentials; False if there is no directory yet. Raises HostFailure."""
        opened = self._open(pod_uid)
        if opened is None:
            return False
        try:
            directory = open_own_directory(opened, "secrets")
            try:
                write_credentials_at(directory, secrets, daemon_uid)
            finally:
                os.close(directory)
        except OSError as error:
            raise HostFailure(
                f"pod {pod_uid}: what is to hold its credentials: {error.strerror}", errno=error.errno or 0
            ) from error
        finally:
            os.close(opened)
        return True

    def _open(self, pod_uid: str) -> int | None:
        """Return a descriptor of the directory, None unless kubelet has mounted a memory filesystem there."""
        if not pod_uid or PurePosixPath(pod_uid).name != pod_uid:
            return None
        try:
            top = os.open(self._kubelet_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HostFailure(
                f"kubelet's directory {self._kubelet_dir}: {error.strerror}",
                errno=error.errno or 0,
                hint="name it by --kubelet-dir, and mount it into the node service's container",
            ) from error
        try:
            opened = open_directory_beneath(top, _relative(pod_uid), f"pod {pod_uid}", crosses_mounts=True)
        except HostFailure:
            return None
        finally:
            os.close(top)
        mount = mount_by_id(read_mount_table(), mount_id_of(opened))
        # Before that it is a directory on the disk, which the mount would hide.
        if (
            mount is None
            or mount.fstype != _MEMORY
            or not mount.mount_point.endswith(f"/{_relative(pod_uid)}")
        ):
            os.close(opened)
            return None
        return opened


def _relative(pod_uid: str) -> str:
    return f"pods/{pod_uid}/volumes/kubernetes.io~empty-dir/{COMM_VOLUME}"
