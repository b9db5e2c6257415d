"""Changes of what the Secret keeps: each made as a whole, from a keyring to the next one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from cryptography import x509

from certs.authority import BACK_DATED, Issued, create_authority, issue_serving
from certs.keyring import MAX_RETIRING, Keyring, Retiring, remember_retired

AUTHORITY_NAME = "sidemount webhook authority"


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take certificates that clients trust, and that we did not know, for authorities that retire."""

    certificates: tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True)
class MakeSuccessor:
    """Make the next authority. It signs nothing yet."""

    why: str


@dataclass(frozen=True, slots=True)
class Promote:
    """Let the next authority sign a new serving certificate. The one before it loses its key, and retires."""

    why: str


@dataclass(frozen=True, slots=True)
class IssueLeaf:
    """Issue a new serving certificate of the same authority."""

    why: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Have these authorities trusted no more."""

    entries: tuple[Retiring, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Tidy:
    """Give what has no date, or one of the future, the date of now, and leave out what cannot be read."""


Change = Adopt | MakeSuccessor | Promote | IssueLeaf | Retire | Tidy


def carry_out(
    change: Change,
    keyring: Keyring,
    *,
    names: Sequence[x509.GeneralName],
    authority_lifetime: timedelta,
    serving_lifetime: timedelta,
    now: datetime,
) -> Keyring:
    """Return the keyring after a change, made of fresh keys where it needs any. `now` is aware, whole seconds count."""
    now = now.replace(microsecond=0)
    match change:
        case Adopt():
            after = _adopted(keyring, change.certificates, now)
        case MakeSuccessor():
            after = _succeeded(keyring, now, authority_lifetime)
        case Promote():
            assert keyring.successor is not None
            after = _promoted(keyring, keyring.successor, now)
            after = _issued(after, keyring.successor, names, now, serving_lifetime)
        case IssueLeaf():
            assert keyring.signer is not None
            after = _issued(keyring, keyring.signer, names, now, serving_lifetime)
        case Retire():
            after = remember_retired(keyring, change.entries, now)
        case Tidy():
            after = _stamped(keyring, now)
        case _:
            assert_never(change)
    return replace(after, generation=keyring.generation + 1, faults=())


def told(change: Change) -> dict[str, str]:
    """Return a change as the fields of a log line."""
    match change:
        case Adopt():
            return {"change": "adopt", "why": f"{len(change.certificates)} unknown certificates are trusted"}
        case Tidy():
            return {
                "change": "tidy",
                "why": "a part cannot be read, or a date is missing or lies in the future",
            }
        case _:
            return {"change": _NAMES[type(change)], "why": change.why}


_NAMES: dict[type[Change], str] = {
    MakeSuccessor: "make_successor",
    Promote: "promote",
    IssueLeaf: "issue_leaf",
    Retire: "retire",
}


def _adopted(keyring: Keyring, certificates: Sequence[x509.Certificate], now: datetime) -> Keyring:
    new = [
        Retiring(certificate=certificate, since=now, until=certificate.not_valid_after_utc)
        for certificate in certificates
    ]
    return replace(keyring, retiring=(*keyring.retiring, *new))


def _succeeded(keyring: Keyring, now: datetime, lifetime: timedelta) -> Keyring:
    failed = keyring.successor
    if failed is not None:  # it signed nothing, but may have been published
        keyring = _adopted(keyring, [failed.certificate], now)
    return replace(keyring, successor=create_authority(AUTHORITY_NAME, now=now, lifetime=lifetime))


def _promoted(keyring: Keyring, successor: Issued, now: datetime) -> Keyring:
    retiring = keyring.retiring
    if keyring.signer is not None:
        certificate = keyring.signer.certificate
        ends = certificate.not_valid_after_utc
        until = min(keyring.issued_until or ends, ends)
        retiring = (*retiring, Retiring(certificate=certificate, since=now, until=until))
    # The newest stay: what is that old has no server any more.
    return replace(
        keyring, signer=successor, successor=None, issued_until=None, retiring=retiring[-MAX_RETIRING:]
    )


def _issued(
    keyring: Keyring, signer: Issued, names: Sequence[x509.GeneralName], now: datetime, lifetime: timedelta
) -> Keyring:
    leaf = issue_serving(signer, names, now=now, lifetime=lifetime)
    ends = leaf.certificate.not_valid_after_utc
    until = max(ends, keyring.issued_until) if keyring.issued_until else ends
    return replace(keyring, leaf=leaf, leaf_since=now, issued_until=until)


def _stamped(keyring: Keyring, now: datetime) -> Keyring:
    def stamp(since: datetime) -> datetime:
        return now if since.year == 1970 or since > now + BACK_DATED else since

    retiring = tuple(replace(entry, since=stamp(entry.since)) for entry in keyring.retiring)
    leaf_since = stamp(keyring.leaf_since) if keyring.leaf is not None else keyring.leaf_since
    return replace(keyring, retiring=retiring, leaf_since=leaf_since)
