"""Kubernetes' own CSI companions as images, under the names that manifests use: each holds the one program, built from its module."""

import tempfile
from pathlib import Path

from e2e.cluster.go_tools import COMPANIONS, go_programs, module_files
from e2e.cluster.node_images import made_once
from e2e.cluster.oci_archive import layer_of, write_archive
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster

REFERENCES = {
    "csi-provisioner": "registry.k8s.io/sig-storage/csi-provisioner:v6.4.0",
    "csi-resizer": "registry.k8s.io/sig-storage/csi-resizer:v2.3.0",
    "csi-snapshotter": "registry.k8s.io/sig-storage/csi-snapshotter:v8.7.0",
    "snapshot-controller": "registry.k8s.io/sig-storage/snapshot-controller:v8.7.0",
}
_SNAPSHOT_TYPES = "snapshot-types"
_USER = "65532:65532"  # that of the published images


def companion_archives(build: Path, progress: Progress) -> dict[str, Path]:
    """Return the archives by their references, building what is missing. Raises MachineLacks, ClusterFault."""
    programs = go_programs(build, progress, (COMPANIONS,))

    def archive_of(name: str) -> Path:
        def make(archive: Path) -> None:
            progress(f"making the image of {name}")
            with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".root-") as root:
                (Path(root) / name).hardlink_to(programs[name])
                config = {"Entrypoint": [f"/{name}"], "User": _USER}
                write_archive(archive, REFERENCES[name], layer_of(Path(root)), config)

        content = f"{COMPANIONS.digest()} {REFERENCES[name]}".encode()
        return made_once(build, name, content, make)

    return {reference: archive_of(name) for name, reference in REFERENCES.items()}


def load_companions(cluster: RunningCluster, build: Path, progress: Progress) -> tuple[str, ...]:
    """Give the images to every node of the cluster that runs; return their references."""
    archives = companion_archives(build, progress)
    for node in cluster.nodes:
        for reference, archive in archives.items() if node.runs() else ():
            node.import_image(archive)
            progress(f"{reference} is on {node.name}")
    return tuple(archives)


def snapshot_types(build: Path, progress: Progress) -> Path:
    """Return the directory with the types of snapshots, for `kubectl apply -k`: those that the programs were made for."""
    return module_files(build, progress, COMPANIONS, _SNAPSHOT_TYPES)
