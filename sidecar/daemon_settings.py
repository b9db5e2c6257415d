"""What a daemon is started with, and what its parts expect of each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sidecar.orphaned_mounts import Use
from sidemount.host.handover import FromDaemon, Heartbeat, Hello, Serve
from sidemount.model.errors import VolumeError


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """All paths are absolute.

    `stop_s`: how long after SIGTERM it waits for the keeper to let it go. `flush_s`: how long it may then take to end.
    `resend`: False denies the kernel's RESEND, and with it takeover.
    """

    run_dir: str
    source: str
    secrets: str
    cache: str
    mounts_dir: str
    runtime: str
    spares: int
    resend: bool
    stop_s: float
    flush_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """What the keeper gave: what to serve and the descriptor, -1 for a client that mounts by itself.

    `source` is a descriptor of the source's directory, -1 if it is to be opened by its path.
    """

    serve: Serve
    device: int
    source: int = -1


class Master(Protocol):
    """The daemon's first process, as what serves in it sees it."""

    def tell(
        self,
        message: FromDaemon,
        descriptor: Callable[[], int | None] | None = None,
        *,
        droppable: bool = False,
    ) -> None:
        """Tell the keeper, if there is one."""
        ...

    def ended(self, code: int, *, clean: bool) -> None:
        """Say goodbye and end the daemon. `clean`: everything has reached the store."""
        ...

    def lost(self, detail: str, *, clean: bool) -> None:
        """Give the connection up, and ask the keeper for another."""
        ...

    def failed(self, error: VolumeError) -> None:
        """End the daemon: it cannot serve this volume."""
        ...

    def finish(self) -> None:
        """Begin the end: `stop` and, if that takes too long, force."""
        ...


class Server(Protocol):
    """What serves: an external client's program, or the first process of a built-in filesystem with its children."""

    def start(self) -> None:
        """Begin. Raises VolumeError."""
        ...

    def introduce(self) -> tuple[Hello, int | None]:
        """Return what a new keeper is told first, and the descriptor that it is handed back."""
        ...

    def adopted(self) -> None:
        """Tell a new keeper the rest."""
        ...

    def take_kept(self, key: int, descriptor: int) -> None:
        """Take a descriptor that the keeper has kept."""
        ...

    def heartbeat(self) -> Heartbeat:
        """Return what has been done so far."""
        ...

    def check(self) -> None:
        """Look after what serves. Called about once a second."""
        ...

    def reap(self) -> None:
        """Take ended processes off the process table; orphans too, for the first process of a container has them all."""
        ...

    def use(self) -> Use | None:
        """Return what is known of the volume's use, None if nothing is."""
        ...

    def stop(self) -> None:
        """Finish what is being worked on, flush, and report `ended`."""
        ...

    def kill(self, generation: int) -> None:
        """End the process of that generation, which hangs."""
        ...

    def hand_over(self) -> None:
        """Let a fresh process go on."""
        ...

    def abandon(self) -> None:
        """Kill everything now."""
        ...
