"""What an application gets when a store, or the way to it, fails: real servers behind a proxy that makes faults.

Each row: tried again within the budget and no longer, the right errno at the end, counted by kind.
"""

import errno
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.servers.azurite import AzurePlace
from e2e.servers.fake_gcs import GcsPlace
from e2e.servers.fault_proxy import FaultProxy
from e2e.servers.faults import (
    EXPIRED,
    SLOW_DOWN,
    TOO_MANY,
    Answer,
    ChangeHeaders,
    CorruptAnswer,
    CorruptRequest,
    Delay,
    Drip,
    Fault,
    Hang,
    LoseAnswer,
    Reset,
    ResetInBody,
    ResetInHead,
    Truncate,
    s3_error,
)
from e2e.servers.versity import Versity
from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.opening import open_store
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault
from tests.stores.kinds import write_secrets

pytestmark = pytest.mark.timeout(120, func_only=True)

_CONTENT = random.Random(3).randbytes(200_000)
_SLACK_S = 8.0  # of a busy machine


class Place:
    """A server behind a proxy, and stores that reach it through that."""

    def __init__(self, proxy: FaultProxy, source: str, path: str, secrets: str) -> None:
        self.proxy = proxy
        self._settings = ObjectsSettings(
            source=source,
            endpoint=f"http://127.0.0.1:{proxy.port}{path}",
            request_timeout_s=5,
            retry_timeout_s=20,
        )
        self._secrets = secrets
        self._opened: list[ObjectStore] = []

    def open(self, retry_timeout_s: int = 20, request_timeout_s: int = 5) -> ObjectStore:
        """Return a store with these limits."""
        settings = replace(
            self._settings, retry_timeout_s=retry_timeout_s, request_timeout_s=request_timeout_s
        )
        self._opened.append(open_store(settings.source, settings, self._secrets))
        return self._opened[-1]

    def close(self) -> None:
        """Close all of them."""
        for store in self._opened:
            store.close()


@contextmanager
def _behind(port: int, source: str, path: str, secrets: str) -> Iterator[Place]:
    with FaultProxy(port) as proxy:
        place = Place(proxy, source, path, secrets)
        try:
            yield place
        finally:
            place.close()


@pytest.fixture
def s3(versity_server: Versity, tmp_path: Path) -> Iterator[Place]:
    """The Versity gateway."""
    place = versity_server.place
    held = write_secrets(
        tmp_path / "secrets", access_key_id=place.access_key, secret_access_key=place.secret_key
    )
    with _behind(place.port, f"s3://{place.bucket}/{tmp_path.name}", "", held) as behind:
        yield behind


