"""Facts from watches are those of the API server, whatever happens on the way (design §5, §11)."""

import asyncio
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidemount.host.backoff import Backoff
from sidemount.host.cluster_reader import ClusterReader, ReadLimits, Trouble
from sidemount.host.kind_watch import KindWatch
from sidemount.host.live_kinds import CLAIM, KINDS, LIMIT_RANGE, NODE, RESOURCE_QUOTA
from sidemount.host.live_store import LiveStore
from sidemount.host.sharded_map import GONE, ShardedMap
from sidemount.model.errors import NotReady
from tests.webhook.limit_ranger import limit_range, quota
from tests.webhook.live import PACE, configure, differences, fill, live_facts, same, until
from tests.webhook.watched_apiserver import (
    WatchedApiServer,
    claim,
    namespace,
    node,
    volume,
    watched_apiserver,
)


def errors(facts: object, kind: str) -> dict[Trouble, int]:
    report = next(report for report in facts.kinds() if report.kind == kind)  # type: ignore[attr-defined]
    return dict(report.errors)


def lists(facts: object, kind: str) -> int:
    return next(report.lists for report in facts.kinds() if report.kind == kind)  # type: ignore[attr-defined,no-any-return]


@pytest.mark.asyncio
async def test_lists_come_in_pages_and_events_follow() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        server.page_max = 7
        for number in range(40):
            await server.put(claim(f"c{number:02}", f"ns{number % 3}", f"pv{number}"))
        async with live_facts(server) as facts:
            assert not differences(facts.facts(), server)
            assert server.count("list", "persistentvolumeclaims") >= 6
            await server.put(claim("new", "ml", "pv-new"))
            await server.put(namespace("ml", enabled=False))
            await server.delete("PersistentVolumeClaim", "c00", "ns0")
            await server.put(node("old", "v1.28.1"))
            await same(facts, server)
            assert facts.facts().cluster().server_version == (1, 28)


@pytest.mark.asyncio
async def test_an_expired_continue_token_begins_the_list_again() -> None:
    async with watched_apiserver() as server:
        server.page_max, server.expire_tokens = 3, 2
        for number in range(10):
            await server.put(claim(f"c{number}", "ml"))
        async with live_facts(server) as facts:
            assert not differences(facts.facts(), server)
            assert errors(facts, "PersistentVolumeClaim") == {Trouble.EXPIRED: 2}


@pytest.mark.asyncio
async def test_a_page_that_is_too_large_is_asked_for_in_smaller_parts() -> None:
    async with watched_apiserver() as server:
        for number in range(60):
            await server.put(claim(f"c{number}", "ml") | {"status": {"noise": "x" * 4000}})
        async with live_facts(server, reads=ReadLimits(page_bytes=40_000)) as facts:
            assert not differences(facts.facts(), server)


@pytest.mark.parametrize("in_stream", [False, True], ids=["answer", "event"])
@pytest.mark.asyncio
async def test_history_that_is_gone_leads_to_a_new_list(in_stream: bool) -> None:
    async with watched_apiserver() as server:
        await fill(server)
        server.gone_in_stream = in_stream
        async with live_facts(server) as facts:
            before = lists(facts, "Namespace")
            server.is_frozen = True
            await server.delete("Namespace", "web")
            await server.put(namespace("fresh"))
            await server.compact()
            server.is_frozen = False
            await same(facts, server)
            assert lists(facts, "Namespace") > before
            await server.put(namespace("later"))
            await same(facts, server)


