"""The rotation machine against a simulated cluster: what every client accepts, at every moment, whatever dies in between."""

import base64
import copy
from datetime import timedelta

import pytest
from cryptography import x509
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from certs.authority import create_authority, issue_serving
from certs.change import IssueLeaf, Promote
from certs.hosts import parse_hosts
from certs.keyring import Keyring, render_keyring
from certs.pem import render_bundle, render_certificate, render_key
from certs.rotation import Policy
from certs.secret import Custody, parse_secret
from certs.trust import fingerprint
from tests.certs.rotation_world import POLICY, SERVICE, SETTLE_S, START, Replica, World, reset_bundle

_KEYS = (
    "tls.crt",
    "tls.key",
    "ca.crt",
    "ca.key",
    "next-ca.crt",
    "next-ca.key",
    "old-ca.crt",
    "rotation.json",
)


def _settled_world() -> World:
    world = World()
    world.converge()
    return world


def _keyring(world: World) -> Keyring:
    return parse_secret(world.secret.document).keyring


def _signer(world: World) -> x509.Certificate:
    signer = _keyring(world).signer
    assert signer is not None
    return signer.certificate


def _is_trusted(world: World, certificate: x509.Certificate) -> bool:
    return all(live.trusts(certificate) for live in world.live())


def _edit(world: World, **content: bytes | None) -> None:
    document = copy.deepcopy(world.secret.document)
    assert document is not None
    for key, value in content.items():
        name = key.replace("_", ".").replace("next.", "next-").replace("old.", "old-")
        document["data"].pop(name, None)
        if value is not None:
            document["data"][name] = base64.b64encode(value).decode()
    world.secret.put(document, world.now)


def _bundles(world: World) -> set[frozenset[x509.Certificate]]:
    return {frozenset(entry.bundle) for live in world.live() for entry in live.entries}


def test_a_cold_start_publishes_before_it_serves_and_comes_to_rest() -> None:
    world = World()
    actor = world.actors[0]
    seen = []
    for _ in range(4):
        world.look(actor)
        assert actor.decision is not None
        seen.append((type(actor.decision.change).__name__, len(actor.decision.publications)))
        while world.publish(actor):
            pass
        world.change(actor)
    assert seen == [("MakeSuccessor", 0), ("NoneType", 2), ("Promote", 0), ("NoneType", 0)]
    world.converge()
    assert world.rest()
    signer = _keyring(world).signer
    assert signer is not None
    assert _bundles(world) == {frozenset([signer.certificate])}


def test_what_belongs_to_others_is_left_as_it_is() -> None:
    """The rest of a configuration, and entries that call another Service."""
    world = World()
    before = {kind: copy.deepcopy(stored.document) for kind, stored in world.configurations.items()}
    world.converge()
    for kind, stored in world.configurations.items():
        after, first = copy.deepcopy(stored.document), before[kind]
        assert after is not None
        assert first is not None
        for hook in (*after["webhooks"], *first["webhooks"]):
            if hook["name"].endswith("sidemount.io"):
                hook["clientConfig"].pop("caBundle", None)
        after["metadata"].pop("resourceVersion")
        first["metadata"].pop("resourceVersion")
        assert after == first


def test_without_a_configuration_nobody_waits_for_one() -> None:
    """A chart that makes the configuration once the webhook is ready must not wait for ever (gardener#5530)."""
    world = World()
    first = {kind: stored.document for kind, stored in world.configurations.items()}
    for stored in world.configurations.values():
        stored.put(None, world.now)
    world.converge()
    assert world.rest()
    for kind, document in first.items():
        world.configurations[kind].put(document, world.now)
    world.converge()
    assert all(world.accepts(replica) for replica in world.replicas)


def test_a_leaf_near_its_end_is_renewed_under_the_same_authority() -> None:
    world = _settled_world()
    signer, leaf = _signer(world), _keyring(world).leaf
    world.pass_time(POLICY.serving_lifetime, 9)
    after = _keyring(world).leaf
    assert leaf is not None
    assert after is not None
    assert _signer(world) == signer
    assert after.certificate != leaf.certificate
    assert all(world.accepts(replica) for replica in world.replicas)


