"""A pool in a bucket: volumes that are prefixes, whatever dies, waits or comes at once."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from csi.bucket_layout import data_prefix, id_with, name_of
from csi.faults import BeyondRange, NotFound, PoolClosed, WrongState
from csi.hidden_texts import HiddenTexts
from csi.provision_plan import check_same
from csi.provision_request import CAPACITY_MAX_BYTES, CapacityRange, SnapshotRequest
from csi.volume_ids import id_of_name, is_id
from csi.volume_state import Content, Kind, encode_volume
from sidemount.model.errors import (
    BadMessage,
    HostFailure,
    InvalidRequest,
    NotReady,
    PolicyDenied,
    PublishConflict,
    VolumeError,
)
from sidemount.model.facts import VolumeFacts
from sidemount.model.provisioned import provisioned_id_fault
from sidemount.stores.faults import fault
from sidemount.stores.store import FaultKind, Page
from tests.csi.bucket_world import POOL, Bucket, Died, bucket_class, code_of, facts_of, request_of, with_keys

STRANGERS = [
    "elsewhere",
    "pool2/volumes/v.000000000000/x",
    "pool/volumes/v",
    "pool/volumes/v.0",
    "pool/other",
]


@pytest.fixture
def bucket() -> Bucket:
    """Return a bucket with objects of others."""
    made = Bucket()
    for key in STRANGERS:
        made.put(key)
    return made


def _own(bucket: Bucket) -> list[str]:
    found = bucket.held()
    assert set(STRANGERS) <= set(found)
    return sorted(set(found) - set(STRANGERS))


def _fill(bucket: Bucket, id_: str, count: int = 3) -> None:
    for number in range(count):
        bucket.put(f"pool/volumes/{id_}/d/{number:05d}")
    bucket.put(f"pool/volumes/{id_}x")  # begins as the volume does, and is none of it
    bucket.store.begin_upload(f"pool/volumes/{id_}/unfinished")


def _without(bucket: Bucket, id_: str) -> None:
    bucket.store.delete(f"pool/volumes/{id_}x")


def test_a_volume_is_a_prefix_of_its_own(bucket: Bucket) -> None:
    """S4-10, S4-22: what its publishers are told is that prefix and nothing of the pool around it."""
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("pvc-1", 5 << 30, fileMode="0600"))
    assert name_of(made.id) == "pvc-1"
    assert is_id(made.id)
    assert provisioned_id_fault(made.id) == ""
    assert made.context == {"class": "pooled", "source": POOL, "volume": made.id, "fileMode": "0600"}
    assert (made.capacity_bytes, made.limit_bytes) == (5 << 30, 0)
    assert pool.volume(made.id) == pool.named("pvc-1") == made
    assert pool.ids(Kind.VOLUME) == ["pvc-1"]
    assert pool.states(Kind.VOLUME, ["pvc-1", "pvc-2"]) == {"pvc-1": made}
    assert _own(bucket) == ["pool/.sidemount/volumes/pvc-1.json"]
    assert pool.available_bytes() == pool.size_bytes() == CAPACITY_MAX_BYTES


def test_the_same_name_is_the_same_volume(bucket: Bucket) -> None:
    """S4-11: for another controller, too; with other parameters it is another volume's name."""
    made = bucket.pool().make_volume(bucket.plan("v", 10))
    assert bucket.pool().make_volume(bucket.plan("v", 99)) == made
    check_same(request_of("v", 10), made)
    for other in (
        request_of("v", 11),
        request_of("v", 10, fileMode="0600"),
        replace(request_of("v", 10), name="w"),
    ):
        with pytest.raises(PublishConflict):
            check_same(other, made)