@pytest.mark.parametrize("how", ["drop", "close", "garbage", "cut"])
@pytest.mark.asyncio
async def test_a_watch_that_ends_is_resumed_without_a_new_list(how: str) -> None:
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            for number in range(2):
                await server.put(namespace(f"before-{number}"))
                await same(facts, server)
                await server.end_streams(how)
                await server.put(namespace(f"after-{number}"))
                await same(facts, server)
            assert lists(facts, "Namespace") == 1


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"null\n",
        b"[" * 5000 + b"\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n',
        b'{"type":"SURPRISE","object":{"metadata":{"name":"x","resourceVersion":"999"}}}\n',
        b'{"type":"ERROR","object":{}}\n',
        b"\xff\xfe\n",
        b'{"type":"MODIFIED","object":{"kind":"Status","metadata":{"resourceVersion":"100"}}}\n',
    ],
)
@pytest.mark.asyncio
async def test_a_line_of_nonsense_loses_nothing(line: bytes) -> None:
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            server.raw_lines.append(line)
            await server.tell()
            await until(lambda: not server.raw_lines, "nobody took the line")
            await server.put(namespace("after"))
            await server.put(claim("after", "ml"))
            await same(facts, server)


@pytest.mark.asyncio
async def test_an_event_larger_than_any_object_ends_the_stream_not_the_service() -> None:
    reads = ReadLimits(line_bytes=10_000)
    async with watched_apiserver() as server, live_facts(server, reads=reads) as facts:
        server.raw_lines.append(b"x" * 50_000)
        await server.tell()
        await until(lambda: any(Trouble.TOO_LARGE in r.errors for r in facts.kinds()), "it was taken")
        await server.put(namespace("after"))
        await same(facts, server)


@pytest.mark.asyncio
async def test_a_silent_stream_is_taken_for_dead() -> None:
    async with watched_apiserver() as server, live_facts(server, reads=ReadLimits(idle_s=0.3)) as facts:
        server.is_frozen = True
        await server.put(namespace("unseen"))
        await until(lambda: errors(facts, "Namespace").get(Trouble.TIMEOUT, 0) > 0, "it is still waited for")
        server.is_frozen = False
        await same(facts, server)


@pytest.mark.asyncio
async def test_bookmarks_keep_the_place_when_history_goes() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            for number in range(3):
                await server.put(node(f"n{number}"))
            await same(facts, server)
            for _ in KINDS:
                await server.bookmark()
                await until(lambda: not server.raw_lines, "nobody took the bookmark")
            assert lists(facts, "Namespace") == 1


@pytest.mark.parametrize("code", [429, 500, 503, 401, 404])
@pytest.mark.asyncio
async def test_every_refusal_is_tried_again(code: int) -> None:
    async with watched_apiserver() as server:
        await fill(server)
        server.answers["namespaces"] = [code, code, b"<html>", b"[]", b'{"items":3}', "drop"]
        async with live_facts(server) as facts:
            assert not differences(facts.facts(), server)
            # aiohttp itself asks again where a connection that it had used before is dropped.
            assert sum(errors(facts, "Namespace").values()) >= 5


@pytest.mark.asyncio
async def test_a_server_that_does_not_answer_is_given_up_in_time_and_asked_again() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        server.delay_s = 60.0
        async with live_facts(server, reads=ReadLimits(call_s=0.5), is_synced=False) as facts:
            await until(
                lambda: errors(facts, "Namespace").get(Trouble.TIMEOUT, 0) > 0, "it is still waited for"
            )
            server.delay_s = 0.0
            await facts.wait_loaded()
            assert not differences(facts.facts(), server)


@pytest.mark.asyncio
async def test_an_optional_kind_that_may_not_be_read_is_told_and_done_without() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        server.always["nodes"] = 403
        async with live_facts(server) as facts:
            assert facts.facts().cluster().server_version == (0, 0)
            assert any("Node is done without" in note for note in facts.notes())
            assert facts.missing() == ()
            await server.put(namespace("others-go-on"))
            await until(lambda: facts.facts().namespace("others-go-on"), "others wait for it")
            server.always.clear()
            await same(facts, server)
            assert not any("Node" in note for note in facts.notes())


