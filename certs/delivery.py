"""The serving certificate in a directory, as a server that reloads its files sees it: always a whole pair."""

import os
import secrets
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from cryptography import x509

from certs.live import LiveConfiguration
from certs.pem import CERTIFICATE_MODE, KEY_MODE, is_pair, parse_bundle, read_pem, write_atomically
from certs.trust import verify
from sidemount.model.errors import HostFailure, VolumeError

CERTIFICATE, KEY = "tls.crt", "tls.key"
_CURRENT = "..current"
_VERSION = "..version-"


def is_better(
    offered: Sequence[x509.Certificate],
    present: Sequence[x509.Certificate],
    live: Collection[LiveConfiguration],
    host: str,
    *,
    now: datetime,
) -> bool:
    """Tell whether to serve another chain (leaf first; empty: none): if every live entry that accepts the present one accepts it, too.

    So a server never leaves what works for what does not, whatever the Secret says.
    """
    return all(
        verify(offered, entry.bundle, host, now=now).is_verified
        for configuration in live
        for entry in configuration.entries
        if verify(present, entry.bundle, host, now=now).is_verified
    )


class Delivery:
    """A directory with `tls.crt` and `tls.key`, which change together: both lead through one symlink.

    A server that starts or reloads at any moment, even after a crash of ours in the middle, finds the old or the new pair.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def present(self) -> bytes:
        """Return the certificate and its chain in PEM as they are there, b"" if there is no pair that can be served."""
        try:
            content = read_pem(self._directory / CERTIFICATE)
            chain = parse_bundle(content)
            key = read_pem(self._directory / KEY)
        except VolumeError:
            return b""
        return content if chain and is_pair(chain[0], key) else b""

    def write(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Put another pair in place. Idempotent. Raises: HostFailure naming the file."""
        version = self._directory / f"{_VERSION}{secrets.token_hex(8)}"
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            version.mkdir(mode=0o755)
            write_atomically(version / KEY, key_pem, KEY_MODE)
            write_atomically(version / CERTIFICATE, certificate_pem, CERTIFICATE_MODE)
            self._point(_CURRENT, version.name)
            for name in (KEY, CERTIFICATE):
                self._point(name, f"{_CURRENT}/{name}")
        except OSError as error:
            raise HostFailure(
                f"{self._directory} cannot be written: {error.strerror}",
                errno=error.errno or 0,
                hint="give a directory that this process may write",
            ) from error
        self._tidy(version.name)

    def _point(self, name: str, target: str) -> None:
        path = self._directory / name
        with suppress(OSError):
            if path.readlink() == Path(target):
                return
        temporary = self._directory / f".{name}.{secrets.token_hex(8)}"
        temporary.symlink_to(target)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink()
            raise

    def _tidy(self, kept: str) -> None:
        """Remove the versions before, and what a crash left: the keys in them are of no use to anyone."""
        with suppress(OSError):
            for name in os.listdir(self._directory):
                path = self._directory / name
                if name.startswith(_VERSION) and name != kept:
                    shutil.rmtree(path, ignore_errors=True)
                elif name.startswith((f".{CERTIFICATE}.", f".{KEY}.", f".{_CURRENT}.")):
                    path.unlink(missing_ok=True)