def test_a_later_volume_of_the_same_name_has_nothing_of_the_earlier(bucket: Bucket) -> None:
    """Nor does who still has the earlier one mounted, or deletes it again, reach it."""
    pool = bucket.pool()
    first = pool.make_volume(bucket.plan("v"))
    _fill(bucket, first.id)
    assert pool.remove(Kind.VOLUME, first.id)
    second = pool.make_volume(bucket.plan("v"))
    assert second.id != first.id
    bucket.put(f"pool/volumes/{first.id}/late")
    bucket.put(f"pool/volumes/{second.id}/new")
    assert not pool.remove(Kind.VOLUME, first.id)
    assert pool.volume(first.id) is None
    assert pool.volume(second.id) == second
    assert f"pool/volumes/{second.id}/new" in _own(bucket)


def test_deleting_removes_all_of_it_and_nothing_else(bucket: Bucket) -> None:
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("v"))
    _fill(bucket, made.id, 2500)
    bucket.store.begin_upload("pool/other")
    assert pool.remove(Kind.VOLUME, made.id)
    assert _own(bucket) == [f"pool/volumes/{made.id}x"]
    assert [key for key, _, _ in bucket.store.uploads("")] == ["pool/other"]
    assert pool.unfinished() == []
    assert not pool.remove(Kind.VOLUME, made.id)


@pytest.mark.parametrize(
    "id_",
    [
        *("v", "", "v.000000000000", "../x.000000000000", "other", "v.0", "pvc-1.ABCDEF012345"),
        *(
            "a//b.000000000000",
            "\0.000000000000",
            ".000000000000",
            "é.000000000000",
            "x" * 1000 + ".000000000000",
        ),
    ],
)
def test_deleting_what_was_not_provisioned_touches_nothing(bucket: Bucket, id_: str) -> None:
    """S4-22: what no volume can be called never becomes part of a key."""

    def hear(number: int, name: str) -> None:
        assert is_id(id_), "the store was asked for it"

    bucket.pool().make_volume(bucket.plan("keep"))
    pool = bucket.pool(hear)
    before = bucket.held()
    assert not pool.remove(Kind.VOLUME, id_)
    assert not pool.remove(Kind.SNAPSHOT, id_)
    assert pool.volume(id_) is None
    assert bucket.held() == before


@pytest.mark.parametrize(
    "name",
    [
        *(
            "pvc-6e2d",
            "a" * 128,
            "ünï/cødé\n",
            "../../etc",
            "a/b",
            ".sidemount",
            "v.0123456789ab",
            "%2e%2e%2f",
        ),
        *("x" * 48, "x" * 49, "csi-" + "0" * 40, " ", "日本語" * 14),
    ],
)
def test_wild_names(bucket: Bucket, name: str) -> None:
    """S4-22: each has a volume of its own, beneath the pool, and none is another's."""
    pool = bucket.pool()
    other = pool.make_volume(bucket.plan("v"))
    made = pool.make_volume(bucket.plan(name))
    assert (made.name, is_id(made.id)) == (name, True)
    assert provisioned_id_fault(made.id) == ""
    assert made.id != other.id
    assert pool.make_volume(bucket.plan(name)) == made
    assert sorted(pool.ids(Kind.VOLUME)) == sorted(["v", id_of_name(name)])
    _fill(bucket, made.id)
    assert pool.remove(Kind.VOLUME, made.id)
    _without(bucket, made.id)
    assert _own(bucket) == ["pool/.sidemount/volumes/v.json"]


# Kills -----------------------------------------------------------------------------------------------


def _story(bucket: Bucket, hear: Callable[[int, str], None] = lambda number, name: None) -> None:
    pool = bucket.pool(hear)
    made = pool.make_volume(bucket.plan("v", 10))
    assert pool.named("v") == made
    _fill(bucket, made.id)
    assert pool.expand(made.id, CapacityRange(required_bytes=20)).capacity_bytes == max(
        made.capacity_bytes, 20
    )
    assert pool.remove(Kind.VOLUME, made.id)
    assert pool.named("v") is None
    assert pool.remove(Kind.VOLUME, pool.make_volume(bucket.plan("v", 10)).id)


