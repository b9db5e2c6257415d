"""Images by mmdebstrap and buildah: the base, and what a Containerfile makes of it. No registry and no engine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterFault
from e2e.cluster.machine import snapshotter_for
from e2e.cluster.oci_archive import write_archive

BASE_REFERENCE = "sidemount.test/debian:bookworm"
BOOTSTRAP = (
    "mmdebstrap", "--variant=minbase", "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/info/*", "bookworm",
)  # fmt: skip
_BOOTSTRAP_S, _BUILD_S, _PUSH_S = 1200.0, 1800.0, 300.0
# What makes the package index reachable from this machine: secrets of the Containerfile, which no image holds.
_SECRETS = {"pip": Path("/etc/pip.conf"), "authorities": Path("/etc/ssl/certs/ca-certificates.crt")}


def write_base(archive: Path) -> None:
    """Write a small Debian as an image. Raises ClusterFault."""
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".base-") as scratch:
        layer = Path(scratch) / "base.tar"
        _run([*BOOTSTRAP, str(layer)], "mmdebstrap", _BOOTSTRAP_S)
        write_archive(archive, BASE_REFERENCE, layer.read_bytes(), {"Cmd": ["/bin/sh"]})


@dataclass(frozen=True, slots=True)
class Builder:
    """buildah with a storage of its own: images and layers of the machine's are neither seen nor touched."""

    storage: Path

    def build(
        self,
        containerfile: Path,
        context: Path,
        archive: Path,
        reference: str,
        arguments: Mapping[str, str],
    ) -> None:
        """Build an image and write it as an OCI archive. Raises ClusterFault with what RUN has said."""
        seen = [f"--secret=id={name},src={path}" for name, path in _SECRETS.items() if path.is_file()]
        given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        argv = [
            "bud", "--layers", "--isolation", "chroot", "-f", str(containerfile), "-t", reference, *seen, *given, str(context),
        ]  # fmt: skip
        _run([*self._buildah(), *argv], "buildah", _BUILD_S)
        archive.unlink(missing_ok=True)
        _run(
            [*self._buildah(), "push", "-q", reference, f"oci-archive:{archive}:{reference}"],
            "buildah",
            _PUSH_S,
        )

    def _buildah(self) -> tuple[str, ...]:
        driver = "vfs" if snapshotter_for(self.storage) == "native" else "overlay"
        return (
            "buildah", "--root", str(self.storage / "root"), "--runroot", str(self.storage / "run"), "--storage-driver", driver,
        )  # fmt: skip


def _run(argv: Sequence[str], what: str, timeout_s: float) -> None:
    nice = shutil.which("nice")
    whole = [*([nice, "-n", "10"] if nice else []), *argv]
    # Builders mount: a namespace of their own keeps what they forget from the machine.
    whole = ["unshare", "--mount", "--propagation", "private", *whole]
    try:
        done = subprocess.run(
            whole,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
        )
    except subprocess.TimeoutExpired:
        raise ClusterFault(f"{what} has not ended after {timeout_s:g} s") from None
    if done.returncode:
        log = "\n".join(done.stdout.splitlines()[-20:])
        raise ClusterFault(
            f"{what} failed", hint="are a Debian mirror and a Python index reachable?", log=log
        )
