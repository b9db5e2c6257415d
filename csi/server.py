"""The gRPC server: listens on one socket, again if somebody takes that away, and ends by finishing what was begun."""

import asyncio
import contextlib
import os
from collections.abc import Mapping

import grpc
import grpc.aio

from csi.boundary import CallWatch, Method, generic_handler
from csi.endpoint import grpc_address, prepare_socket, private_sockets
from sidemount.host.limited_log import LimitedLog
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, VolumeError

_REQUEST_MAX_BYTES = 4 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _REQUEST_MAX_BYTES),
    ("grpc.so_reuseport", 0),
)
_LOOK_S = 1.0


class Server:
    """Serves services at a socket."""

    def __init__(
        self, path: str, services: Mapping[str, Mapping[str, Method]], watch: CallWatch | None = None
    ) -> None:
        """`services` by full name, such as csi.v1.Node. `watch` counts their calls. To be made in the running loop."""
        self._path = path
        self._handlers = tuple(generic_handler(name, methods, watch) for name, methods in services.items())
        # Those whose sockets are gone serve who is connected. The end of one takes away whatever lies at the path.
        self._servers: list[grpc.aio.Server] = []
        self._socket: tuple[int, int] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises VolumeError."""
        prepare_socket(self._path)
        await self._listen()
        self._looking = asyncio.create_task(self._look_after_socket())

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those under way end within `grace_s`, and take the socket away."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))

    async def _listen(self) -> None:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers)
        try:
            with private_sockets():
                server.add_insecure_port(grpc_address(self._path))
            os.chmod(self._path, 0o600, follow_symlinks=False)
            self._socket = self._found()
        except (RuntimeError, OSError) as error:
            raise HostFailure(f"endpoint {self._path}: cannot listen: {error}") from error
        self._servers.append(server)
        await server.start()

    async def _look_after_socket(self) -> None:
        journal = LimitedLog(log("csi.server"))
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._found() == self._socket:
                continue
            try:
                await asyncio.to_thread(prepare_socket, self._path)
                await self._listen()
                journal.warning("socket_made_again", endpoint=self._path)
            except VolumeError as error:
                journal.error("socket_lost", endpoint=self._path, fault=str(error))

    def _found(self) -> tuple[int, int] | None:
        """Return what tells what lies at the path from anything else, None if nothing does."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino
