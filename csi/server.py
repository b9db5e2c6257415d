"""The gRPC server: listens on one socket, and ends by finishing what was begun."""

import os
from collections.abc import Mapping

import grpc
import grpc.aio

from csi.boundary import CallWatch, Method, generic_handler
from csi.endpoint import grpc_address, prepare_socket, private_sockets
from sidemount.model.errors import HostFailure

_REQUEST_MAX_BYTES = 4 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _REQUEST_MAX_BYTES),
    ("grpc.so_reuseport", 0),
)


class Server:
    """Serves services at a socket."""

    def __init__(
        self, path: str, services: Mapping[str, Mapping[str, Method]], watch: CallWatch | None = None
    ) -> None:
        """`services` by full name, such as csi.v1.Node. `watch` counts their calls. To be made in the running loop."""
        self._path = path
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers(
            tuple(generic_handler(name, methods, watch) for name, methods in services.items())
        )

    async def start(self) -> None:
        """Listen. Raises VolumeError."""
        prepare_socket(self._path)
        try:
            with private_sockets():
                self._server.add_insecure_port(grpc_address(self._path))
            os.chmod(self._path, 0o600, follow_symlinks=False)
        except (RuntimeError, OSError) as error:
            raise HostFailure(f"endpoint {self._path}: cannot listen: {error}") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those under way end within `grace_s`, and take the socket away."""
        await self._server.stop(grace_s)