def test_a_kill_at_any_call_of_the_store() -> None:
    """S4-21, S4-01: one volume or none, always; the same calls again come to the same, and nothing is left."""
    total = 0

    def count(number: int, name: str) -> None:
        nonlocal total
        total = number

    _story(Bucket(), count)
    assert total > 60
    for last in range(1, total + 1):

        def die(number: int, name: str, last: int = last) -> None:
            if number == last:
                raise Died

        bucket = Bucket()
        with pytest.raises(Died):
            _story(bucket, die)
        after = bucket.pool()
        there = after.named("v")
        assert len(after.states(Kind.VOLUME, after.ids(Kind.VOLUME))) == (there is not None)
        if there is not None:
            assert after.make_volume(bucket.plan("v", 10)) == there
            assert after.volume(there.id) == there
        if last % 2:  # what is left over is settled, or is met by the same calls
            for name in after.unfinished():
                after.settle(name)
            assert after.unfinished() == []
            assert after.named("v") == there
        _story(bucket)
        for name in after.unfinished():
            after.settle(name)
        strays = [key for key in bucket.held() if not key.endswith("x")]
        assert strays == [], f"killed at {last} of {total}"
        assert [key for key, _, _ in bucket.store.uploads("")] == []


def test_a_removal_goes_on_where_it_was(bucket: Bucket) -> None:
    made = bucket.pool().make_volume(bucket.plan("v"))
    _fill(bucket, made.id, 2500)
    pages = itertools.count()

    def die(number: int, name: str) -> None:
        if (
            name == "delete_many" and next(pages) == 3
        ):  # before and after the first page, before the second, after it
            raise Died

    with pytest.raises(Died):
        bucket.pool(die).remove(Kind.VOLUME, made.id)
    after = bucket.pool()
    assert len(_own(bucket)) == 500 + 2
    assert after.volume(made.id) is None
    assert after.unfinished() == [f"volume-{made.id}"]
    assert after.remove(Kind.VOLUME, made.id)
    assert _own(bucket) == [f"pool/volumes/{made.id}x"]


def test_a_removal_ends_when_the_controller_does(bucket: Bucket) -> None:
    made = bucket.pool().make_volume(bucket.plan("v"))
    _fill(bucket, made.id, 1500)

    def end(number: int, name: str) -> None:
        if name == "delete_many":
            pool.stop()

    pool = bucket.pool(end)
    with pytest.raises(NotReady, match="ending"):
        pool.remove(Kind.VOLUME, made.id)
    assert bucket.pool().unfinished() == [f"volume-{made.id}"]


# At once ---------------------------------------------------------------------------------------------


def test_many_controllers_make_one_volume(bucket: Bucket) -> None:
    gate = threading.Barrier(8)
    found: list[str] = []

    def hear(number: int, name: str) -> None:
        if name == "put" and number < 10:
            time.sleep(0.001)

    def make() -> None:
        pool = bucket.pool(hear)
        gate.wait(10)
        found.append(pool.make_volume(bucket.plan("v")).id)

    _at_once([make] * 8)
    assert len(found) == 8
    assert len(set(found)) == 1


def test_controllers_that_make_and_remove_at_once(bucket: Bucket) -> None:
    """Whatever was answered and not removed since is there; and each name has one volume, and nobody else's objects."""
    kept: dict[str, str] = {}

    def work(seed: int) -> None:
        chance = random.Random(seed)

        def hear(number: int, name: str) -> None:
            if chance.random() < 0.2:
                time.sleep(0.0002)

        pool = bucket.pool(hear)
        for _ in range(30):
            name = f"v{chance.randrange(3)}"
            made = pool.make_volume(bucket.plan(name))
            bucket.put(f"pool/volumes/{made.id}/by-{seed}")
            if chance.random() < 0.7:
                pool.remove(Kind.VOLUME, made.id)
                for left in pool.unfinished():
                    pool.settle(left)
        mine = pool.make_volume(bucket.plan(f"own-{seed}"))
        kept[f"own-{seed}"] = mine.id

    _at_once([partial(work, seed) for seed in range(4)])
    pool = bucket.pool()
    for left in pool.unfinished():
        pool.settle(left)
    listed = pool.states(Kind.VOLUME, pool.ids(Kind.VOLUME))
    for name, id_ in kept.items():
        assert listed[name].id == id_
    for name in ("v0", "v1", "v2"):
        made = pool.make_volume(bucket.plan(name))
        assert listed.get(name, made) == made
        pool.remove(Kind.VOLUME, made.id)
        assert pool.named(name) is None


