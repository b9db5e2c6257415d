"""What an observer does with one pod's log and Events while it leads, and when that ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sidemount.host.event_desk import DeskLimits
from sidemount.host.event_record import Teller
from sidemount.host.event_writing import EventWriting
from sidemount.model.keeper_log import KeeperEvent
from tests.webhook.observer.observed import line, samples, status_of, view, watchtower
from webhook.observer.log_reading import LogReading
from webhook.observer.log_schedule import LogPace
from webhook.observer.news import Occurrence, Reason
from webhook.observer.pod_view import PodView

pytestmark = pytest.mark.asyncio


class LogOnce:
    """Answers each read of a log with the next text, then never again."""

    def __init__(self, *texts: str) -> None:
        self.paths: list[str] = []
        self._texts = list(texts)

    async def text(self, path: str, max_bytes: int) -> bytes:
        self.paths.append(path)
        if not self._texts:
            await asyncio.Event().wait()
        return self._texts.pop(0).encode()[:max_bytes]


async def cancelled(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(check: Callable[[], object]) -> None:
    ends = asyncio.get_running_loop().time() + 10
    while not check():
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0)


def reading_of(log: Any, found: PodView, told: list[str], clock: Callable[[], float]) -> LogReading:
    def sink(_: PodView, events: list[KeeperEvent]) -> None:
        told.extend(event.kind.value for event in events)

    pace = LogPace(a_second=10_000)
    reading = LogReading(log, {found.key: found}, pace, sink, clock=clock, random=lambda: 0.5)
    reading.follow(None, found)
    return reading


async def test_the_last_words_of_a_keeper_that_died_while_nobody_observed_are_read() -> None:
    told: list[str] = []
    log = LogOnce(line("daemon_abnormal", what="dies"), line("came_back"))
    reading = reading_of(log, view("p", status_of("sidemount-keeper", number=1)), told, lambda: 0.0)
    running = asyncio.create_task(reading.run())
    await until(lambda: len(told) == 2)
    await cancelled(running)
    assert told == ["daemon_abnormal", "came_back"]
    assert ["previous=true" in path for path in log.paths] == [True, False]


async def test_whoever_reads_no_logs_is_not_late() -> None:
    """A second observer that stands by is no reason for an alert."""
    now = [0.0]
    log = LogOnce()
    reading = reading_of(log, view(), [], lambda: now[0])
    now[0] = 5000.0
    assert reading.late_s() == 0
    running = asyncio.create_task(reading.run())
    await until(lambda: log.paths)
    assert reading.late_s() == 0
    await cancelled(running)
    now[0] = 9000.0
    assert reading.late_s() == 0


async def test_a_volume_of_whose_log_only_a_fault_is_left_is_not_said_to_wait() -> None:
    """Logs are rotated: what a long-lived keeper said of the volume's phase may be gone."""
    tower = watchtower(log=LogOnce(line("descriptor_not_kept", level="warning")))
    term = asyncio.create_task(tower.term())
    await until(lambda: samples(tower, "sidemount_observer_log_reads_total"))
    counts = samples(tower, "sidemount_volumes")
    await cancelled(term)
    assert {dict(labels)["state"]: count for labels, count in counts.items() if count} == {"unknown": 1}


async def test_an_event_whose_write_was_cut_short_by_the_end_of_a_term_is_told_in_the_next() -> None:
    """The API server was away: nobody else has led, and what a log said is not read again."""
    written: list[Any] = []
    is_away = asyncio.Event()

    class Server:
        async def read(self, _: Any) -> None:
            if not is_away.is_set():
                is_away.set()
                await asyncio.Event().wait()

        async def create(self, _: Any, document: Any) -> Any:
            written.append(document)
            return {**document, "metadata": {**document["metadata"], "resourceVersion": "1"}}

    now, server = [0.0], Server()
    cluster: Any = server
    writing = EventWriting(
        cluster,
        DeskLimits(),
        teller=Teller("sidemount-observer", "i"),
        reasons=Reason,
        leads=lambda: True,
        clock=lambda: now[0],
    )
    told = Occurrence(
        namespace="ml", pod="p", uid="u", reason=Reason.TAKEN_OVER, at_ms=1000, message="m", volume="train"
    )
    writing.offer([told])
    first = asyncio.create_task(writing.run())
    await asyncio.wait_for(is_away.wait(), 10)
    await cancelled(first)
    now[0] = 100.0
    second = asyncio.create_task(writing.run())
    await until(lambda: written)
    await cancelled(second)
    assert [event["count"] for event in written] == [1]
