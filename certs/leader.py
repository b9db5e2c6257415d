"""What the leader does: it has the machine decide, publishes bundles, and makes one change of the Secret at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cryptography import x509

from certs.api_clock import ApiClock
from certs.change import Change, carry_out, told
from certs.live import LiveConfiguration, bundle_patch
from certs.look import Look, configuration_place, secret_place
from certs.replicas import replicas_verify
from certs.rotate_settings import RotateSettings
from certs.rotation import Decision, Seen, decide, trusted_everywhere
from certs.secret import render_secret
from certs.settled import SettleWatch
from certs.standing import Standing
from sidemount.host.cluster import Cluster
from sidemount.host.logs import log
from sidemount.model.errors import PublishConflict, VolumeError

_log = log("certs.leader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What came of one round. `done` counts writes that were tried and not refused."""

    done: int = 0
    notes: tuple[str, ...] = ()
    errors: tuple[VolumeError, ...] = ()


class Leader:
    """Acts on looks. Safe to be several at once, and to be ended anywhere: each write is conditional on what was read."""

    def __init__(
        self,
        cluster: Cluster,
        settings: RotateSettings,
        clock: ApiClock,
        standing: Standing,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._standing = standing
        self._monotonic_s = monotonic_s
        self._settled = SettleWatch(settings.settle_s)

    async def act(self, look: Look) -> Acted:
        """Do what comes next. Raises nothing of its own."""
        if not self._clock.is_plausible():
            skew_s = self._clock.skew().total_seconds()
            return Acted(notes=(f"our clock is {skew_s:.0f} s ahead of the API server's: nothing is issued",))
        decision, notes = await self._decide(look)
        done, errors = 0, []
        for live, wanted in decision.publications:
            try:
                await self._publish(live, wanted)
                done += 1
            except VolumeError as error:
                errors.append(error)
        if decision.change is not None:
            try:
                await self._change(decision.change, look)
                done += 1
            except VolumeError as error:
                errors.append(error)
        return Acted(done=done, notes=(*notes, *decision.waiting), errors=tuple(errors))

    def wait_s(self) -> float:
        """Return in how many seconds something that is waited for may have come, 0 if nothing is."""
        return self._settled.wait_s(self._monotonic_s())

    async def _decide(self, look: Look) -> tuple[Decision, tuple[str, ...]]:
        keyring, policy, now = look.secret.keyring, self._settings.policy, self._clock.now()
        trusted = trusted_everywhere(keyring.authorities(), look.live)
        settled = self._settled.look(trusted, self._monotonic_s())
        seen = Seen(keyring=keyring, live=look.live, settled=settled)
        decision = decide(seen, policy, now)
        if decision.change is not None or not keyring.retiring or keyring.signer is None:
            return decision, ()
        followed, notes = await self._followed(keyring.signer.certificate)
        return decide(replace(seen, replicas_follow=followed), policy, now), notes

    async def _followed(self, signer: x509.Certificate) -> tuple[bool, tuple[str, ...]]:
        if self._settings.probe is None:
            return False, ()
        service, port = self._settings.policy.service, self._settings.probe[1]
        try:
            return await replicas_verify(self._cluster, service, port, [signer]), ()
        except VolumeError as error:
            return False, (f"{error}: old authorities stay until all that they signed has ended",)

    async def _publish(
        self, live: LiveConfiguration, wanted: Mapping[int, tuple[x509.Certificate, ...]]
    ) -> None:
        try:
            await self._cluster.patch(configuration_place(live.kind, live.name), bundle_patch(live, wanted))
        except PublishConflict as error:
            # Somebody else was first: what is there now is read next.
            _log.debug("changed_meanwhile", error=str(error))
            return
        self._standing.publications += 1
        _log.info("bundle_published", kind=live.kind, name=live.name, entries=len(wanted))

    async def _change(self, change: Change, look: Look) -> None:
        policy, place = self._settings.policy, secret_place(self._settings.namespace, self._settings.secret)
        new = carry_out(
            change,
            look.secret.keyring,
            names=policy.names(),
            authority_lifetime=policy.authority_lifetime,
            serving_lifetime=policy.serving_lifetime,
            now=self._clock.now(),
        )
        document = render_secret(
            look.document, new, namespace=self._settings.namespace, name=self._settings.secret
        )
        try:
            if look.document is None:
                await self._cluster.create(place, document)
            else:
                await self._cluster.replace(place, document)
        except PublishConflict as error:
            _log.debug("changed_meanwhile", error=str(error))
            return
        fields = told(change)
        self._standing.changes[fields["change"]] += 1
        _log.info("secret_changed", generation=new.generation, **fields)
