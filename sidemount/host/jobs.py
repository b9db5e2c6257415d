"""Disposable children as the keeper's loop sees them: a job reports, ends, fails or is late, and is never waited for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sidemount.host.disposable import Child, Reporter, start_child
from sidemount.host.loop import Loop, Timer

Message = dict[str, Any]
CHILDREN_MAX = 12  # of three megabytes each, within the 64 of a keeper's container


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended. `errno` is 0 where there is none."""

    fault: str = ""
    errno: int = 0
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a child does, and what the parent does with its reports.

    `on_message` gets the message, its descriptor (then its own) and the job. `on_end` is called once unless the job is
    cancelled, `clean_up` before it and in any case.
    """

    run: Callable[[Reporter], None]
    on_end: Callable[[Outcome], None]
    deadline_s: float
    clean_up: Callable[[], None] = lambda: None
    on_message: Callable[[Message, int | None, "Job"], None] | None = None
    keep: tuple[int, ...] = ()


class Job:
    """A running child."""

    def __init__(self, loop: Loop, child: Child, work: Work, discard: Callable[[Child], None]) -> None:
        self._loop = loop
        self._child = child
        self._work = work
        self._discard = discard
        self._is_over = False
        self._timer: Timer = loop.call_later(work.deadline_s, self._late)
        loop.watch(child.socket, self._read)

    @property
    def is_over(self) -> bool:
        """Tell whether it has ended or was cancelled."""
        return self._is_over

    def go_on(self) -> None:
        """Let the child continue after the report it waits on."""
        self._child.go_on()

    def cancel(self) -> None:
        """End it without a word."""
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            self._loop.unwatch(self._child.socket)
            self._discard(self._child)
            self._work.clean_up()

    def fail(self, fault: str, errno: int = 0) -> None:
        """End it, for a reason of the parent's."""
        self._finish(Outcome(fault=fault, errno=errno))

    def _read(self) -> None:
        while not self._is_over:
            try:
                received = self._child.receive()
            except BlockingIOError:
                return
            except OSError as error:
                self.fail(str(error), error.errno or 0)
                return
            if received is None:
                self.fail("its process ended early")
                return
            self._take(*received)

    def _take(self, message: Message, descriptor: int | None) -> None:
        if "error" in message:
            self.fail(str(message["error"]), int(message["errno"]))
        elif "done" in message:
            self._finish(Outcome())
        elif self._work.on_message is not None:
            self._work.on_message(message, descriptor, self)

    def _late(self) -> None:
        self._finish(Outcome(fault=f"no answer within {self._work.deadline_s:g} s", is_late=True))

    def _finish(self, outcome: Outcome) -> None:
        if not self._is_over:
            self.cancel()
            self._work.on_end(outcome)


class Room:
    """How many children all volumes of a keeper have together: each takes memory, of which a keeper has little."""

    def __init__(self, most: int = CHILDREN_MAX) -> None:
        self._most = most
        self._all: list[Jobs] = []

    def enter(self, jobs: "Jobs") -> None:
        """Count a volume's children from now on."""
        self._all.append(jobs)

    def leave(self, jobs: "Jobs") -> None:
        """Forget a volume that is over. Harmless if it is forgotten already."""
        self._all = [other for other in self._all if other is not jobs]

    def is_there(self, jobs: "Jobs") -> bool:
        """Tell whether a volume may have one more child. In the second half of the room each has one at most: who hangs leaves the rest to others."""
        half = self._most // 2
        if self._count() < half:
            return True
        for other in self._all:
            other.reap()
        count = self._count()
        return count < half or (count < self._most and jobs.children == 0)

    def _count(self) -> int:
        return sum(jobs.children for jobs in self._all)


@dataclass(slots=True)
class Jobs:
    """One volume's children: at most one of a kind, even of those that were given up and have not ended yet."""

    loop: Loop
    room: Room = field(default_factory=Room)
    _running: dict[str, Job] = field(default_factory=dict)
    _discarded: dict[str, Child] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.room.enter(self)

    @property
    def children(self) -> int:
        """How many there are."""
        return len(self._discarded) + sum(not job.is_over for job in self._running.values())

    def start(self, kind: str, work: Work) -> Job | None:
        """Start a job; None if one of this kind is running or stuck, there is no room, or no process can be made."""
        self.reap()
        if self.is_busy(kind) or not self.room.is_there(self):
            work.clean_up()
            return None
        try:
            child = start_child(work.run, keep=work.keep)
        except OSError:
            work.clean_up()
            return None
        job = Job(self.loop, child, work, lambda ended: self._give_up(kind, ended))
        self._running[kind] = job
        return job

    def is_running(self, kind: str) -> bool:
        """Tell whether a job of this kind is under way."""
        running = self._running.get(kind)
        return running is not None and not running.is_over

    def is_busy(self, kind: str) -> bool:
        """Tell whether a child of this kind is there, be it one that was given up."""
        return kind in self._discarded or self.is_running(kind)

    def cancel(self, kind: str) -> None:
        """End the running job of this kind, if there is one."""
        running = self._running.pop(kind, None)
        if running is not None:
            running.cancel()

    def reap(self) -> None:
        """Take ended children off the process table."""
        for kind, child in list(self._discarded.items()):
            if child.reap():
                del self._discarded[kind]

    def _give_up(self, kind: str, child: Child) -> None:
        child.abandon()
        if not child.reap():
            self._discarded[kind] = child
