"""Orders to the first process of a node, over its Unix socket: one line of JSON there, one line back, and done.

{"order": "status"} · {"order": "start", "component": NAME} · {"order": "signal", "component": NAME, "signal": "SIGTERM", "wanted": false}
"""

import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterFault
from e2e.cluster.supervisor import Supervisor

_LONGEST_BYTES = 1 << 20
_ANSWER_S = 10.0


def obey(supervisor: Supervisor, line: bytes) -> bytes:
    """Return the answer to an order, whatever was sent."""
    try:
        order = json.loads(line)
        answer = _obey(supervisor, order)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(answer).encode() + b"\n"


def _obey(supervisor: Supervisor, order: Mapping[str, Any]) -> Mapping[str, Any]:
    match order["order"]:
        case "status":
            return {"components": supervisor.status()}
        case "start":
            supervisor.start(order["component"])
            return {}
        case "signal":
            number = signal.Signals[order["signal"]]
            ran = supervisor.signal(order["component"], number, is_wanted=order["wanted"] is True)
            return {"ran": ran}
        case other:
            raise ValueError(f"no such order: {other!r}")


def give(at: Path, order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give an order and return the answer. Raises ClusterFault: nobody listens, or the order is refused."""
    try:
        with _connected(at) as line:
            line.sendall(json.dumps(order).encode() + b"\n")
            answer: Mapping[str, Any] = json.loads(_read_line(line))
    except (OSError, ValueError) as error:
        raise ClusterFault(f"the node at {at.parent} does not answer: {error}") from error
    if "error" in answer:
        raise ClusterFault(f"the node refuses {order}: {answer['error']}")
    return answer


def first_process(at: Path) -> int | None:
    """Return the process that listens, by the number it has here; None when nobody does."""
    try:
        with _connected(at) as line:
            credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return None
    return int(struct.unpack("3i", credentials)[0]) or None


@contextlib.contextmanager
def short_path(at: Path) -> Iterator[str]:
    """Give a path for a socket's address, which holds no more than 107 bytes: one through an open directory."""
    directory = os.open(at.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{at.name}"
    finally:
        os.close(directory)


@contextlib.contextmanager
def _connected(at: Path) -> Iterator[socket.socket]:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as line,
        short_path(at) as path,
    ):
        line.settimeout(_ANSWER_S)
        line.connect(path)
        yield line


def _read_line(line: socket.socket) -> bytes:
    read = b""
    while not read.endswith(b"\n") and len(read) < _LONGEST_BYTES:
        chunk = line.recv(1 << 16)
        if not chunk:
            break
        read += chunk
    return read
