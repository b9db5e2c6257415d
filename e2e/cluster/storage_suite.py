"""Kubernetes' own tests of external storage: the program, and the images that its pods run."""

import shutil
import tempfile
from pathlib import Path

from e2e.cluster.go_tools import STORAGE, go_programs
from e2e.cluster.node_images import BUSYBOX_IMAGE, made_once
from e2e.cluster.oci_archive import layer_of, write_archive
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster
from e2e.images import busybox_image

# What k8s.io/kubernetes/test/utils/image names, of the version that the module has.
_REGISTRY = "registry.k8s.io/e2e-test-images"
_SHELLS = tuple(
    f"{_REGISTRY}/{name}" for name in ("busybox:1.37.0-2", "glibc-dns-testing:2.1.1", "nginx:1.27.0-2")
)
_AGNHOST = f"{_REGISTRY}/agnhost:2.66.1"


def storage_suite(build: Path, progress: Progress) -> Path:
    """Return the program, building it if it is missing. Raises MachineLacks, ClusterFault."""
    return go_programs(build, progress, (STORAGE,))["external-storage"]


def load_storage_images(cluster: RunningCluster, build: Path, progress: Progress) -> None:
    """Give the images to every node of the cluster that runs. Raises MachineLacks, ClusterFault."""
    archive = _agnhost_archive(build, progress)
    for node in cluster.nodes:
        if node.runs():
            node.import_image(archive)
            for name in _SHELLS:
                node.ctr("images", "tag", "--force", BUSYBOX_IMAGE, name)


def _agnhost_archive(build: Path, progress: Progress) -> Path:
    """Return the archive of an image with a shell, and as much of agnhost as the suite uses."""
    program = go_programs(build, progress, (STORAGE,))["agnhost"]
    shell = busybox_image()

    def make(archive: Path) -> None:
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".root-") as scratch:
            root = Path(scratch) / "rootfs"
            shutil.copytree(shell / "rootfs", root, symlinks=True)
            shutil.copy(program, root / "agnhost")
            config = {
                "Entrypoint": ["/agnhost"],
                "Cmd": ["pause"],
                "Env": ["PATH=/bin:/sbin:/usr/bin:/usr/sbin"],
            }
            write_archive(archive, _AGNHOST, layer_of(root), config)

    return made_once(build, "agnhost", f"{STORAGE.digest()} {shell.name}".encode(), make)
