"""Archives of images made without an engine."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from e2e.cluster.oci_archive import layer_of, write_archive


def _made(tmp_path: Path) -> dict[str, bytes]:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True, exist_ok=True)
    (root / "bin" / "sh").write_bytes(b"\x7fELF")
    (root / "bin" / "sh").chmod(0o755)
    if not (root / "bin" / "ls").is_symlink():
        (root / "bin" / "ls").symlink_to("sh")
    archive = tmp_path / "image.tar"
    write_archive(archive, "example.test/a:1", layer_of(root), {"Entrypoint": ["/bin/sh"]})
    with tarfile.open(archive) as tar:
        files = {entry.name: tar.extractfile(entry) for entry in tar}
        return {name: file.read() for name, file in files.items() if file is not None}


def _blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    blob = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert len(blob) == descriptor["size"]
    assert hashlib.sha256(blob).hexdigest() == descriptor["digest"].partition(":")[2]
    return blob


def test_an_archive_leads_from_its_name_to_every_file(tmp_path: Path) -> None:
    files = _made(tmp_path)
    entry = json.loads(files["index.json"])["manifests"][0]
    assert entry["annotations"]["io.containerd.image.name"] == "example.test/a:1"
    manifest = json.loads(_blob(files, entry))
    image = json.loads(_blob(files, manifest["config"]))
    layer = _blob(files, manifest["layers"][0])
    assert image["config"] == {"Entrypoint": ["/bin/sh"]}
    assert image["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert {entry.name: (entry.mode & 0o777, entry.uid) for entry in tar if entry.isreg()} == {
            "bin/sh": (0o755, 0)
        }
        assert tar.getmember("bin/ls").linkname == "sh"


def test_the_same_directory_gives_the_same_image(tmp_path: Path) -> None:
    first = _made(tmp_path)
    (tmp_path / "root" / "bin" / "sh").touch()
    assert _made(tmp_path) == first
