"""The rotation machine: from what is in the Secret and in the live configurations to what has to be done next. Pure.

A new authority is first published, then seen in every live configuration, then it signs; the one before it is trusted
until no server can need it. Each step is one write that is conditional on what was read, so that whoever makes it may die
at any point, and several may be at it at once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509

from certs.authority import AUTHORITY_LIFETIME, BACK_DATED, Issued
from certs.change import Adopt, Change, IssueLeaf, MakeSuccessor, Promote, Retire, Tidy
from certs.hosts import parse_hosts
from certs.keyring import MAX_RETIRING, Keyring, Retiring
from certs.live import LiveConfiguration, ServiceName
from certs.trust import fingerprint
from certs.usability import alternative_names, issuing_fault, pair_matches

SERVING_LIFETIME = timedelta(days=90)
GRACE = timedelta(hours=24)
_NOT_YET_TRUSTED = "{} is not yet trusted by {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator decides. An authority lives at least three times as long as what it signs."""

    service: ServiceName
    more_hosts: tuple[str, ...] = ()
    authority_lifetime: timedelta = AUTHORITY_LIFETIME
    serving_lifetime: timedelta = SERVING_LIFETIME
    grace: timedelta = GRACE

    def names(self) -> tuple[x509.GeneralName, ...]:
        """Return every name that the serving certificate is for; the first is the one that API servers verify."""
        host, bare = self.service.host, f"{self.service.name}.{self.service.namespace}"
        return parse_hosts([host, bare, f"{host}.cluster.local", *self.more_hosts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen at one time.

    `settled` holds the fingerprints that all configurations have trusted for a while: API servers have noticed by now.
    `replicas_follow`: every ready endpoint of the Service was just seen to serve a certificate of the present signer.
    """

    keyring: Keyring
    live: tuple[LiveConfiguration, ...]
    settled: frozenset[str] = frozenset()
    replicas_follow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do next: bundles to publish, at most one change of the Secret, and what is waited for."""

    publications: tuple[tuple[LiveConfiguration, Mapping[int, tuple[x509.Certificate, ...]]], ...] = ()
    change: Change | None = None
    waiting: tuple[str, ...] = field(default=())

    @property
    def is_rest(self) -> bool:
        """Whether there is nothing to do and nothing waited for: the fixed point."""
        return not self.publications and self.change is None and not self.waiting


def decide(seen: Seen, policy: Policy, now: datetime) -> Decision:
    """Return what has to be done. Total, and the same for the same arguments. `now` is aware."""
    change, waiting = _next_change(seen, policy, now)
    publications = []
    for live in seen.live:
        if not live.entries:
            waiting.append(
                f"{live.told} has no entry that calls the Service {policy.service.namespace}/{policy.service.name}"
            )
        wanted = wanted_bundles(live, seen.keyring, now)
        if not wanted:
            continue
        if live.injector:
            waiting.append(f"{live.told} is filled in by {live.injector}")
        else:
            publications.append((live, wanted))
    return Decision(publications=tuple(publications), change=change, waiting=tuple(waiting))


def wanted_bundles(
    live: LiveConfiguration, keyring: Keyring, now: datetime
) -> dict[int, tuple[x509.Certificate, ...]]:
    """Return the bundles of those entries that do not trust exactly what they should.

    Ours are added. Certificates of others stay, until they are adopted and retired; only what was retired or has ended goes.
    """
    ours = tuple(certificate for certificate in keyring.authorities() if not _has_ended(certificate, now))
    wanted: dict[int, tuple[x509.Certificate, ...]] = {}
    for entry in live.entries:
        kept = [
            certificate
            for certificate in entry.bundle
            if certificate not in ours
            and not keyring.has_retired(certificate)
            and not _has_ended(certificate, now)
        ]
        bundle = (*ours, *kept)
        # An empty bundle would mean the system's authorities: never published.
        if bundle and set(bundle) != set(entry.bundle):
            wanted[entry.index] = bundle
    return wanted


def unknown_authorities(
    keyring: Keyring, live: Collection[LiveConfiguration], now: datetime
) -> tuple[x509.Certificate, ...]:
    """Return what live configurations trust and the Secret does not know: of a deleted Secret, or put in by a person."""
    known = set(keyring.authorities())
    found = {
        certificate: None
        for configuration in live
        for entry in configuration.entries
        for certificate in entry.bundle
        if certificate not in known
        and not keyring.has_retired(certificate)
        and not _has_ended(certificate, now)
    }
    newest = sorted(found, key=lambda certificate: certificate.not_valid_before_utc, reverse=True)
    return tuple(newest[: max(0, MAX_RETIRING - len(keyring.retiring))])


def trusted_everywhere(
    certificates: Collection[x509.Certificate], live: Sequence[LiveConfiguration]
) -> frozenset[str]:
    """Return the fingerprints of those that every entry of every configuration trusts."""
    return frozenset(
        fingerprint(certificate)
        for certificate in certificates
        if all(configuration.trusts(certificate) for configuration in live)
    )


def _next_change(seen: Seen, policy: Policy, now: datetime) -> tuple[Change | None, list[str]]:
    keyring = seen.keyring
    if unknown := unknown_authorities(keyring, seen.live, now):
        return Adopt(unknown), []
    if change := _upkeep(keyring, now):
        return change, []
    signer_fault = _authority_fault(keyring.signer, now)
    if signer_fault:
        if keyring.successor is None or (fault := _authority_fault(keyring.successor, now)):
            return MakeSuccessor(signer_fault if keyring.successor is None else f"next: {fault}"), []
        if not (waiting := _not_ready(keyring.successor, seen, now)):
            return Promote(signer_fault), []
        waiting_for = [waiting]
    elif keyring.successor is not None:
        # Somebody put a good signer back while the next one was under way: the next one is used all the same.
        if not (waiting := _not_ready(keyring.successor, seen, now)):
            return Promote("its successor is trusted"), []
        waiting_for = [waiting]
    else:
        waiting_for = []
    if keyring.signer is not None and not issuing_fault(keyring.signer, now=now):
        fault = _leaf_fault(keyring, policy, now)
        if fault and not (waiting := _not_ready(keyring.signer, seen, now)):
            return IssueLeaf(fault), []
        if fault and not waiting_for:
            waiting_for = [waiting]
    if keyring.faults:
        return Tidy(), waiting_for
    if not waiting_for and keyring.retiring:
        return _retirement(seen, policy, now)
    return None, waiting_for


def _upkeep(keyring: Keyring, now: datetime) -> Change | None:
    """Return the change that keeps the record in order: what has ended goes, what has no date gets one."""
    if ended := tuple(entry for entry in keyring.retiring if _has_ended(entry.certificate, now)):
        return Retire(ended, "it has ended")
    undated = [entry.since for entry in keyring.retiring]
    if keyring.leaf is not None:
        undated.append(keyring.leaf_since)
    if any(since.year == 1970 or since > now + BACK_DATED for since in undated):
        return Tidy()
    return None


def _retirement(seen: Seen, policy: Policy, now: datetime) -> tuple[Change | None, list[str]]:
    """Retire what no server can need: all it signed has ended, or grace has passed and every replica was seen without it."""
    keyring = seen.keyring
    outlived = tuple(entry for entry in keyring.retiring if entry.until + BACK_DATED < now)
    if outlived:
        return Retire(outlived, "all that it signed has ended"), []
    waiting = []
    due: list[Retiring] = []
    for entry in keyring.retiring:
        moment = max(entry.since, keyring.leaf_since) + policy.grace
        if moment > now:
            waiting.append(f"an old authority is trusted until {moment:%Y-%m-%dT%H:%M:%SZ}")
        elif not seen.replicas_follow:
            waiting.append("an old authority is trusted until every replica is seen with the new certificate")
        else:
            due.append(entry)
    if due:
        return Retire(tuple(due), "every replica serves a certificate of the present one"), []
    return None, waiting[:1]


def _not_ready(issued: Issued, seen: Seen, now: datetime) -> str:
    """Return why this authority may not sign yet, "" if it may."""
    certificate = issued.certificate
    missing = [configuration.told for configuration in seen.live if not configuration.trusts(certificate)]
    if missing:
        return _NOT_YET_TRUSTED.format("the next authority", ", ".join(missing))
    others = [
        other for other in seen.keyring.authorities() if other != certificate and not _has_ended(other, now)
    ]
    # With nothing else to trust, nothing that works now can be broken by haste.
    if others and fingerprint(certificate) not in seen.settled:
        return "API servers get time to notice the published bundle"
    return ""


def _authority_fault(authority: Issued | None, now: datetime) -> str:
    """Return why a successor is needed, "" if none is."""
    if authority is None:
        return "there was none"
    if fault := issuing_fault(authority, now=now):
        return fault
    certificate = authority.certificate
    return (
        f"it ends {certificate.not_valid_after_utc:%Y-%m-%d}" if _is_in_last_third(certificate, now) else ""
    )


def _leaf_fault(keyring: Keyring, policy: Policy, now: datetime) -> str:
    """Return why the signer has to issue a new serving certificate, "" if it need not."""
    leaf, signer = keyring.leaf, keyring.signer
    assert signer is not None
    if leaf is None:
        return "there was none"
    certificate = leaf.certificate
    if not pair_matches(leaf):
        return "certificate and key do not belong together"
    if not _is_signed_by(certificate, signer.certificate):
        return "it was not issued by this authority"
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return "it does not hold at this time"
    missing = [str(name.value) for name in policy.names() if name not in alternative_names(certificate)]
    if missing:
        return f"it is not for {', '.join(missing)}"
    later = min(now + policy.serving_lifetime, signer.certificate.not_valid_after_utc)
    if _is_in_last_third(certificate, now) and later > certificate.not_valid_after_utc:
        return f"it ends {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    return ""


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # whatever a hand-made certificate makes the library say
        return False
    return True


def _has_ended(certificate: x509.Certificate, now: datetime) -> bool:
    """Tell whether no API server can hold it valid any more, however far its clock is behind ours."""
    return certificate.not_valid_after_utc + BACK_DATED < now


def _is_in_last_third(certificate: x509.Certificate, now: datetime) -> bool:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    whole = ends - begins
    # It was made after it begins: otherwise what lives for an hour would be old when it is new.
    life = whole - BACK_DATED if whole > BACK_DATED else whole
    return ends - now < life / 3
