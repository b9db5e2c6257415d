"""Listening sockets and TLS handshakes: bounded, each with the certificate of its moment."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Sequence

from sidemount.host.logs import log
from sidemount.model.errors import HostFailure
from webhook.connection_table import ConnectionTable
from webhook.metrics import Metrics, TlsFault

_BACKLOG = 1024
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S = 0.1
_ACCEPT_AT_ONCE = 32
_log = log("webhook.listener")


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host, all on one port.

    `host` "" means every address. Raises: HostFailure naming address and reason.
    """
    opened: list[socket.socket] = []
    try:
        for family, address in _resolve(host, port):
            opened.append(_open_socket(family, address, port or _port_of(opened)))
    except OSError as error:
        for opened_socket in opened:
            opened_socket.close()
        raise HostFailure(
            f"cannot listen on {host}:{port}: {error.strerror or error}", errno=error.errno or 0
        ) from error
    return opened


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    if not host:
        return [(socket.AF_INET6, "::")] if socket.has_dualstack_ipv6() else [(socket.AF_INET, "0.0.0.0")]  # noqa: S104 - asked for
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise HostFailure(
            f"cannot listen on {host}:{port}: {error.strerror}", errno=error.errno or 0
        ) from error
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    return list(dict.fromkeys(addresses))


def _open_socket(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            only = 0 if address == "::" else 1
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        listening.setblocking(False)
        listening.bind((address, port))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _port_of(sockets: Sequence[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1]) if sockets else 0


class Listener:
    """Accepts connections and hands each that completes its handshake to a protocol of `make_protocol`.

    While as many handshakes run as may, the rest waits in the kernel's backlog.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        table: ConnectionTable,
        metrics: Metrics,
    ) -> None:
        self._sockets = sockets
        self._make_protocol = make_protocol
        self._context = context
        self._table = table
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._is_paused = False

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return _port_of(self._sockets)

    async def run(self) -> None:
        """Accept until `stop`, then return when the last handshake is over."""
        async with asyncio.TaskGroup() as self._group:
            self._resume()
            try:
                await self._stopped.wait()
            finally:
                self._pause()
                for listening in self._sockets:
                    listening.close()

    async def stop(self) -> None:
        """Take what already waits in the backlog, then listen no more: nobody who got through is turned away."""
        self._pause()
        for listening in self._sockets:
            with contextlib.suppress(OSError):
                while True:
                    self._start(listening.accept()[0])
            listening.close()
        self._stopped.set()

    def _pause(self) -> None:
        self._is_paused = True
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)

    def _resume(self) -> None:
        self._is_paused = False
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            if self._table.handshaking >= self._table.limits.handshakes:
                self._pause()
                return
            try:
                accepted, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._after(error)
                return
            self._start(accepted)

    def _after(self, error: OSError) -> None:
        """Carry on after a failed accept: a peer that left at once is nothing, a full table needs room and a pause."""
        if error.errno not in _OUT_OF:
            return
        _log.error("cannot_accept", error=error.strerror, connections=len(self._table))
        self._table.close_longest_idle()
        self._pause()
        self._loop.call_later(_PAUSE_S, self._continue)

    def _continue(self) -> None:
        if self._is_paused and not self._stopped.is_set():
            self._resume()

    def _start(self, accepted: socket.socket) -> None:
        assert self._group is not None  # accepting begins and ends within it
        accepted.setblocking(False)
        self._table.handshaking += 1
        self._group.create_task(self._shake_hands(accepted))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        limits = self._table.limits
        try:
            if not self._table.make_room():
                self._metrics.tls_failed(TlsFault.REFUSED)
                accepted.close()
                return
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=limits.handshake_s,
                ssl_shutdown_timeout=limits.shutdown_s,
            )
        except OSError as error:  # TimeoutError and ssl.SSLError are among them
            self._metrics.tls_failed(_fault_of(error))
        except Exception:
            # One connection's trouble, whatever it is, must not end the listening.
            _log.error("connection_failed", exc_info=True)
            accepted.close()
        finally:
            self._table.handshaking -= 1
            self._table.notify()
            self._continue()


def _fault_of(error: OSError) -> TlsFault:
    match error:
        case TimeoutError():
            return TlsFault.TIMEOUT
        case ssl.SSLError():
            return TlsFault.PROTOCOL
    # asyncio says ConnectionAbortedError("SSL handshake is taking longer …") for a handshake out of time.
    return TlsFault.TIMEOUT if "longer than" in str(error) else TlsFault.GONE
