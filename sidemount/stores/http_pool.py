"""Kept-alive connections to the servers of one store: a bounded number, lent to one thread at a time."""

import errno
import socket
import ssl
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from sidemount.stores.http_connection import Connection, classify
from sidemount.stores.http_message import Answer, Endpoint, ExchangeFailed, Request, Sink
from sidemount.stores.store import FaultKind

_CONNECT_S = 10.0
_NAME_S = 5.0


class HttpPool:
    """Does exchanges, on a connection that is open already if there is one. At most `connections` at a time. For any thread."""

    def __init__(
        self,
        connections: int,
        *,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        proxy_of: Callable[[Endpoint], Endpoint | None] = lambda endpoint: None,
        idle_s: float = 30.0,
    ) -> None:
        self._idle_s = idle_s
        self._room = threading.BoundedSemaphore(connections)
        self._lock = threading.Lock()
        self._idle: defaultdict[Endpoint, deque[Connection]] = defaultdict(deque)
        self._names: dict[Endpoint, tuple[float, list[tuple[int, tuple[object, ...]]]]] = {}
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._proxy_of = proxy_of
        self.closed = threading.Event()

    def exchange(self, request: Request, timeout_s: float, sink: Sink | None = None) -> Answer:
        """Do one exchange. Raises ExchangeFailed, `stale` if a connection that had been idle failed before any answer."""
        if not self._room.acquire(timeout=timeout_s):
            raise ExchangeFailed(FaultKind.TIMEOUT, "all connections are in use")
        try:
            connection = self._idle_one(request.endpoint) or self._connect(request.endpoint, timeout_s)
            try:
                return connection.exchange(request, timeout_s, sink)
            finally:
                self._give_back(connection)
        finally:
            self._room.release()

    def forget_idle(self) -> None:
        """End the connections that nobody uses: one of them has turned out stale, and the others are as old."""
        with self._lock:
            idle = [connection for one in self._idle.values() for connection in one]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """End idle connections now and the others when they are given back. `closed` tells whoever waits for another attempt."""
        with self._lock:
            self.closed.set()
        self.forget_idle()

    def _idle_one(self, endpoint: Endpoint) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(endpoint)
                if not idle:
                    return None
                connection = idle.pop()
            # What has been idle for long may be forgotten on the way, by something that tells neither end.
            if time.monotonic() - connection.used_s < self._idle_s and not connection.is_stale():
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        if not connection.is_reusable:
            connection.close()
            return
        connection.used_s = now_s = time.monotonic()
        with self._lock:
            idle = self._idle[connection.endpoint]
            idle.append(connection)
            old = []
            while idle and (self.closed.is_set() or idle[0].used_s < now_s - self._idle_s):
                old.append(idle.popleft())
        for one in old:
            one.close()

    def _connect(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        deadline_s = time.monotonic() + min(timeout_s, _CONNECT_S)
        try:
            proxy = self._proxy_of(endpoint)
        except ValueError:
            raise ExchangeFailed(FaultKind.REQUEST, "the environment names a proxy that is none") from None
        server = proxy or endpoint
        try:
            sock = self._connected(server, deadline_s)
            try:
                if proxy is not None and endpoint.is_tls:
                    _tunnel(sock, endpoint, deadline_s)
                if endpoint.is_tls:
                    sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
                    sock = self._context().wrap_socket(sock, server_hostname=endpoint.host)
            except BaseException:
                sock.close()
                raise
        except (OSError, ValueError) as error:
            kind, text = classify(error)
            raise ExchangeFailed(kind, f"no connection to {server.authority}: {text}") from error
        return Connection(sock, endpoint, is_proxied=proxy is not None)

    def _connected(self, server: Endpoint, deadline_s: float) -> socket.socket:
        addresses = self._addresses(server, deadline_s)
        last: OSError | None = None
        for number, (family, address) in enumerate(addresses):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(left_s / (len(addresses) - number))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect(address)
            except OSError as error:
                sock.close()
                last = error
                continue
            return sock
        with self._lock:
            self._names.pop(server, None)
        raise last or TimeoutError()

    def _addresses(self, server: Endpoint, deadline_s: float) -> list[tuple[int, tuple[object, ...]]]:
        """Return where a name leads. The resolver knows no deadline of ours, so it works in a thread that is left alone then."""
        now_s = time.monotonic()
        with self._lock:
            known = self._names.get(server)
        if known is not None and now_s - known[0] < _NAME_S:
            return known[1]
        found: list[tuple[int, tuple[object, ...]]] = []
        failed: list[OSError] = []

        def ask() -> None:
            try:
                answers = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
                found.extend((family, address) for family, _, _, _, address in answers)
            except OSError as error:
                failed.append(error)
            except UnicodeError:
                failed.append(socket.gaierror(socket.EAI_NONAME, "no name of a host"))

        resolver = threading.Thread(target=ask, name="resolver", daemon=True)
        try:
            resolver.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "no thread for the resolver") from error
        resolver.join(max(deadline_s - now_s, 0))
        if failed:
            raise failed[0]
        if resolver.is_alive() or not found:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer from the resolver")
        with self._lock:
            self._names[server] = (now_s, list(found))
        return found

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = self._make_tls()
            return self._tls


def _tunnel(sock: socket.socket, endpoint: Endpoint, deadline_s: float) -> None:
    """Ask a proxy to connect to a server."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    target = f"{host}:{endpoint.port}"
    sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
    sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("ascii"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is TLS
        sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
        one = sock.recv(1)
        if not one or len(head) > 16 << 10:
            raise ConnectionError("the proxy ended the connection")
        head += one
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise ConnectionError("the proxy refused the connection")
