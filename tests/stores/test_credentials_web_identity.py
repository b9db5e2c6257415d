"""Credentials of a role: got for a token, kept until shortly before they end, and got again."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.credentials import Damaged
from sidemount.stores.credentials_web_identity import RoleKeys, parse
from sidemount.stores.faults import Counts
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.opening import open_store
from sidemount.stores.signing import Credentials
from sidemount.stores.store import FaultKind, StoreFault
from tests.stores.http_script import HttpScript, Step, http_script, say

ARN = "arn:aws:iam::1:role/reader"
START_S = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s


def grant(name: str, life_s: float = 3600, start_s: float = START_S) -> Step:
    ends = datetime.fromtimestamp(start_s + life_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return say(
        200,
        f"<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><AssumeRoleWithWebIdentityResult>"
        f"<Credentials><AccessKeyId>{name}</AccessKeyId><SecretAccessKey>S</SecretAccessKey><SessionToken>T+/=</SessionToken>"
        f"<Expiration>{ends}</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>".encode(),
    )


def refusal(status: int) -> Step:
    return say(
        status,
        b"<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>the.token.itself</Message></Error></ErrorResponse>",
    )


class Place:
    def __init__(self, server: HttpScript, directory: Path) -> None:
        self.server = server
        self.clock = Clock()
        self.directory = directory
        (directory / "role_arn").write_text(f"{ARN}\n")
        (directory / "web_identity_token").write_text("the.token.itself")
        self.pool = HttpPool(4)
        self.keys = RoleKeys(
            str(directory), self.pool, server.url, Counts(), timeout_s=2, retry_timeout_s=1, clock=self.clock
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with http_script() as server:
        made = Place(server, tmp_path)
        yield made
        made.pool.close()


def test_credentials_are_got_for_the_token_once(place: Place) -> None:
    place.server.then(grant("A"))
    assert [place.keys.current() for _ in range(3)] == [Credentials("A", "S", "T+/=")] * 3
    asked = parse_qs(place.server.asked[0].body.decode())
    assert (asked["RoleArn"], asked["WebIdentityToken"]) == ([ARN], ["the.token.itself"])
    assert len(place.server.asked) == 1


def test_they_are_got_again_before_they_end_while_the_old_ones_are_in_use(place: Place) -> None:
    place.server.then(grant("A"), grant("B", 7200))
    place.keys.current()
    (place.directory / "web_identity_token").write_text("the.next.token")
    place.clock.now_s += 3600 - 200
    place.keys._roles.renew()  # the second of the files' own clock has not passed
    assert place.keys.current() == Credentials("A", "S", "T+/=")
    deadline_s = time.monotonic() + 10
    while place.keys.current() != Credentials("B", "S", "T+/="):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert parse_qs(place.server.asked[1].body.decode())["WebIdentityToken"] == ["the.next.token"]
    assert len(place.server.asked) == 2


def test_ended_ones_are_never_used(place: Place) -> None:
    place.server.then(grant("A"), refusal(400))
    place.keys.current()
    place.clock.now_s += 3600
    with pytest.raises(StoreFault) as caught:
        place.keys.current()
    assert caught.value.kind is FaultKind.CREDENTIALS
    assert "ExpiredTokenException" in str(caught.value)
    assert "the.token.itself" not in str(caught.value)


def test_many_calls_at_once_ask_once(place: Place) -> None:
    place.server.then(grant("A"))
    found: list[Credentials | None] = []
    threads = [threading.Thread(target=lambda: found.append(place.keys.current())) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [Credentials("A", "S", "T+/=")] * 8
    assert len(place.server.asked) == 1


def test_a_refusal_of_old_ones_gets_others_but_not_again_and_again(place: Place) -> None:
    place.server.then(grant("A"), grant("B"))
    place.keys.current()
    assert not place.keys.renew()
    place.clock.now_s += 60
    assert place.keys.renew()
    assert place.keys.current() == Credentials("B", "S", "T+/=")
    assert not place.keys.renew()


def test_an_access_key_of_the_files_comes_first(place: Place) -> None:
    (place.directory / "access_key_id").write_text("K")
    (place.directory / "secret_access_key").write_text("S")
    assert place.keys.current() == Credentials("K", "S")
    assert place.server.asked == []


@pytest.mark.parametrize(
    "files", [{"role_arn": "x"}, {"role_arn": "", "token": "t"}, {"role_arn": "x", "token": "a b"}]
)
def test_half_of_it_is_damaged(files: dict[str, str]) -> None:
    with pytest.raises(Damaged):
        parse(files)


def test_a_store_of_ones_own_endpoint_grants_roles_itself(tmp_path: Path) -> None:
    with http_script() as server:
        Place(server, tmp_path).pool.close()
        settings = ObjectsSettings(source="s3://b", endpoint=server.url)
        store = open_store("s3://b", settings, str(tmp_path))
        server.then(grant("A", start_s=time.time()), say(204))
        store.delete("k")
        assert (server.asked[0].method, server.asked[0].target) == ("POST", "/")
        assert server.asked[1].headers["x-amz-security-token"] == "T+/="
        assert "Credential=A/" in server.asked[1].headers["authorization"]
        store.close()


def test_nobody_waits_for_credentials_of_a_store_that_is_closed(tmp_path: Path) -> None:
    for name in ("role_arn", "web_identity_token"):
        (tmp_path / name).write_text("a")
    with http_script() as server, ThreadPoolExecutor(1) as pool:
        server.then(*[say(500)] * 50)
        settings = ObjectsSettings(source="s3://b", endpoint=server.url, retry_timeout_s=600)
        store = open_store(settings.source, settings, str(tmp_path))
        asking = pool.submit(store.head, "a")
        while not server.asked:
            time.sleep(0.01)
        store.close()
        with pytest.raises(StoreFault):
            asking.result(60)