def _at_once(works: list[Callable[[], None]]) -> None:
    faults: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []


def test_a_controller_that_was_stopped_for_long_removes_no_later_volume(bucket: Bucket) -> None:
    """It wakes up between looking at the record and removing it; meanwhile the name has another volume."""
    first = bucket.pool().make_volume(bucket.plan("v"))
    second: list[Any] = []

    def hear(number: int, name: str) -> None:
        if name == "delete_version" and not second:
            second.append(None)
            other = bucket.pool()
            other.remove(Kind.VOLUME, first.id)
            second[0] = other.make_volume(bucket.plan("v"))

    assert bucket.pool(hear).remove(Kind.VOLUME, first.id)
    assert bucket.pool().named("v") == second[0]
    assert second[0].id != first.id


def test_a_listing_asks_once_for_each_volume_and_once_for_what_is_gone(bucket: Bucket) -> None:
    """Two requests for each of some thousands last longer than a caller waits."""
    calls: list[str] = []
    pool = bucket.pool(lambda number, name: calls.append(name))
    made = {name: pool.make_volume(bucket.plan(name)) for name in (f"v{number}" for number in range(20))}
    bucket.put(f"pool/.sidemount/gone/{made.pop('v7').id}")
    calls.clear()
    assert pool.states(Kind.VOLUME, [f"v{number}" for number in range(20)]) == made
    assert Counter(calls) == {"get": 2 * 20, "list_page": 2}  # each is heard before and after


# What is asked for -----------------------------------------------------------------------------------


def test_a_volume_that_grows_while_it_is_removed_does_not_come_back(bucket: Bucket) -> None:
    """Another controller may have looked at it before it was gone, and write its record anew just before that is removed."""
    late = bucket.pool()
    made = late.make_volume(bucket.plan("v", 1))
    growing = iter([2])

    def hear(number: int, name: str) -> None:
        if name == "delete_version" and next(growing, None):
            record = "pool/.sidemount/volumes/v.json"
            buffer = memoryview(bytearray(1 << 16))
            info, size = bucket.store.get(record, 0, buffer)
            assert info is not None
            larger = bytes(buffer[:size]).replace(b'"capacityBytes": 1,', b'"capacityBytes": 2,')
            bucket.store.put(record, [larger], if_match=info.etag)

    assert bucket.pool(hear).remove(Kind.VOLUME, made.id)
    assert next(growing, None) is None
    assert late.volume(made.id) is None
    assert _own(bucket) == []


@pytest.mark.parametrize("lie", ["get", "delete_version"])
def test_one_false_answer_brings_no_volume_back(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    """A proxy that answers 404 to the record's read, or 200 to its removal, once."""
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("v"))
    lies: list[str] = []
    honest = getattr(bucket.store, lie)

    def answer(key: str, *given: Any, **named: Any) -> Any:
        is_after = any("/gone/" in held for held in bucket.held())
        if lies or not is_after or not key.endswith("v.json"):
            return honest(key, *given, **named)
        lies.append(key)
        if lie == "get":
            raise fault(FaultKind.MISSING, "404")
        return None

    monkeypatch.setattr(bucket.store, lie, answer)
    assert pool.remove(Kind.VOLUME, made.id)
    assert len(lies) == 1
    assert _own(bucket) == []


