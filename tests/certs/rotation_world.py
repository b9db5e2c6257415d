"""A cluster in memory, with every version that an object ever had, and the actors of a rotation taken apart into steps."""

import base64
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonpatch
from cryptography import x509

from certs.change import carry_out
from certs.delivery import is_better
from certs.live import LiveConfiguration, ServiceName, bundle_patch, parse_configuration
from certs.rotation import Decision, Policy, Seen, decide, trusted_everywhere
from certs.secret import SecretRead, parse_secret, render_secret
from certs.settled import SettleWatch
from certs.trust import verify

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
SERVICE = ServiceName("sidemount-system", "webhook")
POLICY = Policy(service=SERVICE)
SETTLE_S = 10.0
STALE = timedelta(seconds=30)
Manifest = dict[str, Any]


def webhook_configuration(kind: str, entries: int, *, bundle: str | None = None) -> Manifest:
    """Return a configuration with one entry of somebody else among ours."""
    ours: Manifest = {"service": {"namespace": SERVICE.namespace, "name": SERVICE.name, "path": "/mutate"}}
    if bundle is not None:
        ours["caBundle"] = bundle
    other = {"service": {"namespace": "other", "name": "webhook"}, "caBundle": "b3RoZXI="}
    hooks = [
        {"name": f"e{index}.sidemount.io", "clientConfig": copy.deepcopy(ours)} for index in range(entries)
    ]
    hooks.insert(1, {"name": "someone.else", "clientConfig": other})
    return {"kind": kind, "metadata": {"name": "sidemount", "labels": {"kept": "yes"}}, "webhooks": hooks}


class Stored:
    """One object: every version with the time it was written. None: it is not there."""

    def __init__(self, document: Manifest | None, now: datetime) -> None:
        self.versions: list[tuple[datetime, Manifest | None]] = []
        self._count = 0
        self.put(document, now)

    @property
    def document(self) -> Manifest | None:
        """What is there now."""
        return self.versions[-1][1]

    def put(self, document: Manifest | None, now: datetime) -> None:
        """Write, whatever was there."""
        self._count += 1
        if document is not None:
            document = copy.deepcopy(document)
            document["metadata"]["resourceVersion"] = str(self._count)
        self.versions.append((now, document))

    def put_if(self, before: Manifest | None, document: Manifest, now: datetime) -> bool:
        """Write if what is there is still what was read."""
        if _version(before) != _version(self.document):
            return False
        self.put(document, now)
        return True

    def patch(self, operations: Sequence[Manifest], now: datetime) -> bool:
        """Apply a JSON Patch, or nothing of it."""
        if self.document is None:
            return False
        try:
            self.put(jsonpatch.apply_patch(self.document, operations), now)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            return False
        return True

    def read(self, age: int, oldest: datetime | None = None) -> Manifest | None:
        """Return a version that may be some writes old, none that was replaced before `oldest`."""
        index = len(self.versions) - 1
        while age > 0 and index > 0 and (oldest is None or self.versions[index][0] >= oldest):
            index, age = index - 1, age - 1
        return self.versions[index][1]


@dataclass
class Actor:
    """Somebody who thinks that they lead, and what they have decided but not yet done."""

    settled: SettleWatch = field(default_factory=lambda: SettleWatch(SETTLE_S))
    before: Manifest | None = None
    secret: SecretRead | None = None
    decision: Decision | None = None
    decided_at: datetime = START
    skew: timedelta = timedelta(0)

    def forget(self) -> None:
        """Crash: a new process remembers nothing."""
        self.settled, self.before, self.secret, self.decision = SettleWatch(SETTLE_S), None, None, None


@dataclass
class Replica:
    """A server: what it serves, and what its process has read but not yet put in place."""

    served: bytes = b""
    is_ready: bool = False
    is_cut_off: bool = False
    read: tuple[SecretRead, tuple[LiveConfiguration, ...], datetime] | None = None

    @property
    def chain(self) -> list[x509.Certificate]:
        """What clients get."""
        return x509.load_pem_x509_certificates(self.served) if self.served else []


