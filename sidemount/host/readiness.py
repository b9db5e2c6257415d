"""Waiting for one descriptor, whatever its number is: select(2) takes none from 1,024 on."""

import select
import socket


def wait_readable(descriptor: int | socket.socket, timeout_s: float | None = None) -> bool:
    """Wait until there is something to read, or the end; for ever without `timeout_s`. Return False when time is up."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))
