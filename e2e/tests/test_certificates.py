"""Certificates that look after themselves, on a real API server: three replicas, whose rotating processes come, go and are killed.

Meanwhile pods are created, and somebody who trusts what API servers trust shakes hands with every replica without a pause.
"""

import base64
import json
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from certs.authority import create_authority, issue_serving
from certs.hosts import parse_hosts
from certs.keyring import Keyring
from certs.pem import render_certificate
from certs.secret import render_secret
from certs.trust import fingerprint
from e2e.cluster.kubectl import Json
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.load import Load, creations, handshakes, load
from e2e.tests.load_tally import Outcome
from e2e.tests.rendered import MANIFESTS, render
from e2e.tests.replicas import (
    CONFIGURATIONS,
    HOST,
    Replica,
    Replicas,
    api_server,
    asking,
    be_patient,
    open_namespace,
    publish,
    replicas_on,
)
from sidemount.model.names import OWN_NAMESPACE

_STARTED_S, _ROTATED_S = 120.0, 240.0
_SECRET = "webhook-certs"
_CARRIES = ("sidemount-keeper", "sidemount-books")
# As in production, but for waits of seconds that are days there.
_QUICK = ("--period=2s", "--settle=3s", "--grace=5s")
_RATE, _MINUTES_S = 20.0, 240.0


@pytest.fixture(scope="module")
def server() -> Iterator[RunningCluster]:
    """An API server with our configurations, whose caBundle is empty, and no Secret."""
    with api_server("e2e-certs") as cluster:
        yield cluster


class Trio:
    """Three replicas, and what is asked of them all the time."""

    def __init__(self, server: RunningCluster, replicas: Replicas, *arguments: str) -> None:
        self.server = server
        self.members = [replicas.make() for _ in range(3)]
        self._service = replicas.service
        self._arguments = (*_QUICK, *arguments)
        self._starts = 0

    def start(self) -> None:
        """Start all at once; return when API servers may call them."""
        for member in self.members:
            self.start_certs(member)
        for member in self.members:
            assert wait_for(lambda member=member: member.has_certificate(), _STARTED_S), member.told()  # type: ignore[misc]
            member.start_webhook()
        for member in self.members:
            member.wait_ready()
        self._service.route(self.members)

    def start_certs(self, member: Replica) -> None:
        """Start a rotating process whose name in the Lease nobody had before."""
        self._starts += 1
        member.start_certs(*self._arguments, f"--identity={member.address}_{self._starts}")

    def leader(self) -> Replica | None:
        """Return who leads, None while nobody is known to."""
        found = self.server.kubectl().get("lease", _SECRET, OWN_NAMESPACE) or {}
        holder = str(found.get("spec", {}).get("holderIdentity") or "").partition("_")[0]
        return next((member for member in self.members if member.address == holder), None)

    def served(self) -> set[str]:
        """Return the serial numbers of what is in place."""
        return {f"{member.chain()[0].serial_number:x}" for member in self.members}

    def trusted(self) -> list[set[str]]:
        """Return the authorities that each entry of each configuration trusts."""
        found = []
        for kind in CONFIGURATIONS:
            entries = (self.server.kubectl().get(kind, "sidemount") or {})["webhooks"]
            for entry in entries:
                text = base64.b64decode(entry["clientConfig"].get("caBundle", ""))
                found.append(
                    {fingerprint(each) for each in x509.load_pem_x509_certificates(text)} if text else set()
                )
        return found

    def has_one_authority(self) -> bool:
        """Tell whether all entries trust the same single authority: nothing of a rotation is left to do."""
        trusted = self.trusted()
        return len(trusted[0]) == 1 and all(each == trusted[0] for each in trusted)

    def wait_rotated(self, before: set[str]) -> None:
        """Return when everybody serves one certificate that is none of these, under one authority."""

        def is_done() -> bool:
            served = self.served()
            return len(served) == 1 and not served & before and self.has_one_authority()

        is_rotated = wait_for(is_done, _ROTATED_S)
        told = "\n".join(member.told("certs.log") for member in self.members)
        assert is_rotated, f"{self.trusted()} {self.served()}\n{told}"


