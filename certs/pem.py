"""Certificates and keys as PEM: to text, from text, and to files that are never half-written."""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from certs.authority import Issued
from sidemount.host.regular_file import read_regular
from sidemount.model.errors import HostFailure, InvalidRequest

MAX_FILE_BYTES = 1 << 20
KEY_MODE = 0o600
CERTIFICATE_MODE = 0o644
_CERTIFICATE_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def render_certificate(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def render_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as unencrypted PKCS #8 PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_pem(path: Path) -> bytes:
    """Return a file's bytes. Raises: HostFailure if it cannot be read, InvalidRequest if it is no file or too big."""
    try:
        return read_regular(path, max_bytes=MAX_FILE_BYTES)[1]
    except HostFailure as error:
        raise HostFailure(f"{path} {error.message}", errno=error.errno) from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{path} {error.message}: no certificate or key") from error


def parse_certificates(content: bytes, where: str) -> list[x509.Certificate]:
    """Return every certificate of a PEM text, in order. Raises: InvalidRequest if there is none or one is broken."""
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        hint = "it holds a private key" if b"PRIVATE KEY-----" in content else ""
        raise InvalidRequest(f"{where} holds no certificate in PEM that can be read", hint=hint) from error


def parse_bundle(content: bytes) -> tuple[x509.Certificate, ...]:
    """Return every certificate of a trust bundle that can be read, each once; what cannot be read is passed over.

    An API server reads a caBundle in this way.
    """
    found: dict[x509.Certificate, None] = {}
    for block in _CERTIFICATE_BLOCK.findall(content[:MAX_FILE_BYTES]):
        with contextlib.suppress(ValueError):
            found[x509.load_pem_x509_certificate(block)] = None
    return tuple(found)


def render_bundle(certificates: Iterable[x509.Certificate]) -> bytes:
    """Return certificates as one PEM text."""
    return b"".join(render_certificate(certificate) for certificate in certificates)


def load_issued(certificate_path: Path, key_path: Path) -> Issued:
    """Return the first certificate of one file and the key of another; whether they match is not judged here.

    Raises: HostFailure, InvalidRequest.
    """
    certificate = read_pem(certificate_path)
    return parse_issued(
        certificate, str(certificate_path), lambda: read_pem(key_path), key_where=str(key_path)
    )


def is_pair(certificate: x509.Certificate, key_pem: bytes) -> bool:
    """Tell whether a PEM text is the certificate's private key, of whatever algorithm, unencrypted."""
    try:
        key = load_pem_private_key(key_pem, password=None)
        return key.public_key() == certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def parse_issued(
    certificate_pem: bytes, where: str, key_pem: Callable[[], bytes], *, key_where: str
) -> Issued:
    """Return the first certificate of one PEM text and the key of another; whether they match is not judged here.

    Raises: InvalidRequest naming the place, never the content.
    """
    certificate = parse_certificates(certificate_pem, where)[0]
    try:
        key = load_pem_private_key(key_pem(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not chained: the library's message may quote what it read.
        raise InvalidRequest(
            f"{key_where} holds no unencrypted private key in PEM that can be read"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidRequest(f"{key_where} holds a key that is not elliptic-curve")
    return Issued(certificate, key)


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """Write a file so that a reader sees the old or the new content whole; `mode` holds from the first byte on.

    Raises: HostFailure.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_new(temporary, content, mode)
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise HostFailure(f"{path} cannot be written: {error.strerror}", errno=error.errno or 0) from error


def _write_new(path: Path, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, KEY_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