@pytest.fixture(params=["s3", "gcs", "azure"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """One server of each protocol."""
    if request.param == "s3":
        yield request.getfixturevalue("s3")
        return
    if request.param == "gcs":
        gcs: GcsPlace = request.getfixturevalue("gcs_server")
        with _behind(gcs.port, f"gs://{gcs.bucket}/{tmp_path.name}", "", "") as behind:
            yield behind
        return
    azure: AzurePlace = request.getfixturevalue("azure_server")
    held = write_secrets(tmp_path / "secrets", account_name=azure.account, account_key=azure.account_key)
    source = f"az://{azure.container}/{tmp_path.name}"
    with _behind(azure.port, source, f"/{azure.account}", held) as behind:
        yield behind


def _read(store: ObjectStore, key: str = "a", **known: str) -> bytes:
    buffer = bytearray(len(_CONTENT) + 10)
    got = store.get(key, 0, memoryview(buffer), **known)
    return bytes(buffer[: got.size])


def _counts(store: ObjectStore) -> dict[str, int]:
    found: dict[str, int] = store.counts  # type: ignore[attr-defined]  # of every store that asks a server
    return found


_PASSING = [
    pytest.param(TOO_MANY, "throttled", id="429"),
    pytest.param(Answer(503, b"", {"Retry-After": "0"}), "throttled", id="503"),
    pytest.param(Answer(500, b"no document"), "server", id="500"),
    pytest.param(Answer(502, b"<html>"), "server", id="502"),
    pytest.param(Answer(504), "server", id="504"),
    pytest.param(Reset(), "reset", id="reset"),
    pytest.param(LoseAnswer(), "reset", id="answer-lost"),
    pytest.param(ResetInHead(), "reset", id="head-cut"),
]
_OF_BODIES = [
    pytest.param(ResetInBody(100_000), ("reset", "truncated"), id="reset-in-body"),
    pytest.param(Truncate(100_000), ("truncated",), id="truncated"),
    pytest.param(Truncate(0), ("truncated",), id="nothing"),
]


@pytest.mark.parametrize(("fault", "kind"), _PASSING)
def test_what_passes_is_not_noticed(any_place: Place, fault: Fault, kind: str) -> None:
    store = any_place.open()
    before = _counts(store)
    any_place.proxy.add(fault, times=2)
    info = store.put("a", [_CONTENT])
    any_place.proxy.add(fault, "GET", times=2)
    assert _read(store, etag=info.etag) == _CONTENT
    after = _counts(store)
    assert after[f"faults_{kind}"] - before[f"faults_{kind}"] >= 2
    assert after["retries"] >= 2


@pytest.mark.parametrize(("fault", "kinds"), _OF_BODIES)
def test_content_that_breaks_off_is_gone_on_with(
    any_place: Place, fault: Fault, kinds: tuple[str, ...]
) -> None:
    store = any_place.open()
    store.put("a", [_CONTENT])
    any_place.proxy.clear()
    rule = any_place.proxy.add(fault, "GET")
    assert _read(store) == _CONTENT
    assert rule.hits == 1
    counts = _counts(store)
    assert sum(counts[f"faults_{kind}"] for kind in kinds) == 1
    ranges = [
        asked.headers.get("range") or asked.headers.get("x-ms-range") for asked in any_place.proxy.asked
    ]
    assert len(ranges) == 2
    first = int((ranges[1] or "").removeprefix("bytes=").partition("-")[0])
    # What had come is not fetched again; an RST may take with it what the kernel had not given us yet.
    assert 0 <= first <= 100_000


def test_another_version_in_between_is_never_mixed_in(any_place: Place) -> None:
    store, other = any_place.open(), any_place.open()
    store.put("a", [_CONTENT])
    done = threading.Event()

    def replace_it() -> None:
        while not any(one.method == "GET" for one in any_place.proxy.asked):
            time.sleep(0.001)
        other.put("a", [_CONTENT[::-1]])
        done.set()

    thread = threading.Thread(target=replace_it)
    any_place.proxy.clear()
    any_place.proxy.add(ResetInBody(150_000), "GET")
    any_place.proxy.add(Delay(1), "GET")  # the second attempt waits, so that the new version is there by then
    thread.start()
    try:
        content = _read(store)
    except StoreFault as fault:
        assert (fault.kind, fault.errno) == (FaultKind.CHANGED, errno.ESTALE)  # noqa: PT017
    else:
        assert content in (_CONTENT, _CONTENT[::-1])
    thread.join()
    assert done.is_set()
    assert _read(store) == _CONTENT[::-1]


def test_what_is_damaged_on_its_way_to_the_store_is_sent_again(any_place: Place) -> None:
    store = any_place.open()
    rule = any_place.proxy.add(CorruptRequest(120_000), times=1)
    info = store.put("a", [_CONTENT])
    assert rule.hits == 1
    assert _read(store, etag=info.etag) == _CONTENT
    assert _counts(store)["faults_checksum"] == 1


@pytest.mark.parametrize("any_place", ["gcs", "azure"], indirect=True)
def test_what_is_damaged_on_its_way_back_is_fetched_again(any_place: Place) -> None:
    store = any_place.open()
    store.put("a", [_CONTENT])
    any_place.proxy.add(CorruptAnswer(199_999), "GET")
    assert _read(store) == _CONTENT
    assert _counts(store)["faults_checksum"] == 1


_FINAL = [
    pytest.param(s3_error(403, "AccessDenied"), FaultKind.DENIED, errno.EACCES, id="403"),
    pytest.param(Answer(401), FaultKind.DENIED, errno.EACCES, id="401"),
    pytest.param(s3_error(404, "NoSuchKey"), FaultKind.MISSING, errno.ENOENT, id="404"),
    pytest.param(s3_error(404, "NoSuchBucket"), FaultKind.MISSING, errno.ENOENT, id="bucket"),
    pytest.param(s3_error(409, "InvalidBucketState"), FaultKind.CONFLICT, errno.EBUSY, id="409"),
    pytest.param(s3_error(412, "PreconditionFailed"), FaultKind.CHANGED, errno.ESTALE, id="412"),
    pytest.param(s3_error(400, "InvalidArgument"), FaultKind.REQUEST, errno.EIO, id="400"),
    pytest.param(s3_error(400, "EntityTooLarge"), FaultKind.TOO_LARGE, errno.EFBIG, id="too-large"),
    pytest.param(s3_error(400, "KeyTooLongError"), FaultKind.REQUEST, errno.ENAMETOOLONG, id="too-long"),
    pytest.param(s3_error(501, "NotImplemented"), FaultKind.UNSUPPORTED, errno.EOPNOTSUPP, id="501"),
    pytest.param(s3_error(507, "Full"), FaultKind.REQUEST, errno.ENOSPC, id="507"),
    pytest.param(ChangeHeaders({"ETag": '"wrong"'}), FaultKind.CHANGED, errno.ESTALE, id="wrong-etag"),
]


@pytest.mark.parametrize(("fault", "kind", "number"), _FINAL)
def test_what_does_not_pass_is_told_at_once(s3: Place, fault: Fault, kind: FaultKind, number: int) -> None:
    store = s3.open()
    info = store.put("a", [_CONTENT])
    with s3.proxy.doing(fault, "GET") as rule, pytest.raises(StoreFault) as raised:
        _read(store, etag=info.etag)
    assert (raised.value.kind, raised.value.errno) == (kind, number), raised.value
    assert rule.hits <= 2  # credentials are looked at once more
    assert _counts(store)[f"faults_{kind.value}"] >= 1
    assert _read(store) == _CONTENT


def test_the_end_of_an_object_is_no_fault(s3: Place) -> None:
    store = s3.open()
    store.put("a", [_CONTENT])
    s3.proxy.add(s3_error(416, "InvalidRange"), "GET")
    info, size = store.get("a", len(_CONTENT), memoryview(bytearray(10)))
    assert info is not None
    assert (info.size, size) == (len(_CONTENT), 0)


_LASTING = [
    pytest.param(SLOW_DOWN, FaultKind.THROTTLED, errno.EIO, id="503"),
    pytest.param(TOO_MANY, FaultKind.THROTTLED, errno.EIO, id="429"),
    pytest.param(Answer(500), FaultKind.SERVER, errno.EIO, id="500"),
    pytest.param(Reset(), FaultKind.RESET, errno.EIO, id="reset"),
    pytest.param(Truncate(10), FaultKind.TRUNCATED, errno.EIO, id="truncated"),
    pytest.param(Hang(), FaultKind.TIMEOUT, errno.ETIMEDOUT, id="hang"),
    pytest.param(Drip(0.05), FaultKind.TIMEOUT, errno.ETIMEDOUT, id="drip"),
    pytest.param(Answer(200, b"no version"), FaultKind.ANSWER, errno.EIO, id="senseless"),
    pytest.param(EXPIRED, FaultKind.CREDENTIALS, errno.EACCES, id="expired"),
    pytest.param(s3_error(409, "OperationAborted"), FaultKind.CONFLICT, errno.EBUSY, id="409"),
]


@pytest.mark.parametrize(("fault", "kind", "number"), _LASTING)
def test_what_lasts_is_told_when_the_time_is_over(
    s3: Place, fault: Fault, kind: FaultKind, number: int
) -> None:
    s3.open().put("a", [_CONTENT])  # with more patience
    store = s3.open(retry_timeout_s=1, request_timeout_s=1)
    began = time.monotonic()
    with s3.proxy.doing(fault, "GET") as rule, pytest.raises(StoreFault) as raised:
        _read(store)
    took = time.monotonic() - began
    assert (raised.value.kind, raised.value.errno) == (kind, number), raised.value
    assert took < 1 + 1 + _SLACK_S
    assert 1 <= rule.hits < 30
    assert _counts(store)[f"faults_{kind.value}"] == rule.hits
    assert _read(store) == _CONTENT  # and nothing of it stays


def test_a_store_that_is_down_and_comes_back_is_waited_for(s3: Place) -> None:
    store = s3.open()
    store.put("a", [_CONTENT])
    s3.proxy.refuse()
    timer = threading.Timer(1.0, s3.proxy.accept)
    timer.start()
    assert _read(store) == _CONTENT
    timer.join()
    assert _counts(store)["faults_reset"] >= 1


def test_a_store_that_stays_down_is_told(s3: Place) -> None:
    store = s3.open(retry_timeout_s=1)
    s3.proxy.refuse()
    began = time.monotonic()
    with pytest.raises(StoreFault) as raised:
        store.head("a")
    assert (raised.value.kind, raised.value.errno) == (FaultKind.RESET, errno.EIO)
    assert time.monotonic() - began < 1 + _SLACK_S


def test_a_name_that_is_none_is_told(tmp_path: Path) -> None:
    settings = ObjectsSettings(
        source="s3://b", endpoint="http://nowhere.invalid", request_timeout_s=1, retry_timeout_s=1
    )
    store = open_store("s3://b", settings, "")
    began = time.monotonic()
    with pytest.raises(StoreFault) as raised:
        store.head("a")
    assert (raised.value.kind, raised.value.errno) == (FaultKind.NAME, errno.EHOSTUNREACH)
    assert time.monotonic() - began < 2 + _SLACK_S
    store.close()


def test_a_storm_slows_its_own_prefix_only_and_ends(s3: Place) -> None:
    store = s3.open(retry_timeout_s=60)
    for key in ("calm/a", "storm/a"):
        store.put(key, [_CONTENT])
    s3.proxy.clear()
    with ThreadPoolExecutor(8) as pool:
        with s3.proxy.doing(SLOW_DOWN, "GET", "/storm/") as rule:
            stormy = [pool.submit(_read, store, "storm/a") for _ in range(6)]
            while rule.hits < 12:
                time.sleep(0.01)
            calm = [pool.submit(_read, store, "calm/a") for _ in range(10)]
            assert all(one.result(30) == _CONTENT for one in calm)
            assert not any(one.done() for one in stormy)
        assert all(one.result(60) == _CONTENT for one in stormy)
    counts = _counts(store)
    assert counts["faults_throttled"] == rule.hits
    assert sum(counts[f"faults_{kind.value}"] for kind in FaultKind) == rule.hits


def test_a_lost_answer_is_no_failure_of_what_was_done(any_place: Place) -> None:
    store, proxy = any_place.open(), any_place.proxy
    lost = proxy.add(LoseAnswer(), "", r".")
    info = store.put("a", [b"once"], if_absent=True)
    assert lost.hits == 1
    assert store.head("a").etag == info.etag
    proxy.add(LoseAnswer(), "", r".")
    other = store.put("a", [b"twice"], if_match=info.etag)
    proxy.add(LoseAnswer(), "DELETE")
    store.delete("a")
    assert other.etag != info.etag
    with pytest.raises(StoreFault) as raised:
        store.head("a")
    assert raised.value.kind is FaultKind.MISSING


def test_a_lost_answer_to_the_end_of_an_upload_is_none(any_place: Place) -> None:
    store, proxy = any_place.open(), any_place.proxy
    upload = store.begin_upload("a", tag="t")
    parts = [store.put_part("a", upload, 1, [_CONTENT])]
    ends = r"uploadId=[^&]+$|/compose|comp=blocklist"
    lost = proxy.add(LoseAnswer(), "", ends)
    info = store.complete("a", upload, parts, if_absent=True)
    assert lost.hits == 1
    assert (store.head("a").etag, store.tag_of("a")[1]) == (info.etag, "t")
    assert _read(store) == _CONTENT


def test_a_call_that_hangs_does_not_stop_others(s3: Place) -> None:
    store = s3.open(request_timeout_s=2)
    store.put("a", [_CONTENT])
    store.put("b", [_CONTENT])
    with ThreadPoolExecutor(2) as pool, s3.proxy.doing(Hang(), "GET", "/a$") as rule:
        hanging = pool.submit(_read, store, "a")
        while not rule.hits:
            time.sleep(0.005)
        assert _read(store, "b") == _CONTENT
        assert not hanging.done()
        s3.proxy.clear()
        assert hanging.result(30) == _CONTENT


def _rotate(directory: Path, access: str, secret: str) -> None:
    """Exchange both files at once, as kubelet does it."""
    version = directory / f"..{access}"
    write_secrets(version, access_key_id=access, secret_access_key=secret)
    (directory / "..new").symlink_to(version.name)
    (directory / "..new").rename(directory / "..data")
    for name in ("access_key_id", "secret_access_key"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


def test_rotated_credentials_are_used_by_the_same_store(versity_server: Versity, tmp_path: Path) -> None:
    held = tmp_path / "rotated"
    held.mkdir()
    versity_server.set_users({"first": "first-secret", "second": "second-secret"})
    _rotate(held, "first", "first-secret")
    place = versity_server.place
    with _behind(place.port, f"s3://{place.bucket}/{tmp_path.name}", "", str(held)) as behind:
        store = behind.open()
        store.put("a", [_CONTENT])
        versity_server.set_users({"second": "second-secret"})
        renewing = threading.Timer(0.7, _rotate, (held, "second", "second-secret"))
        renewing.start()
        with ThreadPoolExecutor(6) as pool:  # none of them notices
            assert all(one == _CONTENT for one in pool.map(lambda _: _read(store), range(24)))
        renewing.join()
        store.put("b", [_CONTENT])
        assert "Credential=second/" in behind.proxy.asked[-1].headers["Authorization"]
        assert _counts(store)["faults_credentials"] >= 1
        versity_server.set_users({})
        short = behind.open(retry_timeout_s=1)
        with pytest.raises(StoreFault) as raised:
            short.head("a")
        assert (raised.value.kind, raised.value.errno) == (FaultKind.CREDENTIALS, errno.EACCES)
        assert "second-secret" not in str(raised.value)