@pytest.mark.asyncio
async def test_nothing_is_served_before_every_needed_kind_was_read() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        server.always["persistentvolumes"] = 403
        async with live_facts(server, is_synced=False) as facts:
            await until(lambda: len(facts.missing()) == 1, "the others are not there")
            assert "PersistentVolume was never read" in facts.missing()[0]
            with pytest.raises(NotReady):
                facts.facts()
            server.always.clear()
            await until(lambda: facts.missing() == (), "it is not tried again")
            await facts.wait_loaded()
            assert not differences(facts.facts(), server)


@pytest.mark.asyncio
async def test_the_last_good_state_stays_while_the_server_is_away() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            kept = facts.facts()
            await server.stop()
            await until(lambda: all(not report.is_live for report in facts.kinds()), "nobody noticed")
            age_s = facts.age_s()
            await until(lambda: facts.age_s() > age_s, "it does not age")
            assert facts.facts() is kept
            assert facts.missing() == ()
            server.version += 1
            await server.put(namespace("meanwhile"))
            await server.start()
            await same(facts, server)


@pytest.mark.asyncio
async def test_a_broken_class_takes_no_other_down(caplog: pytest.LogCaptureFixture) -> None:
    broken = {"apiVersion": "sidemount.io/v1alpha1", "kind": "FuseDriverClass", "metadata": {"name": "bad"}}
    async with watched_apiserver() as server:
        await fill(server)
        await server.put(broken | {"spec": {"deliveries": "no list"}})
        async with live_facts(server) as facts:
            assert "directory" in facts.facts().driver_classes()
            (fault,) = facts.facts().faults()
            assert fault.where == "FuseDriverClass bad"
            await server.end_streams("gone")
            await until(lambda: lists(facts, "FuseDriverClass") == 2, "it is not listed again")
            assert sum("facts_faulty" in record.getMessage() for record in caplog.records) == 1
            await server.put(broken | {"spec": {"deliveries": 7}})
            await until(
                lambda: sum("facts_faulty" in record.getMessage() for record in caplog.records) == 2,
                "its next version is told too",
            )
            await server.delete("FuseDriverClass", "bad")
            await until(lambda: not facts.facts().faults(), "the fault is over")
            assert not differences(facts.facts(), server)


@pytest.mark.asyncio
async def test_what_became_invalid_keeps_what_it_last_stated() -> None:
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            good = facts.facts().driver_class("directory")
            manifest = server.collections["fusedriverclasses"].objects["", "directory"]
            await server.put(manifest | {"spec": {"sources": 1}})
            await until(lambda: facts.facts().faults(), "the fault is not told")
            assert facts.facts().driver_class("directory") == good
            await server.put(manifest)
            await until(lambda: not facts.facts().faults(), "the fault is over")
            await same(facts, server)


@pytest.mark.asyncio
async def test_a_renewed_token_is_used(tmp_path: Path) -> None:
    async with watched_apiserver() as server:
        token = tmp_path / "token"
        token.write_text("first\n")
        server.token = "first"
        async with live_facts(server, token=token) as facts:
            for text in ("", "second"):  # an empty file is one that is being written
                token.write_text(text)
                server.token = text or "first"
                await server.end_streams("drop")
                await server.put(namespace(f"under-{text}"))
                await same(facts, server)


