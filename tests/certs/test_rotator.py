"""The rotating process against an API server over real HTTP: starts, crashes, faults, meddling, and the way back from each."""

import asyncio
import base64
import copy
import logging
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from certs.authority import create_authority, issue_serving
from certs.hosts import parse_hosts
from certs.pem import render_bundle, render_certificate, render_key
from certs.secret import MARK, Custody, parse_secret
from certs.trust import fingerprint
from tests.certs.fake_cluster import (
    LEASE,
    MUTATING,
    SECRET,
    VALIDATING,
    FakeCluster,
    Fault,
    Manifest,
    serving,
    with_configurations,
)
from tests.certs.rotating import Clock, Crash, Replica, live_bundles, run, turn_until
from tests.certs.rotation_world import POLICY, SERVICE, START, webhook_configuration


@pytest.fixture(scope="module")
def endpoint() -> Iterator[FakeCluster]:
    with serving(FakeCluster()) as served:
        yield served


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(endpoint: FakeCluster, clock: Clock) -> FakeCluster:
    return _emptied(endpoint, clock)


def _emptied(server: FakeCluster, clock: Clock) -> FakeCluster:
    server.objects.clear()
    server.calls.clear()
    server.fault = lambda method, path: None
    server.now = clock.now
    server.says_time = True
    return with_configurations(server)


def _writes(server: FakeCluster) -> list[tuple[str, str]]:
    return [call for call in server.calls if call[0] != "GET" and "leases" not in call[1]]


def _secret(server: FakeCluster) -> Manifest:
    document = server.get(SECRET)
    assert document is not None
    return document


def _signer(server: FakeCluster) -> str:
    signer = parse_secret(server.get(SECRET)).keyring.signer
    return fingerprint(signer.certificate) if signer is not None else ""


def _leads(replica: Replica) -> bool:
    return replica.election.leads


async def _settle(replicas: list[Replica], clock: Clock) -> None:
    await turn_until(replicas, clock, lambda: all(replica.is_accepted() for replica in replicas))
    for _ in range(4):
        clock.advance(4)
        for replica in replicas:
            await replica.turn()


