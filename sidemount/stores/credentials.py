"""Credentials from files of a directory, read again when they change: a rotated Secret needs no remount.

Files, each with one value: `access_key_id`, `secret_access_key`, `session_token`, or the names that AWS gives its variables; or an AWS
credentials file `credentials`, of which the profile `default` counts. None of them: the store is asked anonymously.
"""

import configparser
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sidemount.stores.faults import fault
from sidemount.stores.signing import Credentials
from sidemount.stores.store import FaultKind, StoreFault

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_CHECK_S = 1.0
_LOOKS = 5
_MOST_BYTES = 64 << 10

_NAMES: Mapping[str, tuple[str, ...]] = {
    "access_key_id": ("access_key_id", "AWS_ACCESS_KEY_ID", "aws_access_key_id"),
    "secret_access_key": ("secret_access_key", "AWS_SECRET_ACCESS_KEY", "aws_secret_access_key"),
    "session_token": ("session_token", "AWS_SESSION_TOKEN", "aws_session_token"),
}
_PROFILES = "credentials"


class Damaged(ValueError):
    """Files that are no credentials: half of them, empty, or not text. The text names files, never what is in them."""


class SecretFiles:
    """Files of a directory that may be replaced at any time, as a whole: kubelet exchanges a symbolic link."""

    def __init__(self, directory: str, names: tuple[str, ...]) -> None:
        self.directory = directory
        self._names = names

    def state(self) -> tuple[object, ...]:
        """Return what changes whenever a file does."""
        return tuple(self._stat(name) for name in self._names)

    def read(self) -> dict[str, str]:
        """Return the files that are there by name. Damaged if one is no text."""
        found: dict[str, str] = {}
        for name in self._names:
            try:
                with open(os.path.join(self.directory, name), "rb") as file:
                    content = file.read(_MOST_BYTES + 1)
                if len(content) > _MOST_BYTES:
                    raise Damaged(f"{name} is too long")
                found[name] = content.decode("utf-8").strip()
            except FileNotFoundError:
                continue
            except UnicodeDecodeError:
                raise Damaged(f"{name} is no text") from None
            except OSError as error:
                raise Damaged(f"{name} cannot be read: {error.strerror}") from None
        return found

    def _stat(self, name: str) -> tuple[int, int, int] | int:
        try:
            found = os.stat(os.path.join(self.directory, name))
        except OSError as error:
            return error.errno or 0
        return found.st_ino, found.st_mtime_ns, found.st_size


class Watched(Generic[T]):
    """What the files of a directory say at the moment: read again when they change. `directory` "": nothing.

    Where they say nothing whole, the last that was whole is in use, and the log tells what is wrong.
    """

    def __init__(
        self,
        directory: str,
        names: tuple[str, ...],
        parse: Callable[[Mapping[str, str]], T | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = SecretFiles(directory, names)
        self._parse = parse
        self._clock = clock
        self._lock = threading.Lock()
        self._is_none = not directory
        self._checked_s = -_CHECK_S
        self._state: tuple[object, ...] | None = None
        self._found: T | None = None
        self._damage = ""
        self._has_found = False

    def current(self) -> T | None:
        """Return what they say, None if there are none. Looks at the files once a second. Raises StoreFault (CREDENTIALS)."""
        if self._is_none:
            return None
        if self._is_old():
            with self._lock:  # the first calls wait for the first look: to ask without is to be refused
                if self._is_old():
                    self._look()
        if self._damage and not self._has_found:
            raise damaged(self._damage)
        return self._found

    def renew(self) -> bool:
        """Look at the files now: the store has refused what they held. True if they hold something else by now."""
        if self._is_none:
            return False
        with self._lock:
            before = self._found
            self._look()
            return self._found != before

    def _is_old(self) -> bool:
        return self._clock() - self._checked_s >= _CHECK_S

    def _look(self) -> None:
        before = self._damage
        for _ in range(_LOOKS):
            state = self._files.state()
            if state == self._state:
                self._damage = ""
                break
            try:
                found = self._parse(self._files.read())
            except Damaged as error:
                self._damage = str(error)
                break  # the state stays unknown: they are read again next time
            if found is None and self._found is not None:
                self._damage = "the files are gone"
                break
            if self._files.state() == state:
                self._state, self._found, self._damage, self._has_found = state, found, "", True
                break
            self._damage = "the files are being exchanged"  # perhaps half of each
        if self._damage not in ("", before):
            _LOG.warning("credentials_not_usable", extra={"reason": self._damage})
        self._checked_s = self._clock()


class KeyFiles(Watched[Credentials]):
    """The access key that a directory holds at the moment; None to ask anonymously."""

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            directory, (*(name for names in _NAMES.values() for name in names), _PROFILES), parse, clock
        )


def damaged(text: str) -> StoreFault:
    """Return the fault of a call that has no credentials it could use."""
    return fault(FaultKind.CREDENTIALS, f"credentials: {text}")


def parse(files: Mapping[str, str]) -> Credentials | None:
    """Return the access key in files, None if there are no such files. Damaged if they hold no whole one."""
    values: dict[str, str] = {}
    for field, names in _NAMES.items():
        present = [files[name] for name in names if name in files]
        if present:
            values[field] = present[0].strip()
    if not values and _PROFILES in files:
        values = _profile(files[_PROFILES])
    if not values:
        return None
    for field in ("access_key_id", "secret_access_key"):
        if not values.get(field):
            raise Damaged(f"{field} is missing or empty")
    for field, value in values.items():
        if not value.isprintable() or not value.isascii() or " " in value:
            raise Damaged(f"{field} holds characters that no key has")
    return Credentials(values["access_key_id"], values["secret_access_key"], values.get("session_token", ""))


def _profile(text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        raise Damaged(f"{_PROFILES} is no AWS credentials file") from None
    if not parser.has_section("default"):
        raise Damaged(f"{_PROFILES} has no profile [default]")
    found = {field: parser.get("default", f"aws_{field}", fallback="") for field in _NAMES}
    return {field: value for field, value in found.items() if value or field != "session_token"}
