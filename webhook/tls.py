"""The serving certificate: from files, and anew from them whenever they change, without dropping a connection."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from sidemount.host.regular_file import Signature, look_at, read_regular
from sidemount.model.errors import HostFailure, InvalidRequest, VolumeError

_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """One certificate in use. New handshakes take `context`; old connections keep theirs."""

    context: ssl.SSLContext
    serial: str
    not_before: datetime
    not_after: datetime


class ServingCertificate:
    """Follows a certificate and a key file. A broken or half-replaced pair never takes the good one's place."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._loaded: Loaded | None = None
        self._seen: tuple[Signature | None, Signature | None] | None = None
        self._fault = ""

    @property
    def loaded(self) -> Loaded | None:
        """The certificate that new handshakes get, None before the first good one."""
        return self._loaded

    @property
    def fault(self) -> str:
        """What is wrong with the files now, "" if nothing is."""
        return self._fault

    def load(self) -> Loaded:
        """Read the pair for the first time. Raises: HostFailure or InvalidRequest naming the file."""
        self._seen = self._look()
        self._loaded = load_pair(self._certificate, self._key)
        return self._loaded

    def refresh(self, now: datetime) -> bool:
        """Take a changed pair over; return whether a new one is in use.

        An expired one does not replace one that still holds. `now` is aware.
        Raises: as `load`, once for each different fault; while it stays the same it is only in `fault`.
        """
        # Looked at before it is read: what is swapped in between looks changed the next time.
        seen = self._look()
        if seen == self._seen:
            self._fault = ""
            return False
        present = self._loaded
        try:
            loaded = load_pair(self._certificate, self._key)
            if present is not None and loaded.not_after < now <= present.not_after:
                ended = f"{loaded.not_after:%Y-%m-%dT%H:%M:%SZ}"
                raise InvalidRequest(f"{self._certificate} ended {ended}; the one before it is kept")
        except VolumeError as error:
            is_known = str(error) == self._fault
            self._fault = str(error)
            if is_known:
                return False
            raise
        self._loaded, self._seen, self._fault = loaded, seen, ""
        return present is None or loaded.serial != present.serial

    def _look(self) -> tuple[Signature | None, Signature | None]:
        return look_at(self._certificate), look_at(self._key)


def load_pair(certificate: Path, key: Path) -> Loaded:
    """Return a serving context made of a certificate (with its chain) and its key.

    Raises: HostFailure if a file cannot be read, InvalidRequest if the pair cannot serve.
    """
    certificate_pem, key_pem = _read(certificate), _read(key)
    try:
        leaf = x509.load_pem_x509_certificates(certificate_pem)[0]
    except ValueError as error:
        raise InvalidRequest(f"{certificate} holds no certificate in PEM that can be read") from error
    context = _context()
    try:
        with _in_memory(certificate_pem) as certificate_path, _in_memory(key_pem) as key_path:
            context.load_cert_chain(certificate_path, key_path, password=_no_password)
    except _Encrypted as error:
        raise InvalidRequest(
            f"{key} is encrypted", hint="give an unencrypted key, readable by us alone"
        ) from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidRequest(
                f"the key in {key} is not the one of the certificate in {certificate}"
            ) from error
        raise InvalidRequest(
            f"{key} with {certificate} cannot serve TLS: {error.reason or 'no key in PEM'}"
        ) from error
    return Loaded(context, f"{leaf.serial_number:x}", leaf.not_valid_before_utc, leaf.not_valid_after_utc)


class _Encrypted(Exception):
    """The key asks for a password."""


def _no_password() -> str:
    # Without a callback OpenSSL would ask the terminal.
    raise _Encrypted


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # No resumption: every handshake shows the certificate of now, and the API server's client resumes none anyway.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give bytes a path: OpenSSL loads keys from files only, and a key has no business on another disk."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, max_bytes=_MAX_FILE_BYTES)[1]
    except HostFailure as error:
        raise HostFailure(f"{path} {error.message}", errno=error.errno) from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{path} {error.message}: no certificate or key") from error