def test_a_size_is_told_and_no_limit(bucket: Bucket) -> None:
    """A claim asks for one; growing it changes what is told, and never lowers it."""
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("v", 10))
    assert pool.expand(made.id, CapacityRange(30, 40)).capacity_bytes == 30
    assert pool.expand(made.id, CapacityRange(20)).capacity_bytes == 30
    assert bucket.pool().volume(made.id) == replace(made, capacity_bytes=30)
    with pytest.raises(BeyondRange):
        pool.expand(made.id, CapacityRange(5, 20))
    for gone in ("v.000000000000", "nothing"):
        with pytest.raises(NotFound):
            pool.expand(gone, CapacityRange(30))
    with pytest.raises(InvalidRequest, match="has no limit"):
        bucket.plan("w", 10, enforceCapacity="true")
    assert bucket.plan("w", 10, enforceCapacity="false").limit_bytes == 0


def test_there_are_no_copies(bucket: Bucket) -> None:
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("v"))
    assert not pool.has_copies
    with pytest.raises(InvalidRequest, match="no snapshots and no clones"):
        pool.make_snapshot(SnapshotRequest(id="s", name="s", source_volume_id=made.id))
    with pytest.raises(InvalidRequest, match="no snapshots and no clones"):
        pool.make_volume(bucket.plan("c", content=Content(kind=Kind.VOLUME, id=made.id)))
    assert (pool.ids(Kind.SNAPSHOT), pool.snapshot("s"), pool.states(Kind.SNAPSHOT, ["s"])) == ([], None, {})


def test_where_a_bucket_is_is_said_by_its_class(bucket: Bucket) -> None:
    with pytest.raises(InvalidRequest, match='"endpoint" is the class'):
        bucket.plan("v", endpoint="http://other")
    bucket.pool().ids(Kind.VOLUME)
    _, settings, _ = bucket.opened[0]
    assert (settings.endpoint, settings.path_style, settings.region) == ("http://store", True, "")
    bucket.facts = facts_of(bucket_class(), bucket_class("other", options={}))
    with pytest.raises(PoolClosed, match="in different places"):
        bucket.pool().ids(Kind.VOLUME)


def test_a_class_may_write_its_pool_with_a_slash() -> None:
    bucket = Bucket(bucket_class(source=f"{POOL}/"))
    made = bucket.pool().make_volume(bucket.plan("v", source=POOL))
    assert made.context["source"] == f"{POOL}/"


# The pool itself -------------------------------------------------------------------------------------


def test_an_empty_bucket_is_no_pool_that_was_full(bucket: Bucket, tmp_path: Path) -> None:
    """Another server, or a bucket made anew: nothing is taken for deleted."""
    pool = bucket.pool(state_dir=str(tmp_path))
    made = pool.make_volume(bucket.plan("v"))
    for key in bucket.held():
        bucket.store.delete(key)
    bucket.store.delete("pool/.sidemount/pool")
    named = VolumeFacts(
        name="pv", driver="csi.sidemount.io", handle="v", access_modes=frozenset(), attributes={}
    )
    for again in (
        pool,
        bucket.pool(state_dir=str(tmp_path)),
        bucket.pool(is_named=lambda pool: named.driver != "" and pool == POOL),
    ):
        for call in (
            lambda: again.remove(Kind.VOLUME, made.id),  # noqa: B023 - called before the next
            lambda: again.volume(made.id),  # noqa: B023
            lambda: again.ids(Kind.VOLUME),  # noqa: B023
            lambda: again.make_volume(bucket.plan("w")),  # noqa: B023
        ):
            with pytest.raises(NotReady, match="is not there"):
                call()
    bucket.store.put("pool/.sidemount/pool", [b"another"])
    with pytest.raises(NotReady, match="another pool"):
        pool.volume(made.id)
    assert bucket.pool().volume(made.id) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[" * 70_000, b'{"version": 99}', b"null"])
def test_a_damaged_record_is_told_of_and_hides_no_other(bucket: Bucket, content: bytes) -> None:
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("v"))
    bucket.store.put("pool/.sidemount/volumes/bad.json", [content])
    assert pool.states(Kind.VOLUME, pool.ids(Kind.VOLUME)) == {"v": made}
    for call in (
        lambda: pool.make_volume(bucket.plan("bad")),
        lambda: pool.remove(Kind.VOLUME, id_with("bad", "0" * 12)),
    ):
        with pytest.raises(BadMessage):
            call()
    assert bucket.store.head("pool/.sidemount/volumes/bad.json")


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ('"class": "pooled"', '"class": "\\ud800"'),
        ('"volume": "bad.', '"volume": "v.'),
        ('"id": "bad.', '"id": "v.'),
        ('"class"', '"other"'),
    ],
)
def test_a_record_that_is_of_no_volume_here_is_none(bucket: Bucket, text: str, instead: str) -> None:
    pool = bucket.pool()
    made, bad = pool.make_volume(bucket.plan("v")), pool.make_volume(bucket.plan("bad"))
    damaged = encode_volume(bad).replace(text, instead)
    assert damaged != encode_volume(bad)
    bucket.store.put("pool/.sidemount/volumes/bad.json", [damaged.encode()])
    assert pool.states(Kind.VOLUME, pool.ids(Kind.VOLUME)) == {"v": made}
    with pytest.raises(BadMessage):
        pool.volume(bad.id)