@pytest.fixture(scope="module")
def trio(server: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three replicas that have come from nothing to one certificate."""
    with replicas_on(server, tmp_path_factory.mktemp("replicas")) as replicas:
        found = Trio(server, replicas)
        found.start()
        yield found


class Asked:
    """What is asked while a test does its worst."""

    def __init__(self, stack: ExitStack, server: RunningCluster, namespace: str) -> None:
        order = creations(server, asking(namespace), carries=_CARRIES, connections=3, rate=_RATE)
        self.admissions: Load = stack.enter_context(load(server, order))
        self.handshakes: Load = stack.enter_context(handshakes(server))
        self.admissions.wait_good(10)
        self.handshakes.wait_good(10)

    def stop(self) -> tuple[Outcome, Outcome]:
        """Ask a little longer, and return what has become of all admissions and of all handshakes."""
        self.admissions.wait_good(10)
        self.handshakes.wait_good(10)
        outcomes = self.admissions.stop(), self.handshakes.stop()
        print(f"admissions: {outcomes[0].told()}\nhandshakes: {outcomes[1].told()}")
        return outcomes


@pytest.fixture
def asked(server: RunningCluster, trio: Trio) -> Iterator[Asked]:
    """Admissions and handshakes without a pause."""
    with ExitStack() as stack:
        yield Asked(stack, server, open_namespace(server))


def test_three_that_start_cold_at_once_serve_under_one_authority(server: RunningCluster, trio: Trio) -> None:
    """cert-controller#13, gatekeeper#1045, osm#4183: no Secret, empty bundles, no order among them."""
    assert len(trio.served()) == 1
    assert trio.has_one_authority()
    assert trio.leader() is not None


def test_a_secret_that_is_deleted_is_replaced_without_a_failed_admission(
    server: RunningCluster, trio: Trio, asked: Asked
) -> None:
    """The way to replace an authority whose key may be known; and with it a forced rotation of everything."""
    before = trio.served()
    began = time.monotonic()
    server.kubectl().delete("secret", _SECRET, OWN_NAMESPACE)
    trio.wait_rotated(before)
    print(f"rotated in {time.monotonic() - began:.1f} s")
    admissions, shaken = asked.stop()
    assert (admissions.failures, shaken.failures) == ({}, {})


def test_a_bundle_that_a_chart_resets_is_repaired(server: RunningCluster, trio: Trio, asked: Asked) -> None:
    """Until then nobody can be called: pods that ask wait, none comes without its volume, and replicas stay ready."""
    objects = render(server.kubectl(), MANIFESTS / "overlays/default")
    api = server.kubectl()
    before, trusted = trio.served(), trio.trusted()
    began = time.monotonic()
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        emptied: Json = next(each for each in objects if each["kind"] == kind)
        api.run("replace", "-f", "-", text=json.dumps(emptied))
    assert wait_for(lambda: trio.trusted() == trusted, _ROTATED_S)
    repaired_s = time.monotonic() - began
    be_patient(server)
    print(f"repaired in {repaired_s:.1f} s")
    assert repaired_s < 60
    admissions, _ = asked.stop()
    others = [sort for sort in admissions.failures if "tls: failed to verify certificate" not in sort]
    assert others == []
    assert trio.served() == before
    assert all(member.is_ready() for member in trio.members)


def test_a_cluster_that_was_off_until_everything_had_ended_comes_back_by_itself(
    server: RunningCluster, trio: Trio
) -> None:
    """Nothing that is kept or trusted holds any more: there is nothing to wait for, and nobody to ask."""
    long_ago = datetime(2010, 1, 1, tzinfo=UTC)
    authority = create_authority("sidemount webhook authority", now=long_ago)
    leaf = issue_serving(authority, parse_hosts((HOST,)), now=long_ago)
    keyring = Keyring(signer=authority, leaf=leaf, leaf_since=long_ago)
    before, api = trio.served(), server.kubectl()
    present = api.get("secret", _SECRET, OWN_NAMESPACE)
    api.run(
        "replace",
        "-f",
        "-",
        text=json.dumps(render_secret(present, keyring, namespace=OWN_NAMESPACE, name=_SECRET)),
    )
    publish(server, render_certificate(authority.certificate))
    began = time.monotonic()
    trio.wait_rotated({*before, f"{leaf.certificate.serial_number:x}"})
    print(f"serves again after {time.monotonic() - began:.1f} s")
    assert trio.trusted()[0] != {fingerprint(authority.certificate)}
    assert wait_for(lambda: not _failures(server), _STARTED_S), _failures(server)


def _failures(server: RunningCluster) -> dict[str, int]:
    """Return what goes wrong in thirty handshakes. The replicas change their certificates one after the other."""
    with handshakes(server) as shaken:
        shaken.wait_good(30)
        return dict(shaken.stop().failures)


def _kill_leaders(trio: Trio, server: RunningCluster, kills: int) -> None:
    """Begin a rotation, kill who leads it at a random moment, and see it through; again and again."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(kills):
        before = trio.served()
        server.kubectl().delete("secret", _SECRET, OWN_NAMESPACE)
        time.sleep(chance.uniform(0, 6))  # the random moment
        leader = wait_for(trio.leader, _STARTED_S)
        assert leader is not None
        leader.kill("certs")
        if chance.random() < 0.5:  # as when its node is lost, and not only its container
            assert wait_for(lambda killed=leader: trio.leader() not in (None, killed), _STARTED_S)  # type: ignore[misc]
        trio.start_certs(leader)
        trio.wait_rotated(before)


@pytest.mark.slow
def test_a_leader_that_is_killed_in_the_middle_leaves_no_gap_in_trust(
    server: RunningCluster, trio: Trio, asked: Asked
) -> None:
    _kill_leaders(trio, server, 1)
    admissions, shaken = asked.stop()
    assert (admissions.failures, shaken.failures) == ({}, {})


@pytest.mark.slow
def test_leaders_that_are_killed_again_and_again_leave_no_gap_in_trust(
    server: RunningCluster, trio: Trio, asked: Asked
) -> None:
    _kill_leaders(trio, server, 8)
    admissions, shaken = asked.stop()
    assert (admissions.failures, shaken.failures) == ({}, {})


@pytest.mark.slow
def test_lives_of_a_minute_are_renewed_without_a_failed_admission(tmp_path: Path) -> None:
    """Certificates of a minute, authorities of three: everything is succeeded again and again, by its age alone."""
    with api_server("e2e-minute") as server, replicas_on(server, tmp_path) as replicas, ExitStack() as stack:
        trio = Trio(server, replicas, "--serving-lifetime=1m", "--authority-lifetime=3m")
        trio.start()
        asked = Asked(stack, server, open_namespace(server))
        authorities = trio.trusted()[0]
        began, leaves = time.monotonic(), 0
        while time.monotonic() - began < _MINUTES_S:
            before = trio.served()
            assert wait_for(lambda before=before: not trio.served() & before, _ROTATED_S)  # type: ignore[misc]
            leaves += 1
        assert wait_for(lambda: not trio.trusted()[0] & authorities, _ROTATED_S)
        print(f"{leaves} certificates in {time.monotonic() - began:.0f} s")
        admissions, shaken = asked.stop()
    assert (admissions.failures, shaken.failures) == ({}, {})
    assert leaves <= _MINUTES_S / 20
