"""The plugin's line to the nursery of its daemons (`python -m sidecar nursery`), from which they start in milliseconds.

It is only faster: without it daemons are started as programs. When it ends another one is started, ever more seldom.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from csi.keeper_link import module_environment
from sidemount.host import nursery_words as words
from sidemount.host.command_line import PADDING
from sidemount.host.descriptor_passing import receive_with_descriptors
from sidemount.host.logs import log
from sidemount.model.errors import BadMessage

_AGAIN_FIRST_S = 0.5
_AGAIN_MOST_S = 60.0
_STEADY_S = 30.0
_ANSWER_S = 5.0
_CODE_S = 1.0
_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What a daemon starts as. `is_unconfined`: with all rights that we have."""

    arguments: Sequence[str]
    pid_file: str
    group: str
    uid: int
    capabilities: Sequence[str]
    is_unconfined: bool


@dataclass(frozen=True, slots=True)
class Born:
    """A process that lives, or has. The descriptor is the caller's."""

    pid: int
    pidfd: int


class Nursery:
    """One process, restarted when it ends."""

    def __init__(self, environment: Sequence[str]) -> None:
        """`environment` names the variables that daemons get."""
        self._environment = environment
        self._log = log("csi.nursery")
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._is_ready = False
        self._is_stopped = False
        self._numbers = count(1)
        self._orders: dict[int, asyncio.Future[Born | None]] = {}
        self._living: dict[int, asyncio.Future[int]] = {}
        self._started_at = 0.0
        self._pause_s = _AGAIN_FIRST_S
        self._again: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Return its process id."""
        return None if self._process is None else self._process.pid

    @property
    def is_ready(self) -> bool:
        """Tell whether it has loaded everything."""
        return self._is_ready

    def start(self) -> None:
        """Start it. That it cannot be started is no reason not to serve."""
        self._again = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        known = module_environment()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sidecar", "nursery", str(theirs.fileno()), PADDING],
                    stdin=subprocess.DEVNULL,
                    cwd="/",
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={name: known[name] for name in self._environment if name in known},
                )
            except OSError as error:
                ours.close()
                self._log.error("nursery_not_started", fault=str(error))
                self._start_later()
                return
        ours.setblocking(False)
        self._line = ours
        self._started_at = time.monotonic()
        asyncio.get_running_loop().add_reader(ours, self._read)

    async def stop(self) -> None:
        """End it. Its daemons live on."""
        self._is_stopped = True
        if self._again is not None:
            self._again.cancel()
        self._hang_up()
        process = self._process
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def bear(self, birth: Birth, output: int) -> Born | None:
        """Start a daemon that writes to `output`; None if it has to be started in another way."""
        if self._line is None or not self._is_ready:
            return None
        number = next(self._numbers)
        order = words.written(
            words.START,
            id=number,
            arguments=list(birth.arguments),
            pid_file=birth.pid_file,
            group=birth.group,
            uid=birth.uid,
            capabilities=list(birth.capabilities),
            unconfined=birth.is_unconfined,
        )
        answer: asyncio.Future[Born | None] = asyncio.get_running_loop().create_future()
        self._orders[number] = answer
        try:
            socket.send_fds(self._line, [order], [output])
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            self._log.error("nursery_hangs", consequence="daemons are started without it")
        except OSError as error:
            self._log.error("nursery_unreachable", fault=str(error))
        finally:
            self._orders.pop(number, None)
        # What it may have forked ends by itself, for nobody is at the line any more.
        self._gone()
        return None

    async def code_of(self, pid: int) -> int:
        """Return how a daemon from here has ended; -1 if nobody knows."""
        known = self._living.get(pid)
        if known is None:
            return _UNKNOWN
        try:
            async with asyncio.timeout(_CODE_S):
                return await known
        except TimeoutError:
            return _UNKNOWN
        finally:
            self._living.pop(pid, None)

    # The line ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        while self._line is not None:
            try:
                datagram, descriptors, _ = receive_with_descriptors(self._line, words.MESSAGE_MAX, 1)
            except BlockingIOError:
                return
            except OSError:
                datagram, descriptors = b"", []
            if not datagram:
                self._gone()
                return
            try:
                self._take(*words.read(datagram), descriptors)
            except BadMessage as error:
                self._log.error("bad_report", fault=str(error))
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _take(self, say: str, report: dict[str, Any], descriptors: list[int]) -> None:
        match say:
            case words.READY:
                self._is_ready = True
                took_s = round(time.monotonic() - self._started_at, 3)
                self._log.info("nursery_ready", pid=self.pid, took_s=took_s)
            case words.STARTED:
                self._living[report["pid"]] = asyncio.get_running_loop().create_future()
                answer = self._orders.get(report["id"])
                if answer is not None and not answer.done() and descriptors:
                    answer.set_result(Born(report["pid"], descriptors.pop()))
            case words.REFUSED:
                self._log.warning("birth_refused", fault=report["fault"])
                answer = self._orders.get(report["id"])
                if answer is not None and not answer.done():
                    answer.set_result(None)
            case words.ENDED:
                living = self._living.get(report["pid"])
                if living is not None and not living.done():
                    living.set_result(report["code"])

    def _gone(self) -> None:
        self._hang_up()
        if self._is_stopped:
            return
        process = self._process
        if process is not None:
            process.kill()
            process.wait()  # it was killed, and waits for nothing
        if time.monotonic() - self._started_at > _STEADY_S:
            self._pause_s = _AGAIN_FIRST_S
        self._log.warning("nursery_gone", consequence="daemons go on; new ones start more slowly for a while")
        self._start_later()

    def _start_later(self) -> None:
        self._again = asyncio.get_running_loop().call_later(self._pause_s, self.start)
        self._pause_s = min(_AGAIN_MOST_S, self._pause_s * 2)

    def _hang_up(self) -> None:
        self._is_ready = False
        if self._line is not None:
            asyncio.get_running_loop().remove_reader(self._line)
            self._line.close()
            self._line = None
        for order in self._orders.values():
            if not order.done():
                order.set_result(None)
        for living in self._living.values():
            if not living.done():
                living.set_result(_UNKNOWN)
        self._living.clear()
