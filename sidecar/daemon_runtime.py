"""The event loop that pyfuse3 runs on: trio, or our own that pays nothing per request. The one seam between them."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import pyfuse3
import trio

from sidecar.poll_runtime import PollRuntime

T = TypeVar("T")
Main = Callable[[], Awaitable[Any]]
RUNTIMES = ("trio", "poll")


class Runtime(Protocol):
    """Runs pyfuse3's main loop."""

    def run(self, main: Main) -> None:
        """Run it to its end."""
        ...

    def terminate(self) -> None:
        """Have pyfuse3 end once what it works on is answered. May be called from another thread."""
        ...

    @property
    def in_thread(self) -> Callable[..., Awaitable[Any]] | None:
        """Return how a filesystem runs what waits; None for its own default."""
        ...


class TrioRuntime:
    """pyfuse3's own choice."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_terminated = False

    def run(self, main: Main) -> None:
        """Run it to its end."""

        async def known() -> None:
            self._token = trio.lowlevel.current_trio_token()
            if not self._is_terminated:
                await main()

        trio.run(known)

    def terminate(self) -> None:
        """Have pyfuse3 end."""
        self._is_terminated = True
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(pyfuse3.terminate)

    @property
    def in_thread(self) -> None:
        """Return nothing: trio is every filesystem's default."""
        return None


class PolledRuntime:
    """`sidecar.poll_runtime`."""

    def __init__(self) -> None:
        self._runtime = PollRuntime()

    def run(self, main: Main) -> None:
        """Run it to its end."""

        async def wrapped() -> None:
            await main()

        self._runtime.run(wrapped)

    def terminate(self) -> None:
        """Have pyfuse3 end."""
        pyfuse3.terminate()

    @property
    def in_thread(self) -> Callable[..., Awaitable[Any]]:
        """Return the runtime's threads."""
        return self._runtime.in_thread


def make_runtime(name: str) -> Runtime:
    """Return the runtime of that name."""
    return TrioRuntime() if name == "trio" else PolledRuntime()
