"""The event loop that pyfuse3 runs on: our own, which pays nothing per request, or trio. The one seam between them.

pyfuse3 imports trio, which costs every pod 10 MiB and every start 80 ms, for a module global that our own runtime replaces
anyway. So that global is given to it before, and trio is loaded only by who wants to run on it.
"""

import contextlib
import importlib
import sys
import time
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, Protocol, TypeVar

from sidecar.takeover.errand import Errands

T = TypeVar("T")
Main = Callable[[], Awaitable[Any]]
RUNTIMES = ("poll", "trio")


class Runtime(Protocol):
    """Runs pyfuse3's main loop."""

    def run(self, main: Main) -> None:
        """Run it to its end."""
        ...

    def terminate(self) -> None:
        """Have pyfuse3 end once what it works on is answered. May be called from another thread."""
        ...

    def run_errands(self, errands: Errands) -> None:
        """Have a filesystem's errands run. To be called before `run`."""
        ...

    def serve_one_by_one(self, for_s: float) -> None:
        """Read no request for so long before the one before is answered. To be called before `run`."""
        ...

    def before_first_read(self, prepare: Callable[[], None]) -> None:
        """Have `prepare` called right before each worker makes its buffer. To be called before `run`."""
        ...

    @property
    def once_answered(self) -> Callable[[Callable[[], None]], None] | None:
        """Return what has a function called once the handler that runs now has been answered; None if nothing can."""
        ...

    @property
    def in_thread(self) -> Callable[..., Awaitable[Any]] | None:
        """Return how a filesystem runs what waits; None for its own default."""
        ...


class TrioRuntime:
    """pyfuse3's own choice."""

    def __init__(self) -> None:
        self._pyfuse3 = importlib.import_module("pyfuse3")
        self._trio = importlib.import_module("trio")
        vars(self._pyfuse3)["trio"] = self._trio
        self._token: Any = None
        self._is_terminated = False

    def run(self, main: Main) -> None:
        """Run it to its end."""

        async def known() -> None:
            self._token = self._trio.lowlevel.current_trio_token()
            if not self._is_terminated:
                await main()

        self._trio.run(known)

    def terminate(self) -> None:
        """Have pyfuse3 end."""
        self._is_terminated = True
        if self._token is not None:
            with contextlib.suppress(self._trio.RunFinishedError):
                self._token.run_sync_soon(self._pyfuse3.terminate)

    def run_errands(self, errands: Errands) -> None:
        """Do nothing: on trio nobody keeps what would have errands."""

    def serve_one_by_one(self, for_s: float) -> None:
        """Do nothing: on trio nobody is succeeded."""

    def before_first_read(self, prepare: Callable[[], None]) -> None:
        """Do nothing: on trio nobody is succeeded, and a kill may lose a request."""

    @property
    def once_answered(self) -> None:
        """Return nothing: other tasks may run between an answer and the next call into trio."""
        return None

    @property
    def in_thread(self) -> None:
        """Return nothing: trio is every filesystem's default."""
        return None


class PolledRuntime:
    """`sidecar.poll_runtime`."""

    def __init__(self) -> None:
        self._pyfuse3 = importlib.import_module("pyfuse3")
        self._runtime = importlib.import_module("sidecar.poll_runtime").PollRuntime()
        self._is_terminated = False

    def run(self, main: Main) -> None:
        """Run it to its end."""

        async def wrapped() -> None:
            if not self._is_terminated:
                await main()

        self._runtime.run(wrapped)

    def terminate(self) -> None:
        """Have pyfuse3 end."""
        self._is_terminated = True
        if self._pyfuse3.__dict__.get("trio") is self._runtime:
            self._pyfuse3.terminate()

    def run_errands(self, errands: Errands) -> None:
        """Have them run before each read."""
        self._runtime.errands = errands

    def serve_one_by_one(self, for_s: float) -> None:
        """Do so."""
        self._runtime.one_by_one_until = time.monotonic() + for_s

    def before_first_read(self, prepare: Callable[[], None]) -> None:
        """Have it called."""
        self._runtime.before_first_read = prepare

    @property
    def once_answered(self) -> Callable[[Callable[[], None]], None]:
        """Return the runtime's own."""

        def once_answered(call: Callable[[], None]) -> None:
            self._runtime.once_answered = call

        return once_answered

    @property
    def in_thread(self) -> Callable[..., Awaitable[Any]]:
        """Return the runtime's threads."""
        in_thread: Callable[..., Awaitable[Any]] = self._runtime.in_thread
        return in_thread


def load_pyfuse3(runtime: str) -> None:
    """Import pyfuse3 and what serves with it; without trio unless that is the runtime."""
    if runtime == "poll" and "pyfuse3" not in sys.modules and "trio" not in sys.modules:
        sys.modules["trio"] = ModuleType("trio", "stands in for trio while pyfuse3 is imported")
        try:
            importlib.import_module("pyfuse3")
        finally:
            del sys.modules["trio"]
    importlib.import_module("sidecar.poll_runtime" if runtime == "poll" else "trio")


def make_runtime(name: str) -> Runtime:
    """Return the runtime of that name."""
    return TrioRuntime() if name == "trio" else PolledRuntime()
