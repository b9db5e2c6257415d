"""The Secret as an object of the cluster: whose it is, what it keeps, and how it is written again."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cryptography import x509

from certs.keyring import OWN_KEYS, RECORD, Keyring, parse_keyring, render_keyring
from certs.pem import MAX_FILE_BYTES, is_pair, parse_bundle
from sidemount.host.cluster import Document
from sidemount.model.errors import VolumeError

MARK = "sidemount.io/certs"
_CERT_MANAGER = ("cert-manager.io/certificate-name", "cert-manager.io/issuer-name")


class Custody(Enum):
    """Whose a Secret is. Only an absent, an empty or our own one is ever written."""

    ABSENT = "absent"
    EMPTY = "empty"
    OURS = "ours"
    CERT_MANAGER = "cert-manager"
    FOREIGN = "bring-your-own"
    NEWER = "newer-release"

    @property
    def is_writable(self) -> bool:
        """Whether we may write it."""
        return self in (Custody.ABSENT, Custody.EMPTY, Custody.OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRead:
    """What a Secret was seen to be. `certificate_pem` and `key_pem` are what a server would serve."""

    custody: Custody
    keyring: Keyring = field(default_factory=Keyring)
    certificate_pem: bytes = b""
    key_pem: bytes = b""
    fault: str = ""

    @property
    def chain(self) -> tuple[x509.Certificate, ...]:
        """The serving certificate and what it is served with; none if none can be read, or if the key is not its key."""
        chain = parse_bundle(self.certificate_pem)
        return chain if chain and is_pair(chain[0], self.key_pem) else ()


def parse_secret(document: Document | None) -> SecretRead:
    """Return what a Secret is and keeps. Never raises: what cannot be read is a fault, told without its content."""
    if document is None:
        return SecretRead(custody=Custody.ABSENT)
    content = _content(document)
    custody = _custody(document, content)
    if custody in (Custody.EMPTY, Custody.OURS):
        try:
            keyring = parse_keyring(content)
        except VolumeError as error:
            return _served(Custody.NEWER, content, fault=str(error))
        return _served(custody, content, keyring, "; ".join(keyring.faults))
    return _served(custody, content)


def render_secret(
    document: Document | None, keyring: Keyring, *, namespace: str, name: str
) -> dict[str, Any]:
    """Return the object to write: the one that was read, with our mark and what is kept now, and nothing else touched."""
    new: dict[str, Any] = dict(document) if document is not None else {"type": "kubernetes.io/tls"}
    metadata: dict[str, Any] = dict(new.get("metadata") or {})
    metadata.update(namespace=namespace, name=name)
    metadata["annotations"] = {**(metadata.get("annotations") or {}), MARK: "rotated"}
    metadata.pop("managedFields", None)
    present = new.get("data")
    others = {
        key: value
        for key, value in (present if isinstance(present, dict) else {}).items()
        if key not in OWN_KEYS
    }
    own = {key: base64.b64encode(value).decode() for key, value in render_keyring(keyring).items()}
    new.update(apiVersion="v1", kind="Secret", metadata=metadata, data={**others, **own})
    return new


def _served(
    custody: Custody, content: Mapping[str, bytes], keyring: Keyring | None = None, fault: str = ""
) -> SecretRead:
    return SecretRead(
        custody=custody,
        keyring=keyring or Keyring(),
        certificate_pem=content.get("tls.crt", b""),
        key_pem=content.get("tls.key", b""),
        fault=fault,
    )


def _content(document: Document) -> dict[str, bytes]:
    found = {}
    data = document.get("data")
    for key, value in (data if isinstance(data, dict) else {}).items():
        if isinstance(value, str) and len(value) <= 2 * MAX_FILE_BYTES:
            try:
                found[str(key)] = base64.b64decode(value)
            except (binascii.Error, ValueError):
                found[str(key)] = b""
    return found


def _custody(document: Document, content: Mapping[str, bytes]) -> Custody:
    metadata = document.get("metadata")
    annotations = (metadata if isinstance(metadata, dict) else {}).get("annotations") or {}
    if any(key in annotations for key in _CERT_MANAGER):
        return Custody.CERT_MANAGER
    if MARK in annotations or RECORD in content:
        return Custody.OURS
    return Custody.FOREIGN if any(value.strip() for value in content.values()) else Custody.EMPTY
