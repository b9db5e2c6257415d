"""An image of one layer as an OCI archive, which container runtimes import. No engine is needed to make one.

Source: https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 2
"""Raised when the same inputs give another archive."""
_ROOT_OWNER = 0


def write_archive(archive: Path, reference: str, layer: bytes, config: Mapping[str, Any]) -> None:
    """Write the image of one layer, a tar. `config` has the keys of an OCI image's own, such as Entrypoint."""
    image = _json(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            # Builders count these against the layers.
            "history": [{"created_by": "e2e.cluster.oci_archive"}],
        }
    )
    prefix = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{prefix}.manifest.v1+json",
            "config": _descriptor(f"{prefix}.config.v1+json", image),
            "layers": [_descriptor(f"{prefix}.layer.v1.tar", layer)],
        }
    )
    entry = _descriptor(f"{prefix}.manifest.v1+json", manifest)
    entry["annotations"] = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference,
    }
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        for blob in (layer, image, manifest):
            _add(tar, f"blobs/{_digest(blob).replace(':', '/')}", blob)


def layer_of(rootfs: Path) -> bytes:
    """Return a directory as a layer. Times and owners are left out: the same directory gives the same layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(rootfs.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(rootfs)))
            entry.uid = entry.gid = _ROOT_OWNER
            entry.uname = entry.gname = ""
            entry.mtime = 0
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _architecture() -> str:
    """Return this machine's in Go's words: an image for another would not be imported."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