@pytest.mark.parametrize("minutes", [3, 120])
def test_what_lives_shortly_is_renewed_as_often_as_its_life_asks_and_no_oftener(minutes: int) -> None:
    """A certificate begins two hours before it is made; that must not make it old from its first day."""
    life = timedelta(minutes=minutes)
    policy = Policy(service=SERVICE, serving_lifetime=life, authority_lifetime=3 * life, grace=life / 10)
    world = World(policy=policy)
    world.converge()
    leaf = _keyring(world).leaf
    world.pass_time(life / 3, 2)
    same = _keyring(world).leaf
    assert leaf is not None
    assert same is not None
    assert same.certificate == leaf.certificate
    leaves = set()
    for _ in range(36):
        world.pass_time(life / 6, 1)
        assert all(world.accepts(replica) for replica in world.replicas)
        found = _keyring(world).leaf
        assert found is not None
        leaves.add(found.certificate)
    assert 6 <= len(leaves) <= 20


def test_an_authority_near_its_end_is_succeeded_and_the_old_one_loses_its_key_and_then_its_trust() -> None:
    world = _settled_world()
    before = _keyring(world)
    assert before.signer is not None
    world.now += POLICY.authority_lifetime * 0.65
    world.converge()
    assert _signer(world) == before.signer.certificate
    world.now += POLICY.authority_lifetime * 0.03
    world.converge()
    between = _keyring(world)
    assert _signer(world) != before.signer.certificate
    assert [entry.certificate for entry in between.retiring] == [before.signer.certificate]
    assert render_key(before.signer.key) not in render_keyring(between).values()
    assert all(len(bundle) == 2 for bundle in _bundles(world))
    world.now += POLICY.grace + timedelta(seconds=30)
    world.converge()
    assert all(len(bundle) == 1 for bundle in _bundles(world))
    assert world.rest()


def test_an_old_authority_stays_while_one_replica_is_behind_until_all_it_signed_has_ended() -> None:
    world = _settled_world()
    signer = _keyring(world).signer
    assert signer is not None
    stuck = world.replicas.pop()
    world.now += POLICY.authority_lifetime * 0.67
    world.converge()
    # The one that is cut off still serves what it had, as an endpoint of the Service.
    old_leaf = issue_serving(signer, POLICY.names(), now=world.now, lifetime=timedelta(days=60))
    stuck.served = render_certificate(old_leaf.certificate)
    world.now += timedelta(days=2)
    world.replicas.append(stuck)
    assert stuck.is_ready
    for _ in range(5):
        world.act(world.actors[0])
        world.now += timedelta(seconds=5)
    assert world.accepts(stuck)
    assert not world.rest()


def test_a_deleted_secret_is_made_again_without_anybody_noticing() -> None:
    """So deleting the Secret is how a person replaces a compromised authority."""
    world = _settled_world()
    old = _keyring(world).signer
    assert old is not None
    world.secret.put(None, world.now)
    for _ in range(30):
        for actor in world.actors:
            world.act(actor)
            for replica in world.replicas:
                world.read(replica)
                world.deliver(replica)
            assert all(world.accepts(replica) for replica in world.replicas)
        world.now += timedelta(seconds=3)
    signer = _keyring(world).signer
    assert signer is not None
    assert signer.certificate != old.certificate
    assert all(old.certificate in bundle for bundle in _bundles(world))
    world.now += POLICY.grace
    world.converge()
    assert _bundles(world) == {frozenset([signer.certificate])}


def test_a_published_bundle_settles_before_anything_relies_on_it() -> None:
    """API servers hear of a changed configuration a moment after it can be read."""
    world = _settled_world()
    before = _signer(world)
    world.secret.put(None, world.now)
    actor = world.actors[0]
    published_at = None
    while _keyring(world).signer is None:
        world.act(actor)
        successor = _keyring(world).successor
        if published_at is None and successor is not None and _is_trusted(world, successor.certificate):
            published_at = world.now
        world.now += timedelta(seconds=1)
    assert published_at is not None
    assert world.now - published_at > timedelta(seconds=SETTLE_S)
    assert _signer(world) != before


