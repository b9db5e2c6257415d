"""The table of all connections: who waits for an answer, who is idle, who is too slow."""

import asyncio
import contextlib
from typing import Protocol

from webhook.limits import Limits

_LOOK_AGAIN_S = 1.0


class Tracked(Protocol):
    """What the table knows of a connection. Times are the event loop's."""

    busy_since: float | None
    idle_since: float
    is_handling: bool
    answers: int

    @property
    def awaits_headers(self) -> bool:
        """Whether a request has begun of which not even the headers are there."""
        ...

    def refuse_slow(self) -> None:
        """Tell the peer that its time is over, and close."""
        ...

    def force_close(self) -> None:
        """Close."""
        ...


class ConnectionTable:
    """Every open connection."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.handshaking = 0  # accepted, not yet connections
        self.slow_clients = 0  # refused for it so far
        self._connections: dict[Tracked, None] = {}
        self._changed: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Tracked) -> None:
        """Take a connection in."""
        self._connections[connection] = None

    def discard(self, connection: Tracked) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)
        self.notify()

    def notify(self) -> None:
        """Wake whoever waits for a change."""
        if self._changed is not None:
            self._changed.set()

    @property
    def handling(self) -> int:
        """How many requests are being handled."""
        return sum(connection.is_handling for connection in self._connections)

    @property
    def waiting(self) -> int:
        """How many peers wait for an answer, or are still sending their request."""
        return sum(connection.busy_since is not None for connection in self._connections)

    def sweep(self, now: float) -> None:
        """Refuse every peer whose request line and headers take too long, and close what has been idle too long."""
        latest, idle_latest = now - self.limits.header_s, now - self.limits.idle_s
        for connection in list(self._connections):
            if connection.busy_since is None:
                if connection.idle_since < idle_latest:
                    connection.force_close()
            elif connection.busy_since < latest and connection.awaits_headers:
                connection.refuse_slow()

    def make_room(self) -> bool:
        """Tell whether one more connection may come; the longest idle one goes for it if need be."""
        return len(self._connections) < self.limits.connections or self.close_longest_idle()

    def close_longest_idle(self) -> bool:
        """Close the connection that has been idle longest; return whether there was one."""
        idle = [connection for connection in self._connections if connection.busy_since is None]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since)
        self.discard(oldest)
        oldest.force_close()
        return True

    def close_idle(self) -> None:
        """Close every connection on which nobody waits for an answer."""
        for connection in list(self._connections):
            if connection.busy_since is None:
                connection.force_close()

    async def wait_until_quiet(self, fresh_s: float) -> None:
        """Return when nobody waits for an answer, and nobody who has just connected is about to ask."""
        now = asyncio.get_running_loop().time
        self._changed = asyncio.Event()
        try:
            while (wait_s := self._quiet_in_s(fresh_s, now())) > 0:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        finally:
            self._changed = None

    async def wait_until_empty(self) -> None:
        """Return when no connection is left."""
        self._changed = asyncio.Event()
        try:
            while self._connections:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._changed = None

    def _quiet_in_s(self, fresh_s: float, now: float) -> float:
        if self.handshaking or any(connection.busy_since is not None for connection in self._connections):
            return _LOOK_AGAIN_S
        fresh = [c.idle_since for c in self._connections if not c.answers]
        return max(fresh, default=now - fresh_s) + fresh_s - now
