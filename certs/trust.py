"""Whether a client that trusts a bundle accepts a chain for a name: the verdict of an API server, without a connection."""

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.usability import alternative_names

_MAX_CHAIN = 10


class Trust(Enum):
    """A stable code for each way in which a serving certificate is accepted or not.

    Never rename a value: metrics and docs/troubleshooting.md key on it.
    """

    VERIFIED = "Verified"
    NO_BUNDLE = "NoBundle"
    NO_CERTIFICATE = "NoCertificate"
    NOT_YET_VALID = "CertificateNotYetValid"
    EXPIRED = "CertificateExpired"
    WRONG_NAME = "WrongName"
    NOT_FOR_SERVERS = "NotForServers"
    UNKNOWN_AUTHORITY = "UnknownAuthority"
    AUTHORITY_EXPIRED = "AuthorityExpired"
    UNREACHABLE = "Unreachable"
    TIMED_OUT = "HandshakeTimedOut"
    NOT_TLS = "HandshakeFailed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A trust code and, unless it verified, a sentence that says which certificate and why."""

    trust: Trust
    message: str = ""

    @property
    def is_verified(self) -> bool:
        """Whether the client goes on."""
        return self.trust is Trust.VERIFIED


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 fingerprint in hex: the identity of a certificate."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def verify(
    chain: Sequence[x509.Certificate], bundle: Collection[x509.Certificate], name: str, *, now: datetime
) -> Verdict:
    """Return the verdict on a served chain (leaf first) of a client that trusts exactly `bundle`. `now` is aware.

    The rules are those of Go's crypto/x509, which the API server uses: every certificate of a bundle is a root, whether
    it signed itself or not; a leaf that is in the bundle is trusted; a common name counts for nothing.
    """
    if not chain:
        return Verdict(Trust.NO_CERTIFICATE, "no certificate is served")
    leaf = chain[0]
    if not bundle:
        return Verdict(Trust.NO_BUNDLE, "the bundle holds no certificate")
    if fault := _time_fault(leaf, now):
        return fault
    if not _is_for_servers(leaf):
        return Verdict(Trust.NOT_FOR_SERVERS, "its extended key usage does not include server authentication")
    if not is_for_name(leaf, name):
        return Verdict(Trust.WRONG_NAME, _name_message(leaf, name))
    return _chain_verdict(leaf, tuple(chain[1:]), tuple(bundle), now)


def is_for_name(certificate: x509.Certificate, name: str) -> bool:
    """Tell whether a certificate is for a host name or address; `*.` stands for one label."""
    names = alternative_names(certificate)
    try:
        return x509.IPAddress(ipaddress.ip_address(name)) in names
    except ValueError:
        pass
    wanted = name.lower().removesuffix(".")
    any_label = "*." + wanted.partition(".")[2]
    dns = {entry.value.lower() for entry in names if isinstance(entry, x509.DNSName)}
    return wanted in dns or any_label in dns


def _chain_verdict(
    leaf: x509.Certificate,
    between: tuple[x509.Certificate, ...],
    bundle: tuple[x509.Certificate, ...],
    now: datetime,
) -> Verdict:
    ended = False
    frontier = [leaf]
    seen = {leaf}
    for depth in range(_MAX_CHAIN):
        upper: list[x509.Certificate] = []
        for certificate in frontier:
            if certificate in bundle:
                return Verdict(Trust.VERIFIED)
            for issuer in (*bundle, *between):
                if issuer in seen or not _has_issued(issuer, certificate, depth):
                    continue
                if _time_fault(issuer, now):
                    ended = True
                    continue
                seen.add(issuer)
                upper.append(issuer)
        frontier = upper
    if ended:
        return Verdict(
            Trust.AUTHORITY_EXPIRED, f"the authority {_said(leaf.issuer)} does not hold at this time"
        )
    return Verdict(
        Trust.UNKNOWN_AUTHORITY,
        f"it was issued by {_said(leaf.issuer)}, and no certificate of the bundle leads to the one that signed it",
    )


def _has_issued(issuer: x509.Certificate, certificate: x509.Certificate, depth: int) -> bool:
    """Tell whether one signed the other, with `depth` authorities between it and the leaf."""
    try:
        constraints = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        if not constraints.ca or (constraints.path_length is not None and constraints.path_length < depth):
            return False
    except (x509.ExtensionNotFound, ValueError):
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _time_fault(certificate: x509.Certificate, now: datetime) -> Verdict | None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return Verdict(Trust.NOT_YET_VALID, f"it is not valid before {begins:%Y-%m-%dT%H:%M:%SZ}")
    if now > ends:
        return Verdict(Trust.EXPIRED, f"it ended {ends:%Y-%m-%dT%H:%M:%SZ}")
    return None


def _is_for_servers(certificate: x509.Certificate) -> bool:
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return ExtendedKeyUsageOID.SERVER_AUTH in usages or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usages


def _name_message(certificate: x509.Certificate, name: str) -> str:
    names = [str(entry.value) for entry in alternative_names(certificate)]
    if not names:
        return f"it has no subject alternative name, and a common name counts for nothing; {name} is needed"
    told = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return f"it is for {told}, not for {name}"


def _said(name: x509.Name) -> str:
    return name.rfc4514_string()[:200] or "an authority without a name"