STEPS = st.one_of(
    st.tuples(st.just("ns"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("pv"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("local"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("pvc"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("node"), st.integers(0, 2), st.integers(27, 37)),
    st.tuples(st.sampled_from(["range", "quota"]), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.sampled_from(["del-range", "del-quota"]), st.integers(0, 3), st.just(0)),
    st.tuples(st.sampled_from(["del-ns", "del-pv", "del-pvc", "del-node"]), st.integers(0, 3), st.just(0)),
    st.tuples(st.sampled_from(["drop", "close", "garbage", "gone", "cut"]), st.just(0), st.just(0)),
    st.tuples(st.sampled_from(["compact", "freeze", "thaw", "away", "back", "wait"]), st.just(0), st.just(0)),
    st.tuples(st.just("refuse"), st.sampled_from([429, 500, 410, 404]), st.integers(1, 3)),
)


async def _step(server: WatchedApiServer, what: str, which: int, how: int) -> None:
    match what:
        case "ns":
            await server.put(namespace(f"n{which}", enabled=bool(how)))
        case "pv":
            driver = "other.example" if how == 2 else "csi.sidemount.io"
            await server.put(volume(f"p{which}", f"handle-{how}", driver))
        case "local":
            await server.put(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"p{which}"},
                    "spec": {},
                }
            )
        case "pvc":
            await server.put(claim(f"c{which}", f"n{how}", f"p{how}" if how else ""))
        case "node":
            await server.put(node(f"node{which}", f"v1.{how}.0"))
        case "range":
            most = {"type": "Container", "max": {"cpu": str(how + 1)}}
            await server.put(limit_range(f"l{which}", most, namespace=f"n{which % 3}"))
        case "quota":
            hard = {"cpu": "9"} if how else {"pods": "9"}
            await server.put(quota(hard, {"cpu": str(how)}, f"q{which}", f"n{which % 3}"))
        case "del-range":
            await server.delete("LimitRange", f"l{which}", f"n{which % 3}")
        case "del-quota":
            await server.delete("ResourceQuota", f"q{which}", f"n{which % 3}")
        case "del-ns" | "del-pv" | "del-node":
            kind, prefix = {"n": ("Namespace", "n"), "p": ("PersistentVolume", "p")}.get(
                what[4], ("Node", "node")
            )
            kind, prefix = ("Node", "node") if what == "del-node" else (kind, prefix)
            await server.delete(kind, f"{prefix}{which}")
        case "del-pvc":
            await server.delete("PersistentVolumeClaim", f"c{which}", f"n{which % 3}")
        case "compact":
            await server.compact()
        case "freeze" | "thaw":
            server.is_frozen = what == "freeze"
            await server.tell()
        case "away":
            await server.stop()
        case "back" if server.runner is None:
            await server.start()
        case "wait":
            await asyncio.sleep(0.02)
        case "refuse":
            server.answers.setdefault("*", []).extend([which] * how)
        case "drop" | "close" | "garbage" | "gone" | "cut":
            await server.end_streams(what)


@settings(max_examples=15, deadline=None)
@example(
    steps=[
        ("ns", 0, True),
        ("gone", 0, 0),
        ("refuse", 404, 3),
        ("compact", 0, 0),
        ("range", 3, 1),
        ("ns", 2, True),
        ("quota", 3, 1),
    ]
)
@given(steps=st.lists(STEPS, max_size=25))
def test_after_any_history_the_facts_are_the_servers(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        async with watched_apiserver() as server:
            await fill(server)
            async with live_facts(server) as facts:
                for what, which, how in steps:
                    await _step(server, what, which, int(how))
                server.is_frozen = False
                if server.runner is None:
                    await server.start()
                await server.tell()
                await same(facts, server)

    asyncio.run(run())


@pytest.mark.asyncio
async def test_a_hundred_thousand_claims_fit() -> None:
    """What is kept of a claim and its volume: measured, and told by the bytes of each."""
    store, number = LiveStore(lambda: 0.0), 5_000

    def told(index: int) -> dict[str, object]:
        return json.loads(json.dumps(claim(f"data-workload-{index}", "ml", f"pvc-{index:036}")))  # type: ignore[no-any-return]

    tracemalloc.start()
    try:
        began = tracemalloc.get_traced_memory()[0]
        for start in range(0, number, 250):
            into: dict[object, object] = {}
            for index in range(start, start + 250):
                store.read(CLAIM, told(index), into)
            store.apply(CLAIM, into)  # type: ignore[arg-type]
        each = (tracemalloc.get_traced_memory()[0] - began) / number
    finally:
        tracemalloc.stop()
    assert len(store.snapshot.claims) == number
    assert each < 700, f"{each:.0f} bytes a claim"


def test_ten_thousand_namespaces_with_limits_fit() -> None:
    """What is kept of a LimitRange and a quota, whose use changes with every pod."""
    store, number = LiveStore(lambda: 0.0), 1_000
    limits = {"type": "Container", "max": {"cpu": "4", "memory": "8Gi"}, "min": {"cpu": "10m"}}
    hard = {"requests.cpu": "20", "requests.memory": "64Gi", "limits.cpu": "40", "limits.memory": "128Gi"}
    tracemalloc.start()
    try:
        began = tracemalloc.get_traced_memory()[0]
        for used in range(3):
            for index in range(number):
                space = f"team-{index}"
                use = dict.fromkeys(hard, str(used + index % 7))
                for kind, manifest in (
                    (LIMIT_RANGE, limit_range("limits", limits, namespace=space)),
                    (RESOURCE_QUOTA, quota(hard, use, "compute", space)),
                ):
                    into: dict[object, object] = {}
                    store.read(kind, json.loads(json.dumps(manifest)), into)
                    store.apply(kind, into)  # type: ignore[arg-type]
        each = (tracemalloc.get_traced_memory()[0] - began) / number
    finally:
        tracemalloc.stop()
    assert len(store.snapshot.quota_facts) == number
    assert not store.snapshot.has_room("team-6", "compute", "requests.cpu", "12.5")
    assert each < 4_000, f"{each:.0f} bytes a namespace"


@given(
    first=st.dictionaries(st.integers(0, 50), st.integers()),
    changes=st.dictionaries(st.integers(0, 50), st.one_of(st.just(GONE), st.integers())),
)
def test_a_changed_map_is_as_a_changed_dictionary(first: dict[int, int], changes: dict[int, object]) -> None:
    before = ShardedMap.of(first)
    after = before.changed(changes)  # type: ignore[arg-type]
    wanted = {key: value for key, value in {**first, **changes}.items() if value is not GONE}
    assert dict(before) == first
    assert dict(after) == wanted
    assert len(after) == len(wanted)
    assert after == wanted


@pytest.mark.asyncio
async def test_a_list_that_tells_nothing_new_changes_nothing() -> None:
    """S4: decisions are kept by what they read; a list of what is known already must not cost them."""
    async with watched_apiserver() as server:
        await fill(server)
        async with live_facts(server) as facts:
            before = facts.facts()
            await server.end_streams("gone")
            await until(lambda: all(report.lists == 2 for report in facts.kinds()), "all are listed again")
            assert facts.facts() is before


@pytest.mark.asyncio
async def test_waits_grow_within_bounds_and_differ() -> None:
    for random in (lambda: 0.0, lambda: 0.999):
        backoff = Backoff(random, longest_s=30.0)
        waits = [backoff.next_s() for _ in range(40)]
        assert waits == sorted(waits)
        assert 0.1 < waits[0] <= 0.25
        assert 15.0 <= waits[-1] <= 30.0
        assert backoff.next_s(50.0) == 50.0
        backoff.reset()
        assert backoff.next_s() == waits[0]


@pytest.mark.asyncio
async def test_a_server_that_ends_every_watch_at_once_is_not_flooded() -> None:
    async with watched_apiserver() as server:
        reader = ClusterReader(configure(server), ReadLimits())
        store = LiveStore(asyncio.get_running_loop().time)
        server.answers["nodes"] = [None, *[b""] * 1000]  # type: ignore[list-item]
        watch = asyncio.create_task(KindWatch(NODE, reader, store, PACE).run())
        try:
            await until(lambda: server.count("watch", "nodes") >= 3, "it gives up")
            began, count = asyncio.get_running_loop().time(), server.count("watch", "nodes")
            await until(lambda: server.count("watch", "nodes") >= count + 5, "it gives up")
            assert asyncio.get_running_loop().time() - began > 5 * PACE.longest_s / 2 * 0.9
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await reader.close()
