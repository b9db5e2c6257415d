"""The certificate authority and what it issues: EC P-256, back-dated. Time comes in as an argument."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACK_DATED = timedelta(hours=2)
"""How far before now a certificate begins: clocks of nodes differ (istio#32176)."""
AUTHORITY_LIFETIME = timedelta(days=3650)
SERVING_LIFETIME = timedelta(days=365)

_MAX_COMMON_NAME = 64


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def create_authority(name: str, *, now: datetime, lifetime: timedelta = AUTHORITY_LIFETIME) -> Issued:
    """Return a new self-signed authority that may sign end-entity certificates only.

    `now` is aware. Source: RFC 5280 §4.2.1.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _common_name(name)
    certificate = (
        _builder(subject, subject, key.public_key(), now - BACK_DATED, now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(key_cert_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Issued(certificate, key)


def issue_serving(
    authority: Issued,
    names: Sequence[x509.GeneralName],
    *,
    now: datetime,
    lifetime: timedelta = SERVING_LIFETIME,
) -> Issued:
    """Return a new serving certificate of the authority for these names.

    It never outlives its authority nor begins before it. `now` is aware; `names` is not empty.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authority.certificate
    common_name = str(names[0].value)
    certificate = (
        _builder(
            _common_name(common_name if len(common_name) <= _MAX_COMMON_NAME else "sidemount webhook"),
            signer.subject,
            key.public_key(),
            max(now - BACK_DATED, signer.not_valid_before_utc),
            min(now + lifetime, signer.not_valid_after_utc),
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_authority_key_identifier(signer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Issued(certificate, key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key_identifier(signer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
