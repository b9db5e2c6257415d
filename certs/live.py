"""What a webhook configuration in the cluster makes API servers trust, and the patch that makes it trust what it should."""

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from certs.pem import MAX_FILE_BYTES, parse_bundle, render_bundle

INJECTORS = (
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "cert-manager.io/inject-apiserver-ca",
    "service.beta.openshift.io/inject-cabundle",
)
"""Annotations by which somebody else fills in caBundle."""


@dataclass(frozen=True, slots=True)
class ServiceName:
    """The Service through which API servers call us."""

    namespace: str
    name: str

    @property
    def host(self) -> str:
        """The name that an API server verifies."""
        return f"{self.name}.{self.namespace}.svc"


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """One entry of ours. `has_bundle` tells whether the field is there at all."""

    index: int
    name: str
    bundle: tuple[x509.Certificate, ...]
    has_bundle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfiguration:
    """One configuration as it was read, with those of its entries that call our Service."""

    kind: str
    name: str
    resource_version: str
    entries: tuple[LiveEntry, ...]
    injector: str = ""

    @property
    def told(self) -> str:
        """Kind and name for a message."""
        return f"{self.kind} {self.name}"

    def trusts(self, certificate: x509.Certificate) -> bool:
        """Tell whether every entry of ours trusts this certificate."""
        return all(certificate in entry.bundle for entry in self.entries)


def parse_configuration(document: Mapping[str, Any], kind: str, service: ServiceName) -> LiveConfiguration:
    """Return what counts of a webhook configuration as the API server gave it. Entries of others are passed over."""
    metadata = _mapping(document.get("metadata"))
    hooks = document.get("webhooks")
    entries = [
        _entry(index, hook)
        for index, hook in enumerate(hooks if isinstance(hooks, list) else [])
        if _calls(_mapping(hook), service)
    ]
    annotations = _mapping(metadata.get("annotations"))
    return LiveConfiguration(
        kind=kind,
        name=str(metadata.get("name", "")),
        resource_version=str(metadata.get("resourceVersion", "")),
        entries=tuple(entries),
        injector=next((key for key in INJECTORS if key in annotations), ""),
    )


def bundle_patch(
    live: LiveConfiguration, wanted: Mapping[int, Collection[x509.Certificate]]
) -> list[dict[str, Any]]:
    """Return the JSON Patch that gives entries (by index) their bundles, if the object is still as it was read.

    The `test` operations make it fail as a whole where anybody changed the object meanwhile: nothing of theirs is lost.
    """
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": live.resource_version}
    ]
    for entry in live.entries:
        if entry.index not in wanted:
            continue
        where = f"/webhooks/{entry.index}"
        patch.append({"op": "test", "path": f"{where}/name", "value": entry.name})
        # `add` replaces what is there, and works where nothing is.
        value = base64.b64encode(render_bundle(wanted[entry.index])).decode()
        patch.append({"op": "add", "path": f"{where}/clientConfig/caBundle", "value": value})
    return patch


def _entry(index: int, hook: Mapping[str, Any]) -> LiveEntry:
    encoded = _mapping(hook.get("clientConfig")).get("caBundle")
    content = b""
    if isinstance(encoded, str) and len(encoded) <= 2 * MAX_FILE_BYTES:
        try:
            content = base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            content = b""
    return LiveEntry(index, str(hook.get("name", "")), parse_bundle(content), bool(encoded))


def _calls(hook: Mapping[str, Any], service: ServiceName) -> bool:
    named = _mapping(_mapping(hook.get("clientConfig")).get("service"))
    return (named.get("namespace"), named.get("name")) == (service.namespace, service.name)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