def test_what_is_no_record_is_listed_as_none(bucket: Bucket) -> None:
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("v"))
    for name in ("v", "v.json.json", "v.json/x", "x/v.json", ""):
        bucket.put(f"pool/.sidemount/volumes/{name}")
    assert pool.states(Kind.VOLUME, pool.ids(Kind.VOLUME)) == {"v": made}
    assert pool.ids(Kind.VOLUME).count("v") == 1


def test_a_store_that_lists_what_is_not_asked_for_removes_nothing(bucket: Bucket) -> None:
    made = bucket.pool().make_volume(bucket.plan("v"))
    _fill(bucket, made.id)
    pool = bucket.pool()
    listed = bucket.store.list_page

    def everything(prefix: str, **named: Any) -> Any:
        return listed("" if prefix == "pool/" + data_prefix(made.id) else prefix, **named)

    bucket.store.list_page = everything  # type: ignore[method-assign]
    before = len(_own(bucket))
    with pytest.raises(HostFailure, match="nothing is removed"):
        pool.remove(Kind.VOLUME, made.id)
    assert len(_own(bucket)) >= before - 1
    assert set(STRANGERS) <= set(bucket.held())


def test_pages_that_are_empty_and_not_the_last(bucket: Bucket) -> None:
    """As Azure answers. A store that keeps what it says it has removed is told of."""
    pool = bucket.pool()
    made = pool.make_volume(bucket.plan("v"))
    _fill(bucket, made.id, 5)
    listed = bucket.store.list_page

    def with_gaps(prefix: str, *, token: str = "", **named: Any) -> Any:
        if not token.startswith("!"):
            return Page([], [], f"!{token}")
        page = listed(prefix, token=token[1:], **{**named, "most": 2})
        return page

    bucket.store.list_page = with_gaps  # type: ignore[method-assign]
    assert pool.ids(Kind.VOLUME) == ["v"]
    assert pool.remove(Kind.VOLUME, made.id)
    bucket.store.list_page = listed  # type: ignore[method-assign]
    assert _own(bucket) == [f"pool/volumes/{made.id}x"]
    again = pool.make_volume(bucket.plan("v"))
    bucket.put(f"pool/volumes/{again.id}/held")
    bucket.store.delete_many = lambda keys: None  # type: ignore[method-assign]
    with pytest.raises(NotReady, match="says that it was removed"):
        pool.remove(Kind.VOLUME, again.id)
    assert pool.unfinished() == [f"volume-{again.id}"]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (FaultKind.DENIED, "PERMISSION_DENIED"),
        (FaultKind.CREDENTIALS, "FAILED_PRECONDITION"),
        (FaultKind.THROTTLED, "UNAVAILABLE"),
        (FaultKind.SERVER, "UNAVAILABLE"),
        (FaultKind.TIMEOUT, "UNAVAILABLE"),
        (FaultKind.RESET, "UNAVAILABLE"),
        (FaultKind.NAME, "UNAVAILABLE"),
        (FaultKind.TLS, "UNAVAILABLE"),
        (FaultKind.CONFLICT, "ABORTED"),
        (FaultKind.REQUEST, "INTERNAL"),
        (FaultKind.UNSUPPORTED, "FAILED_PRECONDITION"),
    ],
)
def test_what_a_store_refuses_has_its_code_and_its_reason(bucket: Bucket, kind: FaultKind, code: str) -> None:
    made = bucket.pool().make_volume(bucket.plan("v"))

    def refuse(number: int, name: str) -> None:
        raise fault(kind, "the store's own words")

    pool = bucket.pool(refuse)
    for call in (
        lambda: pool.make_volume(bucket.plan("v")),
        lambda: pool.remove(Kind.VOLUME, made.id),
        lambda: pool.ids(Kind.VOLUME),
        lambda: pool.expand(made.id, CapacityRange(5)),
        lambda: pool.states(Kind.VOLUME, ["v"]),
    ):
        assert code_of(call) == code
        with pytest.raises(VolumeError, match=f"{POOL}: the store's own words"):
            call()
    assert bucket.pool().volume(made.id) == made


