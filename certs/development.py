"""A development authority and serving certificate in a directory, made once and reused while they are good."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from certs.authority import Issued, create_authority, issue_serving
from certs.pem import (
    CERTIFICATE_MODE,
    KEY_MODE,
    load_issued,
    render_certificate,
    render_key,
    write_atomically,
)
from certs.usability import authority_fault, serving_fault
from sidemount.model.errors import HostFailure, OperationPending, VolumeError

AUTHORITY_NAME = "sidemount development authority"


@dataclass(frozen=True, slots=True)
class DevelopmentFiles:
    """Where everything is. `bundle` is what clients trust (caBundle)."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate."""
        return self.directory / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """The authority's private key."""
        return self.directory / "ca.key"

    @property
    def bundle(self) -> Path:
        """Every authority that a client has to trust."""
        return self.directory / "ca-bundle.crt"

    @property
    def serving(self) -> Path:
        """The serving certificate."""
        return self.directory / "tls.crt"

    @property
    def serving_key(self) -> Path:
        """The serving certificate's private key."""
        return self.directory / "tls.key"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done to one of the two: made, with the reason, or reused (`made_because` is "")."""

    issued: Issued
    made_because: str


def ensure_development(
    files: DevelopmentFiles, names: Sequence[x509.GeneralName], *, now: datetime, force: bool = False
) -> tuple[Outcome, Outcome]:
    """Return (authority, serving certificate), reused if they are good and made anew if not. Idempotent.

    Raises: HostFailure if the directory cannot be written, OperationPending if another run is at it.
    """
    try:
        files.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise HostFailure(
            f"{files.directory} cannot be made: {error.strerror}", errno=error.errno or 0
        ) from error
    with _locked(files.directory):
        authority = _ensure_authority(files, now, force)
        serving = _ensure_serving(files, authority, names, now, force)
    return authority, serving


def _ensure_authority(files: DevelopmentFiles, now: datetime, force: bool) -> Outcome:
    authority, reason = _load(files.authority, files.authority_key, force)
    if authority is not None and not reason:
        reason = authority_fault(authority, now=now)
    if authority is None or reason:
        authority = create_authority(AUTHORITY_NAME, now=now)
        write_atomically(files.authority_key, render_key(authority.key), KEY_MODE)
        write_atomically(files.authority, render_certificate(authority.certificate), CERTIFICATE_MODE)
    _keep_private(files.authority_key)
    _ensure_bundle(files.bundle, render_certificate(authority.certificate))
    return Outcome(authority, reason)


def _ensure_bundle(path: Path, content: bytes) -> None:
    # Unchanged content is left alone: clients watch this file.
    try:
        if path.read_bytes() == content:
            return
    except OSError:
        pass
    write_atomically(path, content, CERTIFICATE_MODE)


def _ensure_serving(
    files: DevelopmentFiles, authority: Outcome, names: Sequence[x509.GeneralName], now: datetime, force: bool
) -> Outcome:
    serving, reason = _load(files.serving, files.serving_key, force)
    if serving is not None and not reason:
        reason = serving_fault(serving, authority.issued.certificate, names, now=now)
    if serving is None or reason:
        serving = issue_serving(authority.issued, names, now=now)
        write_atomically(files.serving_key, render_key(serving.key), KEY_MODE)
        write_atomically(files.serving, render_certificate(serving.certificate), CERTIFICATE_MODE)
    _keep_private(files.serving_key)
    return Outcome(serving, reason)


def _load(certificate: Path, key: Path, force: bool) -> tuple[Issued | None, str]:
    if force:
        return None, "it was asked for"
    if not os.path.lexists(certificate) and not os.path.lexists(key):
        return None, "there was none"
    try:
        return load_issued(certificate, key), ""
    except VolumeError as error:
        return None, error.message


def _keep_private(key: Path) -> None:
    """Take a key back from group and others, whoever had opened it up."""
    try:
        if key.stat().st_mode & 0o077:
            key.chmod(KEY_MODE)
    except OSError as error:
        raise HostFailure(
            f"{key} cannot be made private: {error.strerror}", errno=error.errno or 0
        ) from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HostFailure(
            f"{directory} cannot be opened: {error.strerror}", errno=error.errno or 0
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OperationPending(
                f"another run is writing {directory}", hint="try again when it is done"
            ) from error
        yield
    finally:
        os.close(descriptor)
