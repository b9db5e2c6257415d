"""One rotating process: looks at the cluster, puts the certificate in place, leads where it may, and probes what is served."""

import asyncio
import random
from collections.abc import Callable, Collection

from cryptography import x509

from certs.api_clock import ApiClock
from certs.delivery import Delivery, is_better
from certs.handshake import shake_hands
from certs.leader import Leader
from certs.live import LiveConfiguration
from certs.look import Look, look_at_cluster
from certs.pem import parse_bundle
from certs.rotate_settings import RotateSettings
from certs.standing import Standing
from certs.trust import Trust, Verdict, verify
from sidemount.host.cluster import Cluster
from sidemount.host.logs import log
from sidemount.model.errors import VolumeError

_SOON_S = 0.2
_SLOWEST_S = 60.0
_FOLLOWER_FACTOR = 3
_STALE_S = 30.0
_MAX_DOUBLINGS = 6
_log = log("certs.rotator")


class Rotator:
    """Call `step` again and again. Nothing that fails in it ends it or takes away what is in place."""

    def __init__(
        self,
        cluster: Cluster,
        settings: RotateSettings,
        clock: ApiClock,
        standing: Standing,
        *,
        leads: Callable[[], bool],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._standing = standing
        self._leads = leads
        self._monotonic_s = monotonic_s
        self._delivery = Delivery(settings.directory)
        self._leader = Leader(cluster, settings, clock, standing, monotonic_s)
        self._look: Look | None = None
        self._failed = 0

    async def step(self) -> float:
        """Look, deliver, act, probe; return in how many seconds to do so again. Raises nothing but cancellation."""
        notes: list[str] = []
        errors: list[str] = []
        done = 0
        self._standing.leads = self._leads()
        try:
            done = await self._look_and_act(notes, errors)
        except VolumeError as error:
            self._standing.failures[error.reason] += 1
            errors.append(str(error))
        except Exception:
            _log.error("step_failed", exc_info=True)
            errors.append("a step failed in an unexpected way, see the log")
        try:
            await self._probe()
        except Exception:
            _log.error("probe_failed", exc_info=True)
        self._failed = self._failed + 1 if errors else 0
        self._tell(notes, errors)
        self._standing.stepped_at_s = self._monotonic_s()
        return self._pause_s(done)

    def read_present(self) -> None:
        """Take note of the certificate that an earlier process left in place."""
        self._note_present(parse_bundle(self._delivery.present()))

    async def _look_and_act(self, notes: list[str], errors: list[str]) -> int:
        look = await look_at_cluster(self._cluster, self._settings, self._monotonic_s())
        self._look = look
        self._note_look(look, notes)
        await self._deliver(look, notes)
        if not self._standing.leads or not look.secret.custody.is_writable:
            return 0
        acted = await self._leader.act(look)
        notes += acted.notes
        for error in acted.errors:
            self._standing.failures[error.reason] += 1
            errors.append(str(error))
        return acted.done

    async def _deliver(self, look: Look, notes: list[str]) -> None:
        """Put the Secret's certificate in place, unless clients accept the one that is there and would refuse it."""
        present_pem = await asyncio.to_thread(self._delivery.present)
        present, offered = parse_bundle(present_pem), look.secret.chain
        self._note_present(present)
        if not offered:
            if look.secret.certificate_pem.strip():
                notes.append(
                    f"Secret {self._settings.secret}: tls.crt and tls.key are no pair that can be served"
                )
            return
        if look.secret.certificate_pem == present_pem:
            return
        host = self._settings.policy.service.host
        if not is_better(offered, present, look.live, host, now=self._clock.now()):
            notes.append("the Secret's certificate is not trusted yet; the one in place stays")
            return
        if self._monotonic_s() - look.at_s > _STALE_S:  # we were stopped meanwhile
            return
        await asyncio.to_thread(self._delivery.write, look.secret.certificate_pem, look.secret.key_pem)
        self._note_present(offered)
        ends = offered[0].not_valid_after_utc.isoformat()
        _log.info("certificate_in_place", serial=f"{offered[0].serial_number:x}", not_after=ends)

    async def _probe(self) -> None:
        """Shake hands with our own webhook under each bundle that is live; without any, under the Secret's authorities."""
        standing = self._standing
        if self._settings.probe is None:
            standing.has_been_ready |= standing.is_started() and standing.looked_at_s is not None
            return
        host, port = self._settings.probe
        name = self._settings.policy.service.host
        bundles = _bundles(self._look)
        verdict = Verdict(Trust.VERIFIED)
        for bundle in bundles:
            verdict = await shake_hands(host, port, name, bundle)
            if not verdict.is_verified:
                break
        offered, now = self._look.secret.chain if self._look else (), self._clock.now()
        standing.own = verdict
        standing.is_behind = bool(offered) and all(
            verify(offered, bundle, name, now=now).is_verified for bundle in bundles
        )
        standing.has_been_ready |= verdict.is_verified and standing.looked_at_s is not None

    def _pause_s(self, done: int) -> float:
        spread = random.uniform(0.8, 1.2)  # noqa: S311 - so that replicas do not call in step
        period_s = self._settings.period_s
        if self._failed:
            return min(period_s * (1 << min(self._failed - 1, _MAX_DOUBLINGS)), _SLOWEST_S) * spread
        if done:
            return _SOON_S * spread
        if not self._standing.leads:
            return (
                min(period_s * _FOLLOWER_FACTOR, _SLOWEST_S) * spread
                if self._standing.is_started()
                else spread
            )
        wait_s = self._leader.wait_s()
        return min(period_s * spread, wait_s + _SOON_S) if wait_s else period_s * spread

    def _note_present(self, chain: Collection[x509.Certificate]) -> None:
        leaf = next(iter(chain), None)
        self._standing.serving_not_after = leaf.not_valid_after_utc if leaf is not None else None

    def _note_look(self, look: Look, notes: list[str]) -> None:
        standing, keyring = self._standing, look.secret.keyring
        if standing.custody is not look.secret.custody:
            _log.info("secret_read", secret=self._settings.secret, custody=look.secret.custody.value)
        standing.custody = look.secret.custody
        standing.looked_at_s = self._monotonic_s()
        standing.skew_s = self._clock.skew().total_seconds()
        standing.authorities = {
            "signer": int(keyring.signer is not None),
            "successor": int(keyring.successor is not None),
            "retiring": len(keyring.retiring),
        }
        signer = keyring.signer
        standing.authority_not_after = signer.certificate.not_valid_after_utc if signer is not None else None
        if look.secret.fault:
            notes.append(f"Secret {self._settings.secret}: {look.secret.fault}")
        if not look.live:
            names = ", ".join(self._settings.configurations)
            notes.append(f"there is no webhook configuration {names}: nobody calls the webhook")

    def _tell(self, notes: list[str], errors: list[str]) -> None:
        """Keep what there is to say, and log each sentence once, as long as it stays the same."""
        standing = self._standing
        for note in notes:
            if note not in standing.notes:
                _log.info("noticed", what=note)
        fault = "; ".join(errors)
        if fault and fault != standing.fault:
            _log.warning("step_failed", error=fault)
        standing.notes, standing.fault = tuple(notes), fault


def _bundles(look: Look | None) -> set[frozenset[x509.Certificate]]:
    if look is None:
        return set()
    live: tuple[LiveConfiguration, ...] = look.live
    found = {frozenset(entry.bundle) for configuration in live for entry in configuration.entries}
    authorities = frozenset(look.secret.keyring.authorities())
    return found or ({authorities} if authorities else set())