def test_a_bucket_that_is_not_there() -> None:
    bucket = Bucket()

    def refuse(number: int, name: str) -> None:
        raise fault(FaultKind.MISSING, "no such bucket")

    pool = bucket.pool(refuse)
    for call in (
        lambda: pool.make_volume(bucket.plan("v")),
        lambda: pool.ids(Kind.VOLUME),
        lambda: pool.named("v"),
    ):
        with pytest.raises(WrongState, match="no such bucket"):
            call()


# Credentials -----------------------------------------------------------------------------------------


def test_credentials_come_with_the_call_and_go_with_it(bucket: Bucket) -> None:
    """S4-26: as files in memory that the store reads, of the class's keys alone."""
    bucket.facts = facts_of(with_keys())
    seen: dict[str, str] = {}

    def hear(number: int, name: str) -> None:
        directory = Path(bucket.opened[-1][2])
        seen.update({path.name: path.read_text() for path in directory.iterdir()})
        assert all(path.is_symlink() for path in directory.iterdir())

    secrets = HiddenTexts(access_key_id="me", secret_access_key="c4nary", other="x")
    made = bucket.pool(hear).bound(secrets).make_volume(bucket.plan("v"))
    assert seen == {"access_key_id": "me", "secret_access_key": "c4nary"}
    assert not Path(bucket.opened[-1][2]).exists()
    assert all(b"c4nary" not in bytes(bucket.store._objects[key][1]) for key in bucket.held())
    assert "c4nary" not in str(made)


def test_credentials_of_the_controller_are_its_classes_directory(bucket: Bucket, tmp_path: Path) -> None:
    bucket.facts = facts_of(with_keys("first"), with_keys("second"))
    pool = bucket.pool(secrets_dir=str(tmp_path))
    for call in (
        lambda: pool.ids(Kind.VOLUME),
        lambda: pool.named("v"),
        lambda: pool.expand("v.0123456789ab", CapacityRange(1)),
    ):
        with pytest.raises(PoolClosed, match="no credentials"):
            call()
    assert pool.unfinished() == []
    (tmp_path / "second").mkdir()
    pool.ids(Kind.VOLUME)
    assert bucket.opened[-1][2] == f"{tmp_path}/second"
    pool.bound(HiddenTexts(other="x")).ids(Kind.VOLUME)
    assert bucket.opened[-1][2] == f"{tmp_path}/second"


def test_a_class_that_needs_no_credentials_asks_without(bucket: Bucket) -> None:
    bucket.facts = facts_of(with_keys(required=False))
    bucket.pool().ids(Kind.VOLUME)
    assert bucket.opened[-1][2] == ""


def test_a_pool_that_no_class_serves(bucket: Bucket) -> None:
    bucket.facts = facts_of(bucket_class(sources=("memory://bucket/other",)))
    with pytest.raises(PoolClosed, match="no driver class"):
        bucket.pool().ids(Kind.VOLUME)
    with pytest.raises(PolicyDenied):
        bucket.plan("v")
