"""The project's own image, from the Containerfile that users build, for the nodes of a cluster."""

import fcntl
import hashlib
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import debian
from e2e.cluster.buildah import BOOTSTRAP, Builder, write_base
from e2e.cluster.node_images import made_once
from e2e.cluster.places import SOURCE
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster

CONTAINERFILE = SOURCE / "images" / "Containerfile"
REPOSITORY = "ghcr.io/sidemount/sidemount"
_COPIED = ("sidemount", "webhook", "sidecar", "csi", "certs")


def service_reference() -> str:
    """Return the image's name: one image serves as webhook, keeper and daemon."""
    return f"{REPOSITORY}:{_version()}"


def service_archives(build: Path, progress: Progress) -> dict[str, Path]:
    """Return the archives by their references, building what has changed."""
    with _alone(build):
        return _archives(build, progress)


@contextmanager
def _alone(build: Path) -> Iterator[None]:
    """Keep others from building here, and from removing what is older than their sources, at the same time."""
    (build / "images").mkdir(parents=True, exist_ok=True)
    with (build / "images" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _archives(build: Path, progress: Progress) -> dict[str, Path]:
    debian.install_missing(debian.IMAGE_PROGRAMS, progress)
    base = _base(build, progress)
    recipe = [base.name.encode(), CONTAINERFILE.read_bytes(), (SOURCE / "pyproject.toml").read_bytes()]
    storage = build / "storage" / _digest(recipe)

    def make(archive: Path) -> None:
        progress("building the image of the services")
        for old in storage.parent.glob("*"):
            if old != storage:
                shutil.rmtree(old, ignore_errors=True)
        arguments = {"BASE": f"oci-archive:{base}", "VERSION": _version()}
        Builder(storage).build(CONTAINERFILE, SOURCE, archive, service_reference(), arguments)

    content = _digest([*recipe, *_sources()]).encode()
    return {service_reference(): made_once(build, "sidemount", content, make)}


def load_services(cluster: RunningCluster, build: Path, progress: Progress) -> tuple[str, ...]:
    """Give the images to every node of the cluster that runs; return their references."""
    with _alone(build):
        archives = _archives(build, progress)
        for node in cluster.nodes:
            for reference, archive in archives.items() if node.runs() else ():
                node.import_image(archive)
                progress(f"{reference} is on {node.name}")
    return tuple(archives)


def _base(build: Path, progress: Progress) -> Path:
    def make(archive: Path) -> None:
        progress("building the base image: about a minute the first time")
        write_base(archive)

    return made_once(build, "base", "\n".join(BOOTSTRAP).encode(), make)


def _sources() -> Iterable[bytes]:
    for name in _COPIED:
        for path in sorted((SOURCE / name).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(SOURCE)).encode()
                yield path.read_bytes()


def _version() -> str:
    version: str = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"]
    return version


def _digest(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()[:16]
