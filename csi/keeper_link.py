"""The plugin's line to its keeper: starts it, starts it again when it dies, tells it what to keep, and knows how every volume is."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from csi import keeper_words as words
from sidemount.host.logs import log
from sidemount.host.object_exposition import ObjectCounts
from sidemount.host.session import Phase
from sidemount.model.errors import BadMessage, HostFailure, NotReady
from sidemount.model.mountspec import MountSpec, encode_spec
from sidemount.model.object_numbers import Report

_RESTART_FIRST_S = 0.05
_RESTART_MOST_S = 5.0
_STEADY_S = 10.0
_END_S = 5.0
_SEND_BUFFER = 4 << 20
_ANSWER_SLACK_S = 1.5
_WATCH_S = 3.0
_BEGINS_S = 60.0
_LATE_S = 1.0
_NO_KEEPER = "the keeper has just ended, another one is starting"


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStatus:
    """How the keeper says a volume is. `hung`: why its daemon has to be started again, "" if it has not.

    `lacks`: why the source that the keeper is to give cannot be opened, "" if it can. `takeovers`, `remounts`: how often under this
    keeper, the last one after `pause_ms` for that `cause`.
    """

    phase: str = Phase.MOUNTING.value
    fault: str = ""
    abnormal: str = ""
    hung: str = ""
    generation: int = 0
    lacks: str = ""
    takeovers: int = 0
    remounts: int = 0
    pause_ms: int = 0
    cause: str = ""

    @property
    def is_live(self) -> bool:
        """Tell whether it is served and shown."""
        return self.phase == Phase.SERVING.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the keeper is told of one volume. `directory`: the source that the daemon is given, "" if it opens it by itself."""

    name: str
    target: str
    spec: MountSpec
    source: str
    directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a question. `found` is None with a fault."""

    fault: str = ""
    errno: int = 0
    late: bool = False
    found: dict[str, int] | None = None


class KeeperLink:
    """Whatever is to be kept is told again to every new keeper; nobody else has to remember."""

    def __init__(
        self,
        state_dir: str,
        *,
        check_s: float,
        status_changed: Callable[[str], None],
        objects: ObjectCounts | None = None,
    ) -> None:
        """`status_changed(name)` is called in the loop. `objects` takes what volumes count."""
        self._state_dir = state_dir
        self._check_s = check_s
        self._status_changed = status_changed
        self._objects = objects
        self._log = log("csi.keeper_link")
        self._kept: dict[str, Kept] = {}
        self._run_dirs: dict[
            str, str
        ] = {}  # of those whose daemons do not come to their own directory of the state
        self._status: dict[str, VolumeStatus] = {}
        self._dropping: dict[str, asyncio.Future[None]] = {}
        self._questions: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._unsent: list[bytes] = []
        self._is_stopped = False
        self._started_at = self._heard_at = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._pause_s = _RESTART_FIRST_S
        self._restart: asyncio.TimerHandle | None = None
        self.starts = 0

    @property
    def is_up(self) -> bool:
        """Tell whether there is a keeper."""
        return self._line is not None

    @property
    def pid(self) -> int | None:
        """Return its process id."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the keeper. Raises HostFailure."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            try:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "csi",
                        "keeper",
                        self._state_dir,
                        str(theirs.fileno()),
                        str(self._check_s),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=module_environment(),
                )
            except OSError as error:
                ours.close()
                raise HostFailure(f"cannot start the keeper: {error}", errno=error.errno or 0) from error
        ours.setblocking(False)
        self._line = ours
        self._started_at = time.monotonic()
        self.starts += 1
        asyncio.get_running_loop().add_reader(ours, self._read)
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        for kept in self._kept.values():
            self._tell_keep(kept)
        for name in self._dropping:
            self._send(words.written(words.DROP, name=name))

    async def stop(self) -> None:
        """End the keeper without touching any mount."""
        self._is_stopped = True
        if self._watching is not None:
            self._watching.cancel()
        if self._restart is not None:
            self._restart.cancel()
        self._hang_up()
        process = self._process
        if process is not None:
            try:
                await asyncio.to_thread(process.wait, _END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # What it keeps -----------------------------------------------------------------------------------

    def keep(self, kept: Kept) -> None:
        """Have a volume kept. What comes of it shows in its status."""
        if self._kept.get(kept.name) == kept:
            return
        self._kept[kept.name] = kept
        self._status[kept.name] = VolumeStatus(fault="" if self.is_up else _NO_KEEPER)
        self._tell_keep(kept)

    def expect(self, name: str, run_dir: str) -> None:
        """Have a volume's daemons awaited in that directory once it is kept; "" is its own one of the state."""
        if run_dir:
            self._run_dirs[name] = run_dir
        else:
            self._run_dirs.pop(name, None)

    async def listen(self, name: str, run_dir: str) -> Answer:
        """Have a volume's daemons awaited in that directory from now on. Raises NotReady without a keeper."""
        self.expect(name, run_dir)
        number = next(self._numbers)
        return await self._ask(number, words.written(words.LISTEN, name=name, run_dir=run_dir, id=number))

    async def drop(self, name: str, timeout_s: float) -> None:
        """Have it detached and its daemon let go. Raises TimeoutError."""
        self._kept.pop(name, None)
        done = self._dropping.get(name)
        if done is None:
            done = self._dropping[name] = asyncio.get_running_loop().create_future()
        # Also again, if nothing came of it the first time.
        self._send(words.written(words.DROP, name=name))
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(done)

    def status(self, name: str) -> VolumeStatus:
        """Return how a volume is."""
        return self._status.get(name, VolumeStatus())

    async def check(self, name: str) -> Answer:
        """Ask a volume's mount for its statistics. Bounded: what hangs is an answer, too. Raises NotReady without a keeper."""
        number = next(self._numbers)
        return await self._ask(number, words.written(words.CHECK, name=name, id=number))

    async def detach(self, target: str) -> Answer:
        """Have what of ours is mounted at a place taken away that no volume is kept for. Raises NotReady without a keeper."""
        number = next(self._numbers)
        return await self._ask(number, words.written(words.DETACH, target=target, id=number))

    async def sweep(self, directory: str, mount_point: str, mount_id: int) -> Answer:
        """Have every layer of ours at a place detached if it is dead. Bounded. Raises NotReady without a keeper."""
        number = next(self._numbers)
        order = words.written(words.SWEEP, directory=directory, place=mount_point, mount=mount_id, id=number)
        return await self._ask(number, order)

    async def _ask(self, number: int, datagram: bytes) -> Answer:
        if self._line is None:
            raise NotReady(_NO_KEEPER, hint="try again")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self._send(datagram)
            async with asyncio.timeout(self._check_s + _ANSWER_SLACK_S):
                return await answer
        except TimeoutError:
            raise NotReady("the keeper does not answer", hint="try again") from None
        finally:
            self._questions.pop(number, None)

    def _tell_keep(self, kept: Kept) -> None:
        self._send(
            words.written(
                words.KEEP,
                name=kept.name,
                target=kept.target,
                spec=encode_spec(kept.spec),
                source=kept.source,
                run_dir=self._run_dirs.get(kept.name, ""),
                directory=kept.directory,
            )
        )

    # The line ----------------------------------------------------------------------------------------

    def _send(self, datagram: bytes) -> None:
        if self._line is None:
            return  # a new keeper is told everything
        try:
            self._line.send(datagram)
        except OSError as error:
            # A line that is full for so long has nobody at its other end.
            self._log.error("keeper_unreachable", fault=str(error))
            self._kill()

    def _read(self) -> None:
        while self._line is not None:
            try:
                datagram = self._line.recv(words.MESSAGE_MAX)
            except BlockingIOError:
                return
            except OSError:
                datagram = b""
            if not datagram:
                self._keeper_gone()
                return
            self._heard_at = time.monotonic()
            try:
                self._take(*words.read(datagram))
            except BadMessage as error:
                self._log.error("bad_report", fault=str(error))

    def _take(self, say: str, report: dict[str, Any]) -> None:
        match say:
            case words.STATUS:
                name = report.pop("name")
                self._status[name] = VolumeStatus(**report)
                self._status_changed(name)
            case words.NUMBERS:
                self._counted(report["name"], Report(report["process"], report["numbers"]))
            case words.DROPPED:
                self._dropped(report["name"])
            case words.ANSWER:
                answer = self._questions.pop(report.pop("id"), None)
                if answer is not None and not answer.done():
                    answer.set_result(Answer(**report))

    def _counted(self, name: str, report: Report) -> None:
        if self._objects is None:
            return
        kept = self._kept.get(name)
        if kept is not None:
            self._objects.know(name, kept.spec.driver_class)
        self._objects.take(name, report)  # also while it is dropped: its last words

    def _dropped(self, name: str) -> None:
        self._status.pop(name, None)
        self._run_dirs.pop(name, None)
        if self._objects is not None and name not in self._kept:
            self._objects.forget(name)
        done = self._dropping.pop(name, None)
        if done is not None and not done.done():
            done.set_result(None)

    def _keeper_gone(self) -> None:
        self._hang_up()
        if self._is_stopped:
            return
        for name in self._status:
            self._status[name] = VolumeStatus(phase=Phase.ADOPTING.value, fault=_NO_KEEPER)
        code = None if self._process is None else self._process.poll()
        self._log.error("keeper_gone", code=code, consequence="another one takes over; no mount is touched")
        if time.monotonic() - self._started_at > _STEADY_S:
            self._pause_s = _RESTART_FIRST_S
        self._restart = asyncio.get_running_loop().call_later(self._pause_s, self._start_again)
        self._pause_s = min(_RESTART_MOST_S, self._pause_s * 2)

    def _start_again(self) -> None:
        self._kill()
        if self._process is not None:
            self._process.wait()
        try:
            self.start()
        except HostFailure as error:
            self._log.error("keeper_not_started", fault=str(error))
            self._restart = asyncio.get_running_loop().call_later(self._pause_s, self._start_again)

    async def _watch(self) -> None:
        """Kill a keeper that hangs: its successor takes everything over, as from one that has died."""
        while True:
            await asyncio.sleep(_WATCH_S)
            asked_at = time.monotonic()
            try:
                await self.check("")  # of no volume: it is answered at once
            except NotReady:
                if self._is_silent_since(asked_at):
                    self._log.error("keeper_hangs", consequence="it is killed, and another one takes over")
                    self._kill()

    def _is_silent_since(self, asked_at: float) -> bool:
        """Tell whether a keeper that has begun has said nothing; not if it was us who were away."""
        now = time.monotonic()
        has_begun = self._heard_at > self._started_at or now - self._started_at > _BEGINS_S
        was_away = now - asked_at > self._check_s + _ANSWER_SLACK_S + _LATE_S
        return self._line is not None and has_begun and self._heard_at < asked_at and not was_away

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def _hang_up(self) -> None:
        if self._line is not None:
            asyncio.get_running_loop().remove_reader(self._line)
            self._line.close()
            self._line = None
        for question in self._questions.values():
            if not question.done():
                question.set_exception(NotReady(_NO_KEEPER, hint="try again"))


def module_environment() -> dict[str, str]:
    """Return the environment in which our own modules are found whatever the working directory. No secret is in ours."""
    here = str(Path(__file__).resolve().parents[1])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{known}" if known else here}
