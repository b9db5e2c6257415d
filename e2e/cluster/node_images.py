"""The images that every node has from its start, made without an engine: the pods' first process and a busybox."""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.errors import ClusterFault
from e2e.cluster.oci_archive import FORMAT, layer_of, write_archive
from e2e.cluster.topology import PAUSE_IMAGE
from e2e.images import busybox_image

BUSYBOX_IMAGE = "sidemount.test/busybox:1"
_PAUSE_SOURCE = Path(__file__).with_name("pause.c")
_COMPILE_S = 60.0


def pause_archive(build: Path) -> Path:
    """Return the archive of the image whose process holds a pod's namespaces."""
    return made_once(build, "pause", _PAUSE_SOURCE.read_bytes(), _make_pause)


def busybox_archive(build: Path) -> Path:
    """Return the archive of an image with a shell and the usual programs."""
    image = busybox_image()

    def make(archive: Path) -> None:
        config = json.loads((image / "config.json").read_text())
        write_archive(archive, BUSYBOX_IMAGE, layer_of(image / "rootfs"), config)

    return made_once(build, "busybox", image.name.encode(), make)


def _make_pause(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        root = Path(scratch)
        argv = ["gcc", "-static", "-Os", "-s", "-Wall", "-o", str(root / "pause"), str(_PAUSE_SOURCE)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMPILE_S)
        if done.returncode:
            raise ClusterFault("pause.c does not compile", hint="is libc6-dev installed?", log=done.stderr)
        write_archive(archive, PAUSE_IMAGE, layer_of(root), {"Entrypoint": ["/pause"], "User": "65535:65535"})


def made_once(build: Path, name: str, content: bytes, make: Callable[[Path], None]) -> Path:
    """Return build/images/<name>-<digest>.tar."""
    digest = hashlib.sha256(b"%d\n" % FORMAT + content).hexdigest()[:16]
    archive = build / "images" / f"{name}-{digest}.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f".{name}-") as scratch:
        made = Path(scratch) / "image.tar"
        make(made)
        made.rename(archive)
    for old in archive.parent.glob(f"{name}-*.tar"):
        if old != archive:
            old.unlink()
    return archive