class World:
    """The cluster and everybody in it. The clock is the API server's."""

    def __init__(self, replicas: int = 3, actors: int = 2, policy: Policy = POLICY) -> None:
        self.now = START
        self.policy = policy
        self.secret = Stored(None, START)
        self.configurations = {
            "MutatingWebhookConfiguration": Stored(webhook_configuration("M", 2), START),
            "ValidatingWebhookConfiguration": Stored(webhook_configuration("V", 1, bundle="Cg=="), START),
        }
        self.actors = [Actor() for _ in range(actors)]
        self.replicas = [Replica() for _ in range(replicas)]
        self._accepted: dict[tuple[tuple[x509.Certificate, bool], ...], bool] = {}

    @property
    def now_s(self) -> float:
        """The monotonic clock of every process."""
        return (self.now - START).total_seconds()

    def live(self, age: int = 0) -> tuple[LiveConfiguration, ...]:
        """Return the configurations as somebody reads them."""
        read = [(kind, stored.read(age)) for kind, stored in self.configurations.items()]
        return tuple(parse_configuration(found, kind, SERVICE) for kind, found in read if found is not None)

    # What a leader does, one effect at a time.

    def look(self, actor: Actor, *, age: int = 0) -> None:
        """Read and decide."""
        live = self.live(age)
        actor.before = self.secret.read(age)
        actor.secret = parse_secret(actor.before)
        keyring = actor.secret.keyring
        settled = actor.settled.look(trusted_everywhere(keyring.authorities(), live), self.now_s)
        signer = keyring.signer
        followed = signer is not None and any(replica.is_ready for replica in self.replicas)
        for replica in self.replicas:
            if replica.is_ready and signer is not None:
                verdict = verify(replica.chain, [signer.certificate], SERVICE.host, now=self.now)
                followed = followed and verdict.is_verified
        seen = Seen(keyring=keyring, live=live, settled=settled, replicas_follow=followed)
        actor.decided_at = self.now + actor.skew
        actor.decision = decide(seen, self.policy, actor.decided_at)

    def publish(self, actor: Actor) -> bool:
        """Do the first publication that was decided; return whether there was one."""
        decision = actor.decision
        if decision is None or not decision.publications:
            return False
        live, wanted = decision.publications[0]
        actor.decision = Decision(
            publications=decision.publications[1:], change=decision.change, waiting=decision.waiting
        )
        self.configurations[live.kind].patch(bundle_patch(live, wanted), self.now)
        return True

    def change(self, actor: Actor) -> bool:
        """Make the change that was decided; return whether there was one."""
        decision, secret = actor.decision, actor.secret
        actor.decision = None
        if decision is None or decision.change is None or secret is None:
            return False
        assert secret.custody.is_writable
        new = carry_out(
            decision.change,
            secret.keyring,
            names=self.policy.names(),
            authority_lifetime=self.policy.authority_lifetime,
            serving_lifetime=self.policy.serving_lifetime,
            now=actor.decided_at,
        )
        document = render_secret(actor.before, new, namespace=SERVICE.namespace, name="certs")
        self.secret.put_if(actor.before, document, self.now)
        return True

    def act(self, actor: Actor) -> bool:
        """Look, and do everything; return whether there was anything to do."""
        self.look(actor)
        done = False
        while self.publish(actor):
            done = True
        return self.change(actor) or done

    # What a replica does.

    def read(self, replica: Replica, *, age: int = 0) -> None:
        """Read what a replica needs; the Secret at most as old as a slow call makes it."""
        if replica.is_cut_off:
            return
        oldest = self.now - STALE
        replica.read = parse_secret(self.secret.read(age, oldest)), self.live(), self.now

    def deliver(self, replica: Replica) -> None:
        """Put in place what was read, if that was not too long ago, and become ready if clients accept it."""
        if replica.read is None:
            return
        secret, live, at = replica.read
        replica.read = None
        if self.now - at <= STALE and secret.chain:
            present = replica.chain
            if is_better(secret.chain, present, live, SERVICE.host, now=self.now):
                replica.served = secret.certificate_pem
        replica.is_ready = replica.is_ready or (bool(replica.served) and self.accepts(replica))

    # What is true.

    def accepts(self, replica: Replica) -> bool:
        """Tell whether every client accepts what a replica serves."""
        return all(
            self._is_accepted(replica.chain, entry.bundle)
            for configuration in self.live()
            for entry in configuration.entries
        )

    def _is_accepted(self, chain: list[x509.Certificate], bundle: tuple[x509.Certificate, ...]) -> bool:
        # Signatures are slow; the verdict changes only with who is in it, and who holds now.
        key = tuple(
            (certificate, certificate.not_valid_before_utc <= self.now <= certificate.not_valid_after_utc)
            for certificate in (*chain, *bundle)
        )
        if key not in self._accepted:
            self._accepted[key] = verify(chain, bundle, SERVICE.host, now=self.now).is_verified
        return self._accepted[key]

    def converge(self) -> None:
        """Let everybody work undisturbed until the leader only waits, or rests."""
        for _ in range(60):
            acted = [self.act(actor) for actor in self.actors]
            for replica in self.replicas:
                self.read(replica)
                self.deliver(replica)
            ready = all(replica.is_ready or replica.is_cut_off for replica in self.replicas)
            if ready and not any(acted) and not self.actors[0].settled.wait_s(self.now_s):
                return
            self.now += timedelta(seconds=5)
        raise AssertionError("no fixed point")

    def pass_time(self, length: timedelta, steps: int) -> None:
        """Let time pass in steps, with everybody at work."""
        for _ in range(steps):
            self.now += length / steps
            self.converge()

    def rest(self) -> bool:
        """Tell whether there is nothing to do and nothing waited for."""
        actor = self.actors[0]
        self.look(actor)
        decision = actor.decision
        actor.decision = None
        return decision is not None and decision.is_rest


def reset_bundle(stored: Stored, now: datetime, bundle: bytes | None) -> None:
    """Do what a chart or a person does: put something else into every entry, or nothing."""
    document = copy.deepcopy(stored.document)
    assert document is not None
    for hook in document["webhooks"]:
        if hook["name"].endswith("sidemount.io"):
            hook["clientConfig"].pop("caBundle", None)
            if bundle is not None:
                hook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
    stored.put(document, now)


def _version(document: Manifest | None) -> str:
    return document["metadata"]["resourceVersion"] if document is not None else ""
