"""The keeper's one loop: descriptors, timers, signals. Callbacks are short and never wait."""

import contextlib
import heapq
import selectors
import signal
import socket
import time
from collections.abc import Callable
from itertools import count

Callback = Callable[[], None]
_TIMERS_KEPT = 256


class Timer:
    """A callback that is due at a moment, once."""

    __slots__ = ("_callback", "due")

    def __init__(self, due: float, callback: Callback) -> None:
        self.due = due
        self._callback: Callback | None = callback

    @property
    def is_over(self) -> bool:
        """Tell whether it has run or was cancelled."""
        return self._callback is None

    def cancel(self) -> None:
        """See that it never runs. Harmless afterwards too."""
        self._callback = None

    def fire(self) -> None:
        """Run it, unless it was cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Loop:
    """Waits for whatever comes first and runs its callback.

    `on_error` is given what a callback raises, and the loop goes on; without it the exception leaves `run`.
    """

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        self._on_error = on_error
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_most = _TIMERS_KEPT
        self._numbers = count()
        self._is_running = False
        self._wake: tuple[socket.socket, socket.socket] | None = None

    def watch(self, readable: int | socket.socket, callback: Callback) -> None:
        """Run `callback` whenever there is something to read, or the end."""
        self._selector.register(readable, selectors.EVENT_READ, callback)

    def unwatch(self, readable: int | socket.socket) -> None:
        """Stop that. To be called before the descriptor is closed."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(readable)

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        """Run `callback` once after `delay_s`."""
        timer = Timer(time.monotonic() + delay_s, callback)
        if len(self._timers) >= self._timers_most:
            self._forget_cancelled()
        heapq.heappush(self._timers, (timer.due, next(self._numbers), timer))
        return timer

    def on_signals(self, numbers: tuple[signal.Signals, ...], callback: Callable[[int], None]) -> None:
        """Run `callback(number)` in the loop for every signal that arrives."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._wake = (reader, writer)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _noted_by_the_wakeup_descriptor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                for number in reader.recv(4096):
                    callback(number)

        self.watch(reader, drain)

    def run(self) -> None:
        """Run until `stop`."""
        self._is_running = True
        while self._is_running:
            for key, _ in self._selector.select(self._wait_s()):
                # An earlier callback of this round may have ended what this one is about.
                if self._selector.get_map().get(key.fd) is key:
                    self._call(key.data)
            self._run_due()

    def stop(self) -> None:
        """Return from `run` after the present callback."""
        self._is_running = False

    def close(self) -> None:
        """Give up the loop's descriptors."""
        if self._wake is not None:
            signal.set_wakeup_fd(-1)
            for end in self._wake:
                end.close()
        self._selector.close()

    def _wait_s(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _forget_cancelled(self) -> None:
        """Keep no more than twice the timers that count: whoever knocks makes one, and may knock without end."""
        self._timers = [entry for entry in self._timers if not entry[2].is_over]
        heapq.heapify(self._timers)
        self._timers_most = max(_TIMERS_KEPT, 2 * len(self._timers))

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._call(heapq.heappop(self._timers)[2].fire)

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)


def _noted_by_the_wakeup_descriptor(number: int, frame: object) -> None:
    """Take the place of the default action; the loop hears of the signal by its descriptor."""
