"""What the Secret keeps: authorities, the serving certificate, and what is on its way out. To and from the Secret's data.

| key | holds |
|---|---|
| `tls.crt`, `tls.key` | the serving certificate |
| `ca.crt`, `ca.key` | the authority that signed it |
| `next-ca.crt`, `next-ca.key` | the authority that will sign the next one, once clients trust it |
| `old-ca.crt` | authorities that clients still have to trust, without keys |
| `rotation.json` | version, generation, and since when and until when of the others |
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from certs.authority import Issued
from certs.pem import parse_bundle, parse_issued, render_bundle, render_certificate, render_key
from certs.trust import fingerprint
from certs.usability import pair_matches
from sidemount.model.errors import InvalidRequest, Unsupported

VERSION = 1
RECORD = "rotation.json"
OWN_KEYS = frozenset(
    ("tls.crt", "tls.key", "ca.crt", "ca.key", "next-ca.crt", "next-ca.key", "old-ca.crt", RECORD)
)
MAX_RETIRING = 16
_MAX_RETIRED = 64
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retiring:
    """An authority that signs no more. Clients trust it until no server needs it: at the latest `until`."""

    certificate: x509.Certificate
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Retired:
    """What must not be trusted any more, remembered until it has ended by itself."""

    fingerprint: str
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The whole of it. A part that could not be read is missing, and `faults` says why (names of keys, no content)."""

    signer: Issued | None = None
    successor: Issued | None = None
    leaf: Issued | None = None
    leaf_since: datetime = _LONG_AGO
    issued_until: datetime | None = None
    retiring: tuple[Retiring, ...] = ()
    retired: tuple[Retired, ...] = ()
    generation: int = 0
    faults: tuple[str, ...] = field(default=(), compare=False)

    def authorities(self) -> tuple[x509.Certificate, ...]:
        """Return every authority that clients have to trust, the present one first."""
        own = [issued.certificate for issued in (self.signer, self.successor) if issued is not None]
        return tuple(dict.fromkeys([*own, *(entry.certificate for entry in self.retiring)]))

    def has_retired(self, certificate: x509.Certificate) -> bool:
        """Tell whether clients are to stop trusting this one."""
        return fingerprint(certificate) in {entry.fingerprint for entry in self.retired}


def parse_keyring(content: Mapping[str, bytes]) -> Keyring:
    """Return what a Secret's data says. A broken part costs that part only; a broken pair's certificate stays trusted.

    Raises: Unsupported if a later version of ours wrote it.
    """
    faults: list[str] = []
    record = _parse_record(content.get(RECORD), faults)
    signer, signer_trace = _parse_pair(content, "ca.crt", "ca.key", faults)
    successor, successor_trace = _parse_pair(content, "next-ca.crt", "next-ca.key", faults)
    leaf, _ = _parse_pair(content, "tls.crt", "tls.key", faults)
    retired = _parse_retired(record)
    gone = {entry.fingerprint for entry in retired}
    own = {issued.certificate for issued in (signer, successor) if issued is not None}
    old = [*signer_trace, *successor_trace, *parse_bundle(content.get("old-ca.crt", b""))]
    dates = _mapping(record.get("old"))
    retiring = tuple(
        _retiring(certificate, _mapping(dates.get(fingerprint(certificate))))
        for certificate in dict.fromkeys(old)
        if certificate not in own and fingerprint(certificate) not in gone
    )
    generation = record.get("generation")
    return Keyring(
        signer=signer,
        successor=successor,
        leaf=leaf,
        leaf_since=_time(record.get("leafSince")) or _LONG_AGO,
        issued_until=_time(record.get("issuedUntil")),
        retiring=retiring,
        retired=retired,
        generation=generation if isinstance(generation, int) and 0 <= generation < 1 << 53 else 0,
        faults=tuple(faults),
    )


