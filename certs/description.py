"""What a certificate says, for a person and for a machine."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.hosts import render_host
from certs.usability import alternative_names

_USAGES = ("digital_signature", "key_encipherment", "key_agreement", "key_cert_sign", "crl_sign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One certificate. Times are UTC in RFC 3339; `days_left` is negative once it has ended."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: str
    not_after: str
    days_left: int
    state: str
    key: str
    is_authority: bool
    usages: tuple[str, ...]
    serial: str
    fingerprint_sha256: str

    def as_json(self) -> dict[str, Any]:
        """Return the same, ready for JSON."""
        return asdict(self)


def describe(certificate: x509.Certificate, *, now: datetime) -> Description:
    """Return what a certificate says, and whether it holds `now`."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Description(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=tuple(render_host(name) for name in alternative_names(certificate)),
        not_before=f"{begins:%Y-%m-%dT%H:%M:%SZ}",
        not_after=f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        days_left=(ends - now).days,
        state="not yet valid" if now < begins else "expired" if now > ends else "valid",
        key=_key(certificate),
        is_authority=_is_authority(certificate),
        usages=_usages(certificate),
        serial=f"{certificate.serial_number:x}",
        fingerprint_sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def render_description(description: Description) -> str:
    """Return a description as lines for a person."""
    rows = [
        ("subject", description.subject or "(none)"),
        ("issuer", description.issuer or "(none)"),
        ("names", ", ".join(description.names) or "(none)"),
        ("valid", f"{description.not_before} to {description.not_after}"),
        ("state", f"{description.state}, {description.days_left} days left"),
        ("key", description.key),
        ("authority", "yes" if description.is_authority else "no"),
        ("usages", ", ".join(description.usages) or "(any)"),
        ("serial", description.serial),
        ("sha-256", description.fingerprint_sha256),
    ]
    return "\n".join(f"{label:<10} {value}" for label, value in rows)


def _key(certificate: x509.Certificate) -> str:
    match certificate.public_key():
        case ec.EllipticCurvePublicKey() as key:
            return f"EC {key.curve.name}"
        case rsa.RSAPublicKey() as key:
            return f"RSA {key.key_size}"
        case other:
            return type(other).__name__.strip("_").removesuffix("PublicKey")


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _usages(certificate: x509.Certificate) -> tuple[str, ...]:
    found: list[str] = []
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        found += [name.replace("_", " ") for name in _USAGES if getattr(usage, name)]
    except x509.ExtensionNotFound:
        pass
    try:
        extended = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        found += [_extended_name(identifier) for identifier in extended]
    except x509.ExtensionNotFound:
        pass
    return tuple(found)


def _extended_name(identifier: x509.ObjectIdentifier) -> str:
    names = {
        ExtendedKeyUsageOID.SERVER_AUTH: "server authentication",
        ExtendedKeyUsageOID.CLIENT_AUTH: "client authentication",
    }
    return names.get(identifier, identifier.dotted_string)