def test_when_everything_has_ended_a_new_authority_serves_at_once() -> None:
    world = _settled_world()
    world.now += POLICY.authority_lifetime + timedelta(days=1)
    for replica in world.replicas:
        replica.is_ready = False
    before = world.now
    world.converge()
    assert all(world.accepts(replica) for replica in world.replicas)
    assert world.now - before < timedelta(minutes=2)
    assert all(len(bundle) == 1 for bundle in _bundles(world))


@pytest.mark.parametrize("bundle", [None, b"\n", b"\x00junk"])
def test_a_bundle_that_was_reset_is_repaired_in_one_round(bundle: bytes | None) -> None:
    world = _settled_world()
    before = world.secret.document
    for stored in world.configurations.values():
        reset_bundle(stored, world.now, bundle)
    world.act(world.actors[0])
    assert all(world.accepts(replica) for replica in world.replicas)
    assert world.secret.document == before


def test_a_certificate_that_a_person_put_in_is_kept_for_the_grace_period_and_not_for_ever() -> None:
    world = _settled_world()
    other = create_authority("corporate", now=START)
    ours = _keyring(world).signer
    assert ours is not None
    both = render_bundle([other.certificate, ours.certificate])
    reset_bundle(world.configurations["MutatingWebhookConfiguration"], world.now, both)
    world.converge()
    assert all(other.certificate in bundle for bundle in _bundles(world))
    world.now += POLICY.grace + timedelta(seconds=1)
    world.converge()
    assert _bundles(world) == {frozenset([ours.certificate])}
    assert world.rest()
    # Put in again, it is known as retired, and taken out at once.
    reset_bundle(world.configurations["MutatingWebhookConfiguration"], world.now, both)
    world.act(world.actors[0])
    assert _bundles(world) == {frozenset([ours.certificate])}


def test_a_configuration_that_cert_manager_fills_in_is_not_touched() -> None:
    world = World()
    stored = world.configurations["MutatingWebhookConfiguration"]
    document = copy.deepcopy(stored.document)
    assert document is not None
    document["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": "a/b"}
    stored.put(document, world.now)
    before = stored.document
    for _ in range(10):
        world.act(world.actors[0])
        world.now += timedelta(seconds=5)
    assert stored.document == before
    world.look(world.actors[0])
    decision = world.actors[0].decision
    assert decision is not None
    assert any("cert-manager.io/inject-ca-from" in note for note in decision.waiting)
    assert _keyring(world).leaf is None, "nothing is served that no client can accept"


