"""`python -m e2e.cluster.node_init SPEC [LOCK]`: the first process of a node. It sets the node up, reaps, and takes orders.

When it dies, the kernel ends every process and with them every mount and address of the node.
"""

import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

from e2e.cluster.errors import ClusterFault
from e2e.cluster.node_setup import set_up
from e2e.cluster.node_spec import NodeSpec, parse_spec
from e2e.cluster.orders import obey, short_path
from e2e.cluster.supervisor import Supervisor

_ORDER_S = 2.0
_LONGEST_ORDER_BYTES = 1 << 16


def main(argv: list[str]) -> int:
    """Run until killed. Return 1 when the node cannot be set up."""
    if len(argv) > 2:
        os.set_inheritable(int(argv[2]), False)  # held by this process and its parent, by no component
    spec = parse_spec(Path(argv[1]).read_text())
    try:
        set_up(spec)
    except (ClusterFault, OSError) as error:
        print(f"node: {error}", file=sys.stderr, flush=True)
        return 1
    _serve(spec)
    return 0


def _serve(spec: NodeSpec) -> None:
    supervisor = Supervisor(spec.components, spec.logs)
    wakeup = _wake_on_children()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        spec.socket.unlink(missing_ok=True)
        with short_path(spec.socket) as path:
            listener.bind(path)
        listener.listen(16)
        selector = selectors.DefaultSelector()
        selector.register(wakeup, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        print(f"node: {spec.name} is set up", file=sys.stderr, flush=True)
        while True:
            for key, _ in selector.select(supervisor.start_due()):
                if key.fileobj is listener:
                    _take_order(listener, supervisor)
                else:
                    wakeup.recv(4096)
            _reap(supervisor)


def _wake_on_children() -> socket.socket:
    """Return a socket that becomes readable when a child has ended."""
    read, write = socket.socketpair()
    read.setblocking(False)
    write.setblocking(False)
    signal.set_wakeup_fd(write.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    return read


def _ignore(number: int, frame: FrameType | None) -> None:
    """The wakeup socket tells of it."""


def _reap(supervisor: Supervisor) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        supervisor.ended(pid, status)


def _take_order(listener: socket.socket, supervisor: Supervisor) -> None:
    """Answer one connection. Who sends nothing keeps the others waiting for no longer than a moment."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_ORDER_S)
        try:
            line = b""
            while not line.endswith(b"\n"):
                chunk = connection.recv(4096)
                if not chunk or len(line) > _LONGEST_ORDER_BYTES:
                    return
                line += chunk
            connection.sendall(obey(supervisor, line))
        except OSError as error:
            print(f"node: an order was not taken: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