def render_keyring(keyring: Keyring) -> dict[str, bytes]:
    """Return the Secret's data."""
    content: dict[str, bytes] = {
        "tls.crt": b"",
        "tls.key": b"",
    }  # a Secret of type kubernetes.io/tls has to have both
    pairs = (("ca", keyring.signer), ("next-ca", keyring.successor), ("tls", keyring.leaf))
    for name, issued in pairs:
        if issued is not None:
            content[f"{name}.crt"] = render_certificate(issued.certificate)
            content[f"{name}.key"] = render_key(issued.key)
    if keyring.retiring:
        content["old-ca.crt"] = render_bundle(entry.certificate for entry in keyring.retiring)
    record = {
        "version": VERSION,
        "generation": keyring.generation,
        "leafSince": _text(keyring.leaf_since),
        "issuedUntil": _text(keyring.issued_until) if keyring.issued_until else None,
        "old": {
            fingerprint(entry.certificate): {"since": _text(entry.since), "until": _text(entry.until)}
            for entry in keyring.retiring
        },
        "retired": {entry.fingerprint: _text(entry.not_after) for entry in keyring.retired},
    }
    content[RECORD] = json.dumps(record, sort_keys=True, indent=1).encode()
    return content


def remember_retired(keyring: Keyring, gone: tuple[Retiring, ...], now: datetime) -> Keyring:
    """Return the keyring without these authorities, which are remembered as long as anyone could trust them."""
    tombs = {entry.fingerprint: entry for entry in keyring.retired if entry.not_after >= now}
    for entry in gone:
        ends = entry.certificate.not_valid_after_utc
        if ends >= now:
            tombs[fingerprint(entry.certificate)] = Retired(fingerprint(entry.certificate), ends)
    kept = tuple(entry for entry in keyring.retiring if entry not in gone)
    return replace(keyring, retiring=kept, retired=tuple(tombs.values())[-_MAX_RETIRED:])


def _parse_pair(
    content: Mapping[str, bytes], certificate_key: str, key_key: str, faults: list[str]
) -> tuple[Issued | None, tuple[x509.Certificate, ...]]:
    """Return the pair, or else the certificates that were found in its place: somebody may rely on them."""
    certificate, key = content.get(certificate_key, b""), content.get(key_key, b"")
    if not certificate.strip() and not key.strip():
        return None, ()
    traces = parse_bundle(certificate)[:MAX_RETIRING]
    try:
        issued = parse_issued(certificate, certificate_key, lambda: key, key_where=key_key)
    except InvalidRequest as error:
        faults.append(str(error))
        return None, traces
    if not pair_matches(issued):
        faults.append(f"{key_key} is not the key of {certificate_key}")
        return None, traces
    return issued, ()


def _parse_record(content: bytes | None, faults: list[str]) -> Mapping[str, Any]:
    if content is None or not content.strip():
        return {}
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        faults.append(f"{RECORD} is no JSON")
        return {}
    if not isinstance(record, dict):
        faults.append(f"{RECORD} is no JSON object")
        return {}
    version = record.get("version")
    if isinstance(version, int) and version > VERSION:
        raise Unsupported(
            f"{RECORD} is of version {min(version, 1 << 53)}, and this release knows {VERSION}",
            hint="update, or delete the Secret: a new authority is then made without an outage",
        )
    if version != VERSION:
        faults.append(f"{RECORD} says no version")
    return record


def _parse_retired(record: Mapping[str, Any]) -> tuple[Retired, ...]:
    found = []
    for name, ends in _mapping(record.get("retired")).items():
        not_after = _time(ends)
        if not_after is not None:
            found.append(Retired(name, not_after))
    return tuple(found[-_MAX_RETIRED:])


def _retiring(certificate: x509.Certificate, dates: Mapping[str, Any]) -> Retiring:
    # Without dates nothing is known of what it signed: until it has ended itself.
    ends = certificate.not_valid_after_utc
    return Retiring(
        certificate=certificate,
        since=_time(dates.get("since")) or _LONG_AGO,
        until=min(_time(dates.get("until")) or ends, ends),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.strptime(value, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_TIME)
