"""LogReading: reads the keepers' logs, one after the other, at a bounded rate, and hands on what is new in them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sidemount.host.cluster_reader import ClusterReader, ReadFailed
from sidemount.host.logs import log
from sidemount.model.keeper_log import KeeperEvent, VolumeHealth, by_volume, parse_line, split_stamp
from sidemount.model.names import KEEPER_CONTAINER
from sidemount.model.timestamp import render_timestamp
from webhook.observer.log_schedule import LogPace, LogSchedule, Pod
from webhook.observer.observed_store import POD
from webhook.observer.pod_view import PodView

READ_MAX = 256 << 10
_FIRST_LINES = 1000
_IDLE_S = 0.25
_SECOND_NS = 1_000_000_000
_log = log("observer.log_reading")

Sink = Callable[[PodView, list[KeeperEvent]], None]


@dataclass(slots=True)
class PodLog:
    """How far one pod's log is read, and what it told. `container_id`: whose log the rest is about; `position_ns`: of its last line."""

    container_id: str = ""
    position_ns: int = 0
    health: dict[str, VolumeHealth] = field(default_factory=dict)
    is_read: bool = False


class LogReading:
    """Follows every pod that has a keeper. `run` reads; whoever does not lead does not run it."""

    def __init__(
        self,
        reader: ClusterReader,
        pods: Mapping[Pod, PodView],
        pace: LogPace,
        sink: Sink,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._pods = pods
        self._pace = pace
        self._sink = sink
        self._clock = clock
        self._schedule = LogSchedule(pace, random)
        self._logs: dict[Pod, PodLog] = {}
        self._wake = asyncio.Event()
        self._is_running = False
        self.reads: Counter[str] = Counter()

    def follow(self, before: PodView | None, now: PodView | None) -> None:
        """Take note of what a pod is now: what happened to a container of ours is asked about at once."""
        pod = before or now
        assert pod is not None  # something was or is
        if now is None or not now.has_keeper or (before is not None and before.uid != now.uid):
            self._schedule.forget(pod.key)
            self._logs.pop(pod.key, None)
        if now is None or not now.has_keeper:
            return
        if before is None or before.uid != now.uid or _changed(before, now):
            self._logs.setdefault(now.key, PodLog())
            # Pods that were over before we saw them are many, and nobody waits for what they said.
            was_over = now.is_over and (before is None or before.uid != now.uid)
            self._schedule.ask(now.key, self._clock(), is_last=now.is_over, can_wait=was_over)
            self._wake.set()

    def health(self, pod: Pod) -> Mapping[str, VolumeHealth] | None:
        """Return what a pod's log told of each volume, None before it was read."""
        found = self._logs.get(pod)
        return found.health if found is not None and found.is_read else None

    def late_s(self) -> float:
        """Return for how long the log that waits longest should have been read, 0 for whoever reads none."""
        return self._schedule.oldest_s(self._clock()) if self._is_running else 0.0

    async def run(self) -> None:
        """Read until cancelled. No log, and no failure to read one, ends this."""
        self._schedule.begin(self._clock())
        self._is_running = True
        at_once = asyncio.Semaphore(self._pace.at_once)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await at_once.acquire()
                    while (pod := self._schedule.take(self._clock())) is None:
                        await self._idle()
                    group.create_task(self._turn(pod, at_once))
                    await asyncio.sleep(1 / self._pace.a_second)
        finally:
            self._is_running = False

    async def _idle(self) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(_IDLE_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _turn(self, pod: Pod, at_once: asyncio.Semaphore) -> None:
        is_read, has_more = False, False
        try:
            has_more = await self._read(pod)
            is_read = True
        except ReadFailed as error:
            self.reads[error.trouble.value] += 1
            _log.debug("log_not_read", namespace=pod[0], pod=pod[1], error=str(error))
        except Exception:
            self.reads["internal"] += 1
            _log.error("log_not_read", namespace=pod[0], pod=pod[1], exc_info=True)
        finally:
            at_once.release()
            self._schedule.done(pod, self._clock(), is_read=is_read, has_more=has_more)

    async def _read(self, pod: Pod) -> bool:
        """Read what is new of a pod's log; return whether there is more. Raises ReadFailed."""
        view, known = self._pods.get(pod), self._logs.get(pod)
        keeper = view.keeper if view is not None else None
        if view is None or known is None or keeper is None or not keeper.container_id:
            return False  # its next change of state asks again
        if known.container_id != keeper.container_id:
            if known.container_id or keeper.restarts:
                await self._read_previous(pod, view, known)
            known.container_id, known.position_ns, known.health = keeper.container_id, 0, {}
        return await self._take(pod, view, known, is_previous=False)

    async def _read_previous(self, pod: Pod, view: PodView, known: PodLog) -> None:
        """Read the last words of a keeper that has been replaced. They may be gone; that is no failure."""
        try:
            await self._take(pod, view, known, is_previous=True)
        except ReadFailed as error:
            self.reads[error.trouble.value] += 1

    async def _take(self, pod: Pod, view: PodView, known: PodLog, *, is_previous: bool) -> bool:
        content = await self._reader.text(_path(pod, known.position_ns, is_previous), READ_MAX)
        self.reads["ok"] += 1
        if self._logs.get(pod) is not known:
            return False  # it is another pod of that name by now
        has_more = len(content) >= READ_MAX
        lines = content.decode("utf-8", "replace").split("\n")
        before_ns = known.position_ns
        events = _new(lines[:-1] if has_more else lines, known)
        if has_more and known.position_ns // _SECOND_NS == before_ns // _SECOND_NS:
            # More than can be read in one second of the log: a log that is asked for by seconds would be read in circles.
            known.position_ns = (before_ns // _SECOND_NS + 1) * _SECOND_NS
        known.health = by_volume(events, known.health)
        known.is_read = True
        self._sink(view, events)
        return has_more


def _new(lines: list[str], known: PodLog) -> list[KeeperEvent]:
    """Return the events of lines that were not read before, and move the position on."""
    events, read_ns = [], known.position_ns
    for line in lines:
        stamp_ns, _ = split_stamp(line)
        if stamp_ns is None or stamp_ns <= read_ns:
            continue
        known.position_ns = max(known.position_ns, stamp_ns)
        event = parse_line(line)
        if event is not None:
            events.append(event)
    return events


def _path(pod: Pod, position_ns: int, is_previous: bool) -> str:
    since = (
        f"sinceTime={render_timestamp(position_ns // 1_000_000)}"
        if position_ns > 0
        else f"tailLines={_FIRST_LINES}"
    )
    previous = "&previous=true" if is_previous else ""
    return f"{POD.path(pod)}/log?container={KEEPER_CONTAINER}&timestamps=true&limitBytes={READ_MAX}&{since}{previous}"


def _changed(before: PodView, now: PodView) -> bool:
    return (before.containers, before.is_over) != (now.containers, now.is_over)