@pytest.mark.parametrize("key", _KEYS)
@pytest.mark.parametrize("content", [None, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_any_broken_part_of_the_secret_is_made_good_without_anybody_noticing(
    key: str, content: bytes | None
) -> None:
    world = _settled_world()
    world.now += POLICY.authority_lifetime * 0.67
    world.converge()
    document = copy.deepcopy(world.secret.document)
    assert document is not None
    document["data"].pop(key, None)
    if content is not None:
        document["data"][key] = base64.b64encode(content).decode()
    world.secret.put(document, world.now)
    for _ in range(12):
        world.act(world.actors[0])
        for replica in world.replicas:
            world.read(replica)
            world.deliver(replica)
        assert all(world.accepts(replica) for replica in world.replicas)
        world.now += timedelta(seconds=3)
    read = parse_secret(world.secret.document)
    assert read.custody is Custody.OURS
    assert read.fault == ""
    assert read.chain
    world.pass_time(POLICY.grace * 2.1, 2)
    assert world.rest()


def test_a_key_that_does_not_match_its_certificate_is_replaced() -> None:
    world = _settled_world()
    other = create_authority("x", now=START)
    _edit(world, tls_key=render_key(other.key))
    world.look(world.actors[0])
    assert isinstance(_change(world), IssueLeaf)
    before = _signer(world)
    _edit(world, ca_key=render_key(other.key))
    world.converge()
    assert _signer(world) != before
    assert all(world.accepts(replica) for replica in world.replicas)


def test_a_backup_of_the_secret_that_is_restored_is_published_before_it_is_served() -> None:
    world = _settled_world()
    backup = world.secret.document
    world.now += POLICY.authority_lifetime * 0.67
    world.converge()
    world.now += POLICY.grace * 2
    world.converge()
    world.secret.put(backup, world.now)
    for _ in range(40):
        for replica in world.replicas:
            world.read(replica)
            world.deliver(replica)
        world.act(world.actors[1])
        assert all(world.accepts(replica) for replica in world.replicas)
        world.now += timedelta(seconds=3)


def test_a_leader_that_wakes_up_late_takes_nothing_back() -> None:
    """Whoever decided on what was read long ago finds that its write is refused."""
    world = _settled_world()
    sleeper, awake = world.actors
    reset_bundle(world.configurations["MutatingWebhookConfiguration"], world.now, b"")
    world.look(sleeper)  # has decided to publish the only authority there is
    world.actors = [awake]
    world.now += POLICY.authority_lifetime * 0.67
    world.converge()
    world.now += POLICY.grace * 2
    world.converge()
    after = world.secret.document
    while world.publish(sleeper):
        pass
    world.change(sleeper)
    assert world.secret.document == after
    assert all(world.accepts(replica) for replica in world.replicas)


def test_a_certificate_of_the_future_and_one_for_another_name_are_replaced() -> None:
    world = _settled_world()
    signer = _keyring(world).signer
    assert signer is not None
    for leaf in (
        issue_serving(signer, POLICY.names(), now=world.now + timedelta(days=10)),
        issue_serving(signer, parse_hosts(["other.svc"]), now=world.now),
        issue_serving(create_authority("x", now=START), POLICY.names(), now=world.now),
    ):
        _edit(world, tls_crt=render_certificate(leaf.certificate), tls_key=render_key(leaf.key))
        world.look(world.actors[0])
        assert isinstance(_change(world), IssueLeaf)


def test_an_authority_that_does_not_hold_yet_signs_nothing() -> None:
    """istio#32176: the successor of a leader whose clock was ahead."""
    world = World()
    ahead = world.actors[0]
    ahead.skew = timedelta(hours=1, minutes=50)
    for _ in range(6):
        world.act(ahead)
    for replica in world.replicas:
        world.read(replica)
        world.deliver(replica)
        assert replica.is_ready


def _change(world: World) -> object:
    decision = world.actors[0].decision
    assert decision is not None
    return decision.change


def test_a_successor_of_an_operator_signs_once_it_is_trusted() -> None:
    """Putting a pair under next-ca.* is the way to bring one's own authority without an outage."""
    world = _settled_world()
    mine = create_authority("mine", now=START)
    _edit(world, next_ca_crt=render_certificate(mine.certificate), next_ca_key=render_key(mine.key))
    world.look(world.actors[0])
    assert not isinstance(_change(world), Promote)
    world.converge()
    signer = _keyring(world).signer
    assert signer is not None
    assert fingerprint(signer.certificate) == fingerprint(mine.certificate)
    assert all(world.accepts(replica) for replica in world.replicas)


class Rotation(RuleBasedStateMachine):
    """Any order of steps by two leaders and three replicas, with crashes, stale reads, late writes and meddling."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.disturbed = False

    @initialize(skews=st.tuples(st.integers(-600, 600), st.integers(-600, 600)), warm=st.booleans())
    def begin(self, skews: tuple[int, int], warm: bool) -> None:
        for actor, skew in zip(self.world.actors, skews, strict=True):
            actor.skew = timedelta(seconds=skew)
        if warm:
            self.world.converge()

    @rule(who=st.integers(0, 1), age=st.sampled_from([0, 0, 0, 1, 2, 5]))
    def leader_looks(self, who: int, age: int) -> None:
        self.world.look(self.world.actors[who], age=age)

    @rule(who=st.integers(0, 1))
    def leader_publishes(self, who: int) -> None:
        self.world.publish(self.world.actors[who])

    @rule(who=st.integers(0, 1))
    def leader_changes(self, who: int) -> None:
        actor = self.world.actors[who]
        if actor.decision is not None and not actor.decision.publications:
            self.world.change(actor)

    @rule(who=st.integers(0, 1))
    def leader_does_it_all(self, who: int) -> None:
        self.world.act(self.world.actors[who])

    @rule(who=st.integers(0, 1))
    def leader_crashes(self, who: int) -> None:
        self.world.actors[who].forget()

    @rule(who=st.integers(0, 2), age=st.integers(0, 3))
    def replica_reads(self, who: int, age: int) -> None:
        self.world.read(self.world.replicas[who], age=age)

    @rule(who=st.integers(0, 2))
    def replica_delivers(self, who: int) -> None:
        self.world.deliver(self.world.replicas[who])

    @rule(who=st.integers(0, 2))
    def pod_is_replaced(self, who: int) -> None:
        replica = self.world.replicas[who]
        replica.served, replica.is_ready, replica.read = b"", False, None

    @rule(who=st.integers(0, 2))
    def replica_is_cut_off_or_back(self, who: int) -> None:
        """It goes on serving what it has, and is still called, but hears nothing of the cluster."""
        replica = self.world.replicas[who]
        replica.is_cut_off = not replica.is_cut_off

    @rule(seconds=st.sampled_from([1, 4, 11, 29, 120]))
    def a_little_time_passes(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @rule(part=st.sampled_from([0.005, 0.05]))
    @precondition(lambda self: not self.disturbed)
    def much_time_passes(self, part: float) -> None:
        # Nobody is away for long; but what a leader decided before may still be done after.
        for actor, decided in [(actor, copy.copy(actor)) for actor in self.world.actors]:
            self.world.converge()
            actor.before, actor.secret, actor.decision = decided.before, decided.secret, decided.decision
            actor.decided_at = self.world.now
        self.world.now += POLICY.serving_lifetime * part

    @rule(key=st.sampled_from(_KEYS), content=st.sampled_from([None, b"", b"junk"]))
    def secret_is_edited(self, key: str, content: bytes | None) -> None:
        if self.world.secret.document is not None:
            document = copy.deepcopy(self.world.secret.document)
            document["data"].pop(key, None)
            if content is not None:
                document["data"][key] = base64.b64encode(content).decode()
            self.world.secret.put(document, self.world.now)

    @rule()
    def secret_is_deleted(self) -> None:
        self.world.secret.put(None, self.world.now)

    @rule(kind=st.sampled_from(["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]))
    def bundle_is_reset(self, kind: str) -> None:
        reset_bundle(self.world.configurations[kind], self.world.now, b"")
        self.disturbed = True

    @rule()
    def everybody_works(self) -> None:
        self.world.converge()
        for replica in self.world.replicas:
            if self.disturbed and replica.is_cut_off and not self.world.accepts(replica):
                # Secret and bundles were lost together: nobody knows any more what the one that is cut off needs.
                replica.is_ready = False
        self.disturbed = False

    @invariant()
    def every_client_accepts_what_is_served(self) -> None:
        if not self.disturbed:
            for replica in self.world.replicas:
                if replica.is_ready and not self._has_ended(replica):
                    assert self.world.accepts(replica)

    def _has_ended(self, replica: Replica) -> bool:
        """Tell whether a replica that was cut off for months serves what nobody can accept any more."""
        return replica.is_cut_off and replica.chain[0].not_valid_after_utc < self.world.now

    def teardown(self) -> None:
        world = self.world
        for replica in world.replicas:
            replica.is_cut_off = False
        world.converge()
        for replica in world.replicas:
            assert world.accepts(replica)
        for _ in range(3):
            world.now += POLICY.grace + timedelta(minutes=30)
            world.converge()
        assert world.rest()
        assert all(len(bundle) == 1 for bundle in _bundles(world))
        document = world.secret.document
        world.converge()
        assert world.secret.document == document


_CALM = (HealthCheck.too_slow, HealthCheck.filter_too_much)


class _Deep(Rotation):
    """The same for longer."""


TestRotation = Rotation.TestCase
TestRotation.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=_CALM
)
TestRotationForLonger = pytest.mark.timeout(900)(pytest.mark.slow(_Deep.TestCase))
TestRotationForLonger.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=_CALM
)
