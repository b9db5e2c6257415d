"""How a serving process has files registered with the kernel: by the keeper, which may be away, slow, or of an earlier release."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sidemount.host.handover import FromDaemon, Holds, Register, Registered, Unregister

_ANSWER_WITHIN_S = 0.01  # all requests wait meanwhile
_PAUSE_FIRST_S = 0.1
_PAUSE_MOST_S = 10.0
_AT_ONCE = 64
_A_SECOND = 32.0  # the keeper has other things to do, and little processor time


class Tell(Protocol):
    """Tells the keeper, by way of the first process."""

    def __call__(self, message: FromDaemon, descriptor: int | None = None) -> None:
        """Tell it."""
        ...


class Registrar:
    """Asks the keeper, only so often, waits a little, and after a no or no answer does not ask for a while, longer each time.

    `begin`, `register` are for the serving thread, `keeper_registers` and `take` for the line's, `unregister` for any.
    """

    def __init__(self, tell: Tell, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._mutex = threading.Lock()
        self._answered = threading.Event()
        self._number = int.from_bytes(os.urandom(8)) >> 2  # tells our requests from those of other processes
        self._expected: int | None = None
        self._backing = 0
        self._is_wanted = False
        self._not_before = 0.0
        self._pause_s = _PAUSE_FIRST_S
        self._room = float(_AT_ONCE)
        self._asked_at = clock()

    def begin(self, held: Sequence[int]) -> None:
        """Tell what is registered already. Before anything else."""
        self._tell(Holds(backings=held))

    def keeper_registers(self) -> None:
        """Note that there is somebody to ask."""
        with self._mutex:
            self._is_wanted = True

    def register(self, descriptor: int) -> int:
        """Return the kernel's number for a file, 0 if it has none: the file is to be opened as any other then."""
        with self._mutex:
            if not self._is_wanted or not self._may_ask(self._clock()):
                return 0
            self._number += 1
            number = self._expected = self._number
            self._backing = 0
            self._answered.clear()
        self._tell(Register(number=number), descriptor)
        self._answered.wait(_ANSWER_WITHIN_S)
        with self._mutex:
            self._expected = None  # an answer that comes now is too late
            if self._backing:
                self._pause_s = _PAUSE_FIRST_S
            else:
                self._not_before = self._clock() + self._pause_s
                self._pause_s = min(2 * self._pause_s, _PAUSE_MOST_S)
            return self._backing

    def _may_ask(self, now: float) -> bool:
        if now < self._not_before:
            return False
        self._room = min(_AT_ONCE, self._room + (now - self._asked_at) * _A_SECOND)
        self._asked_at = now
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def unregister(self, backing: int) -> None:
        """Have it forgotten: nobody has the file open any more."""
        self._tell(Unregister(backing=backing))

    def take(self, answer: Registered) -> None:
        """Take the keeper's answer. What comes too late is not to stay registered."""
        with self._mutex:
            is_expected = answer.number == self._expected
            if is_expected:
                self._expected = None
                self._backing = answer.backing
        if is_expected:
            self._answered.set()
        elif answer.backing:
            self.unregister(answer.backing)