def test_three_replicas_that_start_cold_at_once_agree_on_one_authority(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    """cert-controller#13, gatekeeper#1045: replicas disagree on the authority."""

    async def work() -> None:
        replicas = [Replica(server, clock, tmp_path / name, name) for name in "abc"]
        for _ in range(20):
            await asyncio.gather(*(replica.turn() for replica in replicas))
            clock.advance(3)
        assert len({replica.chain for replica in replicas}) == 1
        assert all(replica.is_accepted() for replica in replicas)
        assert sum(replica.election.leads for replica in replicas) == 1
        assert len(set(map(frozenset, live_bundles(server)))) == 1
        assert len(live_bundles(server)[0]) == 1
        for replica in replicas:
            await replica.close()

    run(work())


def test_even_without_any_election_several_that_act_at_once_agree(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    """The Lease saves work; what keeps a rotation safe is that each write is conditional."""

    async def work() -> None:
        replicas = [Replica(server, clock, tmp_path / name, name) for name in "abc"]
        for replica in replicas:
            replica.rotator._leads = lambda: True
        for _ in range(15):
            await asyncio.gather(*(replica.rotator.step() for replica in replicas))
            clock.advance(3)
        assert len({replica.chain for replica in replicas}) == 1
        assert all(replica.is_accepted() for replica in replicas)
        assert all(replica.standing.fault == "" for replica in replicas)
        for replica in replicas:
            await replica.close()

    run(work())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("start", ["cold", "secret-deleted", "bundle-reset"])
def test_a_crash_at_any_call_is_made_good_by_the_next_process(
    endpoint: FakeCluster, tmp_path: Path, start: str, after: bool
) -> None:
    """`after`: the write took place, and nobody heard of it. Between them the two take every call in turn."""

    async def one(number: int, before: dict[str, Manifest], moment: Clock) -> bool:
        clock = Clock(moment.moment, moment.passed_s)
        server = _emptied(endpoint, clock)
        for path, document in before.items():
            server.put(path, document)
        directory = tmp_path / f"{number}"
        if (tmp_path / "settled").exists():
            shutil.copytree(tmp_path / "settled", directory, symlinks=True)
        replica = Replica(server, clock, directory)
        replica.cluster.crash_at, replica.cluster.crash_after = number, after
        crashed = False
        try:
            for _ in range(4):
                await replica.turn()
                clock.advance(6)
            replica.cluster.crash_at = None
        except Crash:
            crashed = True
            await replica.crash()
            replica.start()
        await turn_until([replica], clock, lambda: bool(_signer(server)) and replica.is_accepted())
        await replica.close()
        return crashed

    async def work() -> None:
        clock, before = Clock(), {}
        if start != "cold":
            server = _emptied(endpoint, clock)
            settled = Replica(server, clock, tmp_path / "settled")
            await _settle([settled], clock)
            await settled.election.resign()
            await settled.close()
            if start == "secret-deleted":
                server.delete(SECRET)
            else:
                server.put(MUTATING, webhook_configuration("MutatingWebhookConfiguration", 2))
            before = copy.deepcopy(server.objects)
        number = int(after) if start == "cold" else int(not after)
        while await one(number, before, clock):
            number += 2
        assert number > 12

    run(work())


_FAULTS = {
    "500": Fault(status=500),
    "403": Fault(status=403),
    "409": Fault(status=409),
    "429": Fault(status=429),
    "418": Fault(status=418),
    "no-json": Fault(status=200, body=b"<html>"),
    "huge": Fault(status=200, body=b" " * (9 << 20)),
    "deep": Fault(status=200, body=b"[" * 100_000),
    "reset": Fault(reset=True),
    "unheard": Fault(reset=True, applied=True),
}


@pytest.mark.parametrize("kind", _FAULTS)
def test_whatever_the_api_server_does_the_certificate_stays_and_the_way_back_is_found(
    server: FakeCluster, clock: Clock, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        for path in (LEASE, SECRET, MUTATING, ""):
            for verbs in (("GET",), ("POST", "PUT", "PATCH")):
                server.fault = _failing(_FAULTS[kind], path, verbs)
                server.put(VALIDATING, webhook_configuration("ValidatingWebhookConfiguration", 1))
                had = replica.has_certificate
                for _ in range(2):
                    await replica.turn()
                    clock.advance(6)
                assert replica.has_certificate or not had
        server.fault = lambda method, path: None
        await turn_until([replica], clock, replica.is_accepted)
        await replica.turn()
        assert replica.standing.fault == ""
        await replica.close()

    run(work())
    _assert_no_secrets(server, caplog.text)


def _failing(fault: Fault, path: str, verbs: tuple[str, ...]) -> Callable[[str, str], Fault | None]:
    def fails(method: str, asked: str) -> Fault | None:
        return fault if method in verbs and asked.startswith(path.rpartition("/")[0]) else None

    return fails


def _assert_no_secrets(server: FakeCluster, text: str) -> None:
    assert "PRIVATE KEY" not in text
    for key, value in _secret(server)["data"].items():
        if key.endswith(".key") and value:
            assert value[:60] not in text
            body = base64.b64decode(value).decode().splitlines()[1]
            assert body not in text


def test_a_slow_api_server_is_waited_for_no_longer_than_a_call_may_take(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        replica = Replica(server, clock, tmp_path, call_s=0.2)
        server.fault = lambda method, path: Fault(slow_s=1.0)
        pause_s = await replica.rotator.step()
        assert "does not answer in time" in replica.standing.fault
        assert pause_s > 1
        await replica.close()

    run(work())


def test_pauses_grow_while_nothing_works_and_are_bounded(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        server.fault = lambda method, path: Fault(status=503)
        pauses = [await replica.rotator.step() for _ in range(12)]
        assert pauses[0] < 7
        assert 40 < pauses[-1] < 80
        await replica.close()

    run(work())


def test_while_the_api_server_is_away_what_is_in_place_stays_and_its_age_is_told(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        await _settle([replica], clock)
        before = replica.chain
        server.fault = lambda method, path: Fault(reset=True)
        looked_at = replica.standing.looked_at_s
        for _ in range(4):
            await replica.turn()
            clock.advance(600)
        assert replica.chain == before
        assert replica.standing.looked_at_s == looked_at
        assert replica.standing.missing() == ""
        assert any("cannot be read" in note for note in replica.standing.told())
        assert not _leads(replica)
        await replica.close()

    run(work())


def test_who_resigns_is_followed_at_once_and_who_crashes_within_the_leases_duration(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        first, second = (Replica(server, clock, tmp_path / name, name) for name in "ab")
        await _settle([first, second], clock)
        assert [_leads(replica) for replica in (first, second)] == [True, False]
        await first.election.resign()
        await second.turn()
        assert [_leads(replica) for replica in (first, second)] == [False, True]
        spec = (server.get(LEASE) or {})["spec"]
        assert spec["leaseTransitions"] == 1
        await second.crash()
        await first.turn()
        clock.advance(14)
        await first.turn()
        assert not _leads(first)
        clock.advance(2)
        await first.turn()
        assert _leads(first)
        await first.close()

    run(work())


def test_who_cannot_renew_stops_leading_before_anybody_else_begins(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        await replica.turn()
        assert _leads(replica)
        server.fault = lambda method, path: Fault(status=500) if "leases" in path else None
        clock.advance(11)
        await replica.turn()
        assert not _leads(replica)
        assert _writes(server), "it had led"
        await replica.close()

    run(work())


@pytest.mark.parametrize("hours", [-30, -3, 3, 30])
def test_who_has_another_time_than_the_api_server_issues_nothing(
    server: FakeCluster, clock: Clock, tmp_path: Path, hours: int
) -> None:
    """One of the two clocks is wrong; a certificate by the wrong one would be refused by all others."""

    async def work() -> None:
        replica = Replica(server, clock, tmp_path, wall=lambda: clock.now() + timedelta(hours=hours))
        for _ in range(5):
            await replica.turn()
            clock.advance(5)
        assert _writes(server) == []
        assert any("our clock" in note for note in replica.standing.told())
        await replica.close()

    run(work())


def test_a_clock_that_is_an_hour_off_issues_by_the_api_servers_time(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        replica = Replica(server, clock, tmp_path, wall=lambda: clock.now() + timedelta(minutes=70))
        await _settle([replica], clock)
        begins = replica.chain[0].not_valid_before_utc
        assert abs(begins + timedelta(hours=2) - START) < timedelta(minutes=5)
        assert 4100 < replica.standing.skew_s < 4300
        await replica.close()

    run(work())


def test_an_api_server_that_tells_no_time_is_worked_with(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        server.says_time = False
        replica = Replica(server, clock, tmp_path)
        await _settle([replica], clock)
        await replica.close()

    run(work())


@pytest.mark.parametrize("owner", ["bring-your-own", "cert-manager"])
def test_a_secret_of_somebody_else_is_served_and_never_written(
    server: FakeCluster, clock: Clock, tmp_path: Path, owner: str
) -> None:
    """Neither is a caBundle: whoever brings the certificate brings the trust in it."""
    authority = create_authority("theirs", now=START)
    leaf = issue_serving(authority, parse_hosts([SERVICE.host]), now=START)
    metadata: Manifest = {"name": "webhook-certs", "labels": {"a": "b"}}
    if owner == "cert-manager":
        metadata["annotations"] = {"cert-manager.io/certificate-name": "webhook"}
    content = {
        "tls.crt": render_certificate(leaf.certificate),
        "tls.key": render_key(leaf.key),
        "ca.crt": render_certificate(authority.certificate),
    }
    encoded = {key: base64.b64encode(value).decode() for key, value in content.items()}
    server.put(SECRET, {"kind": "Secret", "metadata": metadata, "data": encoded})

    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        for _ in range(5):
            await replica.turn()
            clock.advance(5)
        assert _writes(server) == []
        assert replica.chain == (leaf.certificate,)
        assert replica.standing.custody is not None
        assert replica.standing.custody.value == owner
        renewed = issue_serving(authority, parse_hosts([SERVICE.host]), now=START)
        document = _secret(server)
        document["data"]["tls.crt"] = base64.b64encode(render_certificate(renewed.certificate)).decode()
        server.put(SECRET, document)
        await replica.turn()
        assert replica.chain == (leaf.certificate,), "half of a pair is not served"
        document["data"]["tls.key"] = base64.b64encode(render_key(renewed.key)).decode()
        server.put(SECRET, document)
        await replica.turn()
        assert replica.chain == (renewed.certificate,)
        await replica.close()

    run(work())


def test_an_empty_secret_of_a_chart_is_filled_and_its_own_things_stay(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    """A chart makes it beforehand, so that the right to create Secrets is not needed."""
    metadata = {"name": "webhook-certs", "labels": {"helm": "x"}, "annotations": {"note": "y"}}
    empty = {"kind": "Secret", "type": "Opaque", "metadata": metadata, "data": {"tls.crt": "", "tls.key": ""}}
    server.put(SECRET, empty)

    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        await _settle([replica], clock)
        document = _secret(server)
        document["data"]["mine"] = base64.b64encode(b"kept").decode()
        document["data"]["tls.key"] = "AAAA"
        server.put(SECRET, document)
        await _settle([replica], clock)
        after = _secret(server)
        assert after["type"] == "Opaque"
        assert after["metadata"]["labels"] == {"helm": "x"}
        assert after["metadata"]["annotations"] == {"note": "y", MARK: "rotated"}
        assert base64.b64decode(after["data"]["mine"]) == b"kept"
        assert parse_secret(after).chain
        await replica.close()

    run(work())


def test_what_a_later_release_wrote_is_served_and_not_written(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        replica = Replica(server, clock, tmp_path / "a")
        await _settle([replica], clock)
        document = _secret(server)
        record = base64.b64decode(document["data"]["rotation.json"]).replace(b'"version": 1', b'"version": 2')
        document["data"]["rotation.json"] = base64.b64encode(record).decode()
        server.put(SECRET, document)
        server.calls.clear()
        other = Replica(server, clock, tmp_path / "b", "b")
        for each in (replica, other):
            await each.turn()
        assert _writes(server) == []
        assert other.chain == replica.chain
        assert other.standing.custody is Custody.NEWER
        assert any("of version 2" in note for note in other.standing.told())
        await replica.close()
        await other.close()

    run(work())


def test_a_bundle_that_was_reset_is_repaired_by_the_leaders_next_look(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        await _settle([replica], clock)
        document = server.get(MUTATING)
        assert document is not None
        before = copy.deepcopy(document["webhooks"])
        document["webhooks"][0]["clientConfig"].pop("caBundle")
        document["webhooks"][2]["clientConfig"]["caBundle"] = base64.b64encode(b"\n").decode()
        document["webhooks"].append({"name": "new.one", "clientConfig": {"url": "https://elsewhere/"}})
        server.put(MUTATING, document)
        await replica.turn()
        after = server.get(MUTATING)
        assert after is not None
        assert after["webhooks"][:3] == before
        assert after["webhooks"][3] == {"name": "new.one", "clientConfig": {"url": "https://elsewhere/"}}
        await replica.close()

    run(work())


def test_a_change_of_somebody_else_between_reading_and_patching_is_not_lost(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    """newrelic cert-manager#14 and the lost updates of read-modify-write."""
    meddled = False

    def meddle(method: str, path: str) -> Fault | None:
        nonlocal meddled
        if method == "PATCH" and path == MUTATING and not meddled:
            meddled = True
            document = server.get(MUTATING)
            assert document is not None
            document["webhooks"].insert(
                0, {"name": "first.of.another", "clientConfig": {"url": "https://x/"}}
            )
            server.put(MUTATING, document)
        return None

    async def work() -> None:
        server.fault = meddle
        replica = Replica(server, clock, tmp_path)
        await _settle([replica], clock)
        assert meddled
        document = server.get(MUTATING)
        assert document is not None
        assert document["webhooks"][0] == {"name": "first.of.another", "clientConfig": {"url": "https://x/"}}
        assert replica.is_accepted()
        await replica.close()

    run(work())


def test_one_configuration_that_must_not_be_written_does_not_hold_up_the_others_nor_is_it_hidden(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        server.fault = lambda method, path: (
            Fault(status=403) if (method, path) == ("PATCH", MUTATING) else None
        )
        replica = Replica(server, clock, tmp_path)
        for _ in range(5):
            await replica.turn()
            clock.advance(5)
        document = server.get(VALIDATING)
        assert document is not None
        assert len(document["webhooks"][0]["clientConfig"]["caBundle"]) > 100
        assert "MutatingWebhookConfiguration sidemount cannot be patched" in replica.standing.fault
        assert "let the service account patch" in replica.standing.fault
        assert not replica.has_certificate, "nothing is served that one of the two would refuse"
        server.fault = lambda method, path: None
        await turn_until([replica], clock, replica.is_accepted)
        await replica.close()

    run(work())


def test_a_new_pod_takes_the_certificate_that_there_is_and_writes_nothing(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    async def work() -> None:
        first = Replica(server, clock, tmp_path / "a", "a")
        await _settle([first], clock)
        server.calls.clear()
        second = Replica(server, clock, tmp_path / "b", "b")
        await second.turn()
        assert second.chain == first.chain
        assert _writes(server) == []
        await first.close()
        await second.close()

    run(work())


def test_a_foreign_certificate_in_the_bundle_does_not_stop_a_cold_start(
    server: FakeCluster, clock: Clock, tmp_path: Path
) -> None:
    old = create_authority("of the release before", now=START)
    document = server.get(MUTATING)
    assert document is not None
    bundle = render_bundle([old.certificate]) + b"junk"
    document["webhooks"][0]["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
    server.put(MUTATING, document)

    async def work() -> None:
        replica = Replica(server, clock, tmp_path)
        await _settle([replica], clock)
        assert all(old.certificate in bundle for bundle in live_bundles(server))
        clock.advance(POLICY.grace.total_seconds() + 60)
        await replica.turn()
        assert all(old.certificate in bundle for bundle in live_bundles(server)), "no replica was looked at"
        await replica.close()

    run(work())
