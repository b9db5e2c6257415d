"""On its way out: not ready at once, serving for a while yet, then finishing what is in flight."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import Enum

from webhook.connection_table import ConnectionTable

_FRESH_S = 1.0  # who connected this recently is about to ask
_HURRIED_S = 1.0
_CLOSING_S = 1.0


class Phase(Enum):
    """Where a process stands."""

    SERVING = "serving"
    LAME_DUCK = "lame duck"
    FINISHING = "finishing"


class Drain:
    """The way from serving to exit. Call `request` from a signal handler; twice for less patience.

    An endpoint disappears from the callers' view some seconds after its readiness; until then they still connect, and
    are served (k/k#127335). `is_draining` is what makes responses say `Connection: close`: a caller that reads it does
    not send its next request into a closing socket.
    """

    def __init__(self, *, lame_duck_s: float, grace_s: float) -> None:
        self._lame_duck_s = lame_duck_s
        self._grace_s = grace_s
        self._requested = asyncio.Event()
        self._hurried = asyncio.Event()
        self._finishing: asyncio.Timeout | None = None
        self.phase = Phase.SERVING

    @property
    def is_draining(self) -> bool:
        """Whether the end was asked for."""
        return self.phase is not Phase.SERVING

    def request(self) -> None:
        """Ask for the end; a second time, for a faster one."""
        if not self._requested.is_set():
            self.phase = Phase.LAME_DUCK
            self._requested.set()
            return
        self._hurried.set()
        if self._finishing is not None:
            self._hurry(self._finishing)

    async def wait_requested(self) -> None:
        """Return when the end was asked for."""
        await self._requested.wait()

    async def finish(self, stop_accepting: Callable[[], Awaitable[None]], table: ConnectionTable) -> bool:
        """Serve out the lame-duck period, then what is in flight; return whether nobody was left waiting.

        Returns within the grace period, and about a second after the end was asked for a second time.
        """
        ends = asyncio.get_running_loop().time() + self._grace_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._lame_duck_s, self._grace_s)):
                await self._hurried.wait()
        self.phase = Phase.FINISHING
        await stop_accepting()
        try:
            async with asyncio.timeout_at(ends) as self._finishing:
                if self._hurried.is_set():
                    self._hurry(self._finishing)
                await table.wait_until_quiet(_FRESH_S)
        except TimeoutError:
            return table.waiting == 0
        finally:
            self._finishing = None
        table.close_idle()
        with contextlib.suppress(
            TimeoutError
        ):  # closed by us; a peer that does not say so as well is left behind
            async with asyncio.timeout(_CLOSING_S):
                await table.wait_until_empty()
        return True

    @staticmethod
    def _hurry(finishing: asyncio.Timeout) -> None:
        if not finishing.expired():
            finishing.reschedule(asyncio.get_running_loop().time() + _HURRIED_S)
