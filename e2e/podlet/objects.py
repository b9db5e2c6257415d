"""Secrets, ConfigMaps and claims: what a kubelet would get from the API server, given to podlet as files."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.podlet.errors import PodletError, PodRefused
from e2e.podlet.fields import Fields

_KINDS = ("Secret", "ConfigMap")


class MissingObject(PodletError):
    """An object or a key that the pod needs is not there: kubelet waits for it."""


@dataclass(frozen=True, slots=True)
class Objects:
    """(kind, name) → content, for the pod's namespace whatever it is; claims by name → directory.

    A given directory is read anew at each use, so that a secret can appear while the pod waits for it.
    """

    directories: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    manifests: Mapping[tuple[str, str, str], Mapping[str, bytes]] = field(default_factory=dict)
    claims: Mapping[str, Path] = field(default_factory=dict)

    def find(self, kind: str, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Return the content of an object, or None."""
        directory = self.directories.get((kind, name))
        if directory is not None and directory.is_dir():
            return {p.name: p.read_bytes() for p in sorted(directory.iterdir()) if p.is_file()}
        return self.manifests.get((kind, namespace, name))


def parse_objects(manifests: Iterable[object]) -> dict[tuple[str, str, str], Mapping[str, bytes]]:
    """Read Secret and ConfigMap manifests. Raises PodRefused."""
    found: dict[tuple[str, str, str], Mapping[str, bytes]] = {}
    for manifest in manifests:
        fields = Fields(manifest, "object")
        kind = fields.choice("kind", _KINDS)
        meta = fields.part("metadata")
        content = {key: value.encode() for key, value in fields.pairs("stringData").items()}
        for key in ("data", "binaryData"):
            is_encoded = kind == "Secret" or key == "binaryData"
            for name, value in fields.pairs(key).items():
                content.setdefault(name, _decoded(name, value) if is_encoded else value.encode())
        found[kind, meta.text("namespace", "default"), meta.text("name")] = content
    return found


def _decoded(name: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise PodRefused(f"object.data.{name}: is not base64") from error
