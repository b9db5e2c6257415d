"""Bounds of the server: sizes, counts and deadlines. One frozen value, so that tests can make them small."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every bound, with the reason where it is not plain.

    `body_bytes`: the API server takes 3 MiB of object, and a review of an update carries two.
    `buffered_bytes`: all bodies in memory together; beyond it a caller is told to come again.
    `thread_body_bytes`: from here on a body is handled beside the event loop, so that it holds up no other.
    `plain_body_bytes`: a larger one goes the longer way, where memory is budgeted; all connections together may hold this.
    `connections`: each takes a quarter of a mebibyte for TLS alone; an API server needs one a call at a time.
    `idle_s`: longer than the 90 s after which the API server's client drops an idle connection: the client, who knows
    whether it is about to send, closes first.
    `request_s`: the API server waits 30 s at most.
    """

    body_bytes: int = 7 * 1024 * 1024
    buffered_bytes: int = 128 * 1024 * 1024
    thread_body_bytes: int = 512 * 1024
    plain_body_bytes: int = 128 * 1024
    connections: int = 256
    handshakes: int = 128
    handshake_s: float = 10.0
    shutdown_s: float = 2.0
    header_s: float = 10.0
    idle_s: float = 150.0
    request_s: float = 30.0
    discard_s: float = 5.0
    header_bytes: int = 16 * 1024
    headers: int = 100


class BodyBudget:
    """Bytes of bodies that may be in memory at once. One event loop's: not for threads."""

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes

    @property
    def left_bytes(self) -> int:
        """How much may still be taken."""
        return self._left

    def take(self, size_bytes: int) -> bool:
        """Take that much, or tell that there is too little left."""
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Give back what was taken."""
        self._left += size_bytes
