"""Whether a certificate can still be used, and if not, why. Time comes in as an argument."""

from collections.abc import Collection
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from certs.authority import Issued

RENEW_BEFORE = timedelta(days=30)
"""A certificate that ends sooner than this is replaced, not reused."""


def authority_fault(authority: Issued, *, now: datetime) -> str:
    """Return why this authority cannot sign any more or should be replaced, "" if it is good."""
    return _pair_fault(authority, now) or _constraints_fault(authority.certificate)


def issuing_fault(authority: Issued, *, now: datetime) -> str:
    """Return why this authority cannot sign at all, "" if it can, however near its end is."""
    return _pair_fault(authority, now, renew_before=timedelta(0)) or _constraints_fault(authority.certificate)


def _constraints_fault(certificate: x509.Certificate) -> str:
    try:
        extensions = certificate.extensions
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except (x509.ExtensionNotFound, ValueError) as error:
        return f"it is no authority: {error}"
    return "" if constraints.ca and usage.key_cert_sign else "it is no authority"


def serving_fault(
    serving: Issued, authority: x509.Certificate, names: Collection[x509.GeneralName], *, now: datetime
) -> str:
    """Return why this serving certificate cannot be used for these names under this authority, "" if it can."""
    if fault := _pair_fault(serving, now):
        return fault
    try:
        serving.certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return "it was not issued by this authority"
    missing = [str(name.value) for name in names if name not in alternative_names(serving.certificate)]
    return f"it is not for {', '.join(missing)}" if missing else ""


def alternative_names(certificate: x509.Certificate) -> tuple[x509.GeneralName, ...]:
    """Return the subject alternative names; none if there is no such extension."""
    try:
        return tuple(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return ()


def pair_matches(issued: Issued) -> bool:
    """Tell whether a key is the certificate's."""
    try:
        return issued.certificate.public_key() == issued.key.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False


def _pair_fault(issued: Issued, now: datetime, *, renew_before: timedelta = RENEW_BEFORE) -> str:
    if not pair_matches(issued):
        return "certificate and key do not belong together"
    if now < issued.certificate.not_valid_before_utc:
        return f"it is not valid before {issued.certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}"
    if now + renew_before >= issued.certificate.not_valid_after_utc:
        return f"it ends {issued.certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    return ""
