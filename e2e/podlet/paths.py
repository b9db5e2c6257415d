"""Where things lie on a node, named as on a kubelet's and a containerd's."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The directories of one node, all beneath its root."""

    root: Path

    @property
    def crun(self) -> Path:
        """Return crun's state directory."""
        return self.root / "crun"

    def pod(self, uid: str) -> Path:
        """Return kubelet's directory of a pod."""
        return self.root / "pods" / uid

    def volume(self, uid: str, plugin: str, name: str) -> Path:
        """Return the directory of a volume."""
        return self.pod(uid) / "volumes" / f"kubernetes.io~{plugin}" / name

    def sub_path(self, uid: str, volume: str, container: str, index: int) -> Path:
        """Return where a subPath of a container is bound."""
        return self.pod(uid) / "volume-subpaths" / volume / container / str(index)

    def sandbox(self, uid: str) -> Path:
        """Return the directory of the pod's own /dev/shm and /etc files."""
        return self.root / "sandboxes" / uid

    def bundle(self, container_id: str) -> Path:
        """Return the OCI bundle of a container."""
        return self.root / "bundles" / container_id

    def log(self, uid: str, container: str, attempt: int) -> Path:
        """Return a container's output. It outlives the pod: a test reads it afterwards."""
        return self.root / "logs" / uid / container / f"{attempt}.log"

    def of_pods(self) -> tuple[Path, ...]:
        """Return the directories that must be empty when no pod is left."""
        return tuple(self.root / name for name in ("pods", "sandboxes", "bundles", "crun", "exec"))
