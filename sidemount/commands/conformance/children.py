"""What contacts a mount: a child with an application's user, which is given up when it does not answer in time."""

import errno as errnos
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sidemount.host.readiness import wait_readable

APPLICATION = 12345
_ANSWER_MAX = 1 << 20
_CANNOT = 99


class Late(Exception):
    """It did not answer in time; the child may hang for as long as the mount does."""


class Refused(Exception):
    """The kernel or the client has refused it. `errno` says why."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{errnos.errorcode.get(number, number)} ({os.strerror(number)})")
        self.errno = number


def ask(act: Callable[[], Any], *, within_s: float, uid: int = 0) -> Any:
    """Return what `act` returns in a child of that user, as JSON has it. Raises Late, Refused for its OSError."""
    answers, child = _fork(act, uid)
    try:
        text = _read(answers, within_s)
    except Late:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(answers)
        reap_ended()
    answer = json.loads(text)
    if "errno" in answer:
        raise Refused(answer["errno"])
    if "fault" in answer:
        raise RuntimeError(answer["fault"])
    return answer["seen"]


class Holder:
    """A child that has done something and keeps what it has open, until it is asked for more or ended."""

    def __init__(self, act: Callable[[], int], *, within_s: float, uid: int = 0) -> None:
        """`act` returns a descriptor. Raises Late, Refused."""
        asked, self._asks = os.pipe()
        answers, self._child = _fork(lambda: act(), uid, more=(asked, self._asks))
        os.close(asked)
        self._answers = answers
        self._within_s = within_s
        self._answer()

    def read(self) -> int:
        """Read from what it holds; return how many bytes there were. Raises Late, Refused."""
        os.write(self._asks, b"r")
        return int(self._answer())

    def end(self) -> None:
        """Have it end; it may hang for as long as the mount does."""
        with suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        os.close(self._asks)
        os.close(self._answers)
        reap_ended()

    def _answer(self) -> Any:
        answer = json.loads(_read(self._answers, self._within_s, line=True))
        if "errno" in answer:
            raise Refused(answer["errno"])
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        return answer["seen"]


def reap_ended() -> None:
    """Take whoever has ended off the table, but none that somebody waits for by its id."""
    for pid in list(_forked):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _forked.discard(pid)


_forked: set[int] = set()


def _fork(act: Callable[[], Any], uid: int, more: tuple[int, int] | None = None) -> tuple[int, int]:
    answers, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        _forked.add(child)
        return answers, child
    code = _CANNOT
    try:
        os.close(answers)
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        descriptor = _tell(act, told)
        if more is not None and descriptor is not None:
            os.close(more[1])
            while os.read(more[0], 1):
                _tell(lambda: len(os.pread(descriptor, 1 << 16, 0)), told)
        code = 0
    finally:
        os._exit(code)


def _tell(act: Callable[[], Any], told: int) -> Any:
    seen = None
    try:
        seen = act()
        answer: dict[str, Any] = {"seen": seen}
    except OSError as error:
        answer = {"errno": error.errno or errnos.EIO}
    except Exception as error:
        answer = {"fault": repr(error)}
    os.write(told, json.dumps(answer).encode() + b"\n")
    return seen


def _read(answers: int, within_s: float, *, line: bool = False) -> bytes:
    until = time.monotonic() + within_s
    text = b""
    while len(text) < _ANSWER_MAX and not (line and text.endswith(b"\n")):
        ready = wait_readable(answers, until - time.monotonic())
        if not ready:
            raise Late(f"no answer within {within_s:g} s")
        piece = os.read(answers, 1 << 16)
        if not piece:
            break
        text += piece
    if not text:
        raise RuntimeError("a child of the check has ended without an answer")
    return text
