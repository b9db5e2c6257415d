"""The observer as a process, against a fake API server that answers as a real one: what it tells, what it never tells twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidemount.host.kind_watch import Pace
from tests.webhook.observer.observed import driver_class, line, pod, stamp, status_of
from tests.webhook.observer.observed_apiserver import Log, ObservedApiServer
from webhook.observer.observer import Observer
from webhook.observer.settings import ObserverSettings

pytestmark = pytest.mark.asyncio
WITHIN_S = 20.0
KEY = ("ml", "p")


@asynccontextmanager
async def api_server() -> AsyncIterator[ObservedApiServer]:
    server = ObservedApiServer()
    await server.start()
    try:
        await server.put(driver_class())
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def observing(
    server: ObservedApiServer, tmp_path: Path, lease: str = "observer"
) -> AsyncIterator[Observer]:
    """Observe for as long as the block lasts, then end as on SIGTERM."""
    path = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {}}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "clusters": [cluster],
                "contexts": [context],
                "users": [user],
            }
        )
    )
    settings = ObserverSettings(
        host="127.0.0.1",
        port=0,
        lease=lease,
        kubeconfig=path,
        log_period_s=0.2,
        logs_a_second=100,
        event_pace_s=0.2,
        events_a_second=100,
        status_debounce_s=0.2,
    )
    observer = Observer(settings, instance="test", pace=Pace(longest_s=0.05, steady_s=0.01))
    running = asyncio.create_task(observer.run())
    try:
        yield observer
        assert not running.done(), "it ended by itself"
    finally:
        observer.end()
        async with asyncio.timeout(WITHIN_S):
            await running


async def until(check: Callable[[], object | Awaitable[object]], what: str) -> None:
    """Return when `check` gives something true; fail naming `what` if it does not in time."""
    ends = asyncio.get_running_loop().time() + WITHIN_S
    while True:
        found = check()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert asyncio.get_running_loop().time() < ends, f"{what}: not within {WITHIN_S:g} s"
        await asyncio.sleep(0.02)


async def scraped(observer: Observer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{observer.port}/metrics") as answer,
    ):
        text = await answer.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def answers(observer: Observer, path: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{observer.port}{path}") as answer,
    ):
        return answer.status


def counted(server: ObservedApiServer, reason: str) -> list[int]:
    return [event["count"] for event in server.events(reason)]


async def test_what_happens_to_a_pod_is_told_once_and_never_again_after_a_restart(tmp_path: Path) -> None:
    async with api_server() as server:
        await server.put(pod())
        log = server.logs[KEY] = Log([line("volume_mounted", layers=1), line("served", generation=1)])
        async with observing(server, tmp_path) as observer:
            await until(lambda: counted(server, "Injected") == [1], "it is injected")
            log.lines.append(line("taken_over", generation=2, stall_ms=23, cause="its process ended"))
            await until(lambda: counted(server, "TakenOver") == [1], "one takeover")
            log.lines.append(line("taken_over", generation=3, stall_ms=40))
            log.lines.append(line("remounted", generation=4, stall_ms=900))
            await until(lambda: counted(server, "TakenOver") == [2], "two takeovers are one Event")
            await until(lambda: counted(server, "Remounted") == [1], "a remount")
            await until(
                lambda: "status" in server.collections["fusedriverclasses"].objects["", "directory"], "status"
            )
            values = await scraped(observer)
            of_class = frozenset({("class", "directory")})
            assert values["sidemount_takeovers_total", of_class] == 2
            assert values["sidemount_remounts_total", of_class] == 1
            assert values["sidemount_stall_seconds_count", of_class] == 3
            assert values["sidemount_stall_seconds_bucket", of_class | {("le", "0.025")}] == 1
            assert values["sidemount_volumes", of_class | {("state", "serving")}] == 1
            assert values["sidemount_layers_max", frozenset()] == 1
            assert (await answers(observer, "/healthz"), await answers(observer, "/readyz")) == (200, 200)
        (event,) = server.events("TakenOver")
        assert (event["type"], event["involvedObject"]["uid"]) == ("Normal", "uid-p")
        assert "after 40 ms" in event["message"]
        writes = [write for write in server.written if write[1] != "leases"]
        async with observing(server, tmp_path) as observer:
            seen = len(server.log_queries)
            await until(lambda: len(server.log_queries) > seen + 2, "the log is read again")
            log.lines.append(line("taken_over", generation=5, stall_ms=1))
            await until(lambda: counted(server, "TakenOver") == [3], "what is new is told")
            values = await scraped(observer)
            assert values["sidemount_takeovers_total", frozenset({("class", "directory")})] == 1
        assert [write for write in server.written if write[1] != "leases"] == [
            *writes,
            ("PATCH", "events", event["metadata"]["name"]),
        ]


async def test_a_process_killed_between_leaves_no_second_event(tmp_path: Path) -> None:
    """Whoever comes next finds a Lease that nobody has released, and Events that say what they have told."""
    async with api_server() as server:
        await server.put(pod())
        server.logs[KEY] = Log([line("taken_over", generation=2, stall_ms=23, ago_s=5)])
        async with observing(server, tmp_path):
            await until(lambda: counted(server, "TakenOver") == [1], "told")
        server.objects["leases", "sidemount-system", "observer"]["spec"].update(
            holderIdentity="killed", leaseDurationSeconds=1, renewTime=stamp(ago_s=60)
        )
        before = len(server.written)
        async with observing(server, tmp_path) as observer:
            await until(lambda: server.log_queries and len(server.written) > before, "it leads")

            async def knows() -> bool:
                values = await scraped(observer)
                labels = frozenset({("reason", "TakenOver"), ("result", "known")})
                return values.get(("sidemount_observer_events_total", labels)) == 1

            await until(knows, "it finds that all was told")
        assert counted(server, "TakenOver") == [1]


async def test_a_class_says_who_uses_it_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    async with api_server() as server:
        await server.put(driver_class("broken", sources=["no uri"]))
        for name in ("p", "q"):
            await server.put(pod(name))
        await server.put(pod("over", phase="Succeeded"))

        def status(name: str) -> dict[str, object]:
            found: dict[str, object] = (
                server.collections["fusedriverclasses"].objects["", name].get("status", {})
            )
            return found

        async with observing(server, tmp_path):
            await until(lambda: status("directory").get("usedBy") == 2, "two pods use it")
            await until(lambda: status("broken").get("faults"), "its fault is told")
            writes = len([write for write in server.written if write[1] == "fusedriverclasses"])
            await server.delete("Pod", "q", "ml")
            await until(lambda: status("directory").get("usedBy") == 1, "one pod uses it")
            assert len([write for write in server.written if write[1] == "fusedriverclasses"]) == writes + 1
        conditions = status("broken")["conditions"]
        assert isinstance(conditions, list)
        assert (conditions[0]["type"], conditions[0]["status"]) == ("Accepted", "False")


async def test_deaths_of_memory_and_last_words_of_a_keeper_are_told(tmp_path: Path) -> None:
    async with api_server() as server:
        await server.put(pod())
        log = server.logs[KEY] = Log([line("served", generation=1)])
        async with observing(server, tmp_path):
            await until(lambda: server.log_queries, "its log is read")
            log.previous = [*log.lines, line("daemon_abnormal", level="warning", what="dies again and again")]
            log.lines = [line("came_back", generation=1)]
            killed = status_of("sidemount-train", number=1, killed=stamp()[:19] + "Z")
            await server.put(pod("p", status_of("sidemount-keeper", number=1), killed))
            await until(lambda: counted(server, "OOMKilled") == [1], "the death")
            await until(lambda: counted(server, "VolumeAbnormal") == [1], "what the dead keeper said last")
            await until(lambda: counted(server, "KeeperRestarted") == [1], "the new keeper")
            await server.put(pod("p", status_of("sidemount-keeper", number=1), killed, phase="Running"))
        assert counted(server, "OOMKilled") == [1]
        assert {event["type"] for event in server.events("OOMKilled")} == {"Warning"}


async def test_whoever_does_not_lead_reads_no_log_and_writes_nothing(tmp_path: Path) -> None:
    async with api_server() as server:
        server.objects["leases", "sidemount-system", "observer"] = {
            "metadata": {"name": "observer", "resourceVersion": "1"},
            "spec": {"holderIdentity": "other", "leaseDurationSeconds": 60, "renewTime": stamp()},
        }
        await server.put(pod())
        server.logs[KEY] = Log([line("taken_over", stall_ms=1)])
        async with observing(server, tmp_path) as observer:
            await until(lambda: server.count("watch", "pods"), "pods are watched")

            async def is_ready() -> bool:
                return await answers(observer, "/readyz") == 200

            await until(is_ready, "it is ready to lead")
            await asyncio.sleep(0.5)
            assert (await scraped(observer))["sidemount_observer_leads", frozenset()] == 0
        assert (server.log_queries, server.written) == ([], [])


async def test_forged_and_foreign_logs_are_no_danger(tmp_path: Path) -> None:
    """Whoever writes to a keeper's log as its container could tells of volumes of that pod only, one Event each."""
    async with api_server() as server:
        await server.put(pod())
        flood = stamp(ago_s=10)
        lines = [f"{flood} " + "x" * 5000 for _ in range(100)]  # more in one second than is read at once
        lines += [line("taken_over", volume=f"v{n}", stall_ms=1) for n in range(200)]
        tomorrow = line("taken_over", stall_ms=1, ago_s=-86_400).partition(" ")[2]
        lines.append(f"{stamp()} {tomorrow}")  # it must not hide what comes today
        lines += [line("taken_over", stall_ms=1, cause=f"token=s3cr3t {n}") for n in range(300)]
        server.logs[KEY] = Log(lines)
        async with observing(server, tmp_path):
            await until(lambda: counted(server, "TakenOver") == [300], "all of them, in one Event")
        assert len(server.events()) == 2
        assert "s3cr3t" not in json.dumps(server.events())


async def test_what_cannot_be_read_or_written_ends_nothing(tmp_path: Path) -> None:
    async with api_server() as server:
        server.refused["events"] = 500
        server.always["pods"] = 503
        await server.put(pod())
        async with observing(server, tmp_path) as observer:
            await until(lambda: server.count("list", "pods") > 2, "it tries again")
            assert await answers(observer, "/readyz") == 503
            del server.always["pods"]
            await until(lambda: server.log_queries, "its log is asked for, in vain")
            server.logs[KEY] = Log([line("taken_over", stall_ms=1)])
            server.refused.clear()
            await until(lambda: counted(server, "TakenOver") == [1], "it is told after all")
            await server.compact()
            await server.put(pod("q"))
            await until(lambda: len(server.events("Injected")) == 2, "the watch goes on after a relist")
