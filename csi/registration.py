"""Registration: makes the node service known to kubelet, which looks for sockets in a directory and asks them who they are.

Source: https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/kubelet/pluginmanager/pluginwatcher/README.md
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from random import random

from csi.boundary import Method
from csi.proto import registration_pb2
from csi.server import Server
from sidemount.host.backoff import Backoff
from sidemount.host.logs import log
from sidemount.model.errors import VolumeError
from sidemount.model.names import CSI_DRIVER

SERVICE = "pluginregistration.Registration"
SOCKET = f"{CSI_DRIVER}-reg.sock"
_TYPE = "CSIPlugin"
_VERSIONS = ("1.0.0",)  # of CSI, for which kubelet takes any 1.x
_LOOK_S = 1.0
_SILENCE_S = 30.0
_LONGEST_S = 300.0
_STOP_S = 2.0

Identity = tuple[int, int]


class Registration:
    """Keeps a socket in kubelet's directory and answers there. `run` goes on until cancelled; `stop` comes after it.

    The socket is made anew when it is not there any more, as after kubelet's directory was made anew; and now and then as
    long as kubelet has not registered us, since it forgets a socket whose event it has missed.
    """

    def __init__(
        self,
        directory: str,
        endpoint: str,
        *,
        look_s: float = _LOOK_S,
        silence_s: float = _SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`endpoint` is the path of our own socket as kubelet sees it."""
        self._path = f"{directory}/{SOCKET}"
        self._endpoint = endpoint
        self._look_s = look_s
        self._clock = clock
        self._unopened = Backoff(random, longest_s=silence_s)
        self._unheard_s = silence_s
        self._server: Server | None = None
        self._socket: Identity | None = None
        self._ask_again_at = 0.0
        self._log = log("csi.registration")
        self._is_registered = False
        self._fault = "kubelet has not asked yet"

    @property
    def fault(self) -> str:
        """Why kubelet does not know us, "" if it does."""
        return "" if self._is_registered else self._fault

    @property
    def is_open(self) -> bool:
        """Whether kubelet finds our socket, as far as we have looked."""
        return self._server is not None

    async def run(self) -> None:
        """Keep the socket. Nothing that is wrong with it ends this."""
        while True:
            try:
                await self._look()
                wait_s = self._look_s
                self._unopened.reset()
            except Exception as error:
                self._note(str(error) if isinstance(error, VolumeError | OSError) else repr(error))
                wait_s = self._unopened.next_s(self._look_s)
            await asyncio.sleep(wait_s)

    async def stop(self) -> None:
        """Take the socket away: kubelet calls no plugin that is not there, and asks again when the next one comes."""
        await self._close()

    async def _look(self) -> None:
        is_there = self._server is not None and _identity(self._path) == self._socket
        if is_there and (self._is_registered or self._clock() < self._ask_again_at):
            return
        if self._server is not None and not is_there:
            self._log.warning("registration_socket_gone", path=self._path)
        await self._open()

    async def _open(self) -> None:
        """Make the socket anew. Raises VolumeError, OSError."""
        # A server that ends removes what lies at its path, so the next one comes after it.
        await self._close()
        self._is_registered = False
        server = Server(self._path, {SERVICE: self.methods()})
        await server.start()
        self._server, self._socket = server, _identity(self._path)
        self._ask_again_at = self._clock() + self._unheard_s
        self._unheard_s = min(_LONGEST_S, self._unheard_s * 2)

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        await server.stop(_STOP_S)
        if _identity(self._path) == self._socket:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def methods(self) -> dict[str, Method]:
        """Return the RPCs."""
        return {
            "GetInfo": Method(registration_pb2.InfoRequest, self._info),
            "NotifyRegistrationStatus": Method(registration_pb2.RegistrationStatus, self._told),
        }

    async def _info(self, request: registration_pb2.InfoRequest) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type=_TYPE, name=CSI_DRIVER, endpoint=self._endpoint, supported_versions=_VERSIONS
        )

    async def _told(
        self, request: registration_pb2.RegistrationStatus
    ) -> registration_pb2.RegistrationStatusResponse:
        """Take note of what came of it. Kubelet tries again by itself, and so do we."""
        self._is_registered = request.plugin_registered
        if request.plugin_registered:
            self._unheard_s = _SILENCE_S
            self._log.info("registered", path=self._path, endpoint=self._endpoint)
        else:
            self._note(f"kubelet refuses to register {CSI_DRIVER}: {request.error}")
        return registration_pb2.RegistrationStatusResponse()

    def _note(self, fault: str) -> None:
        if self._fault != fault:
            self._log.warning("not_registered", path=self._path, fault=fault)
        self._fault = fault


def _identity(path: str) -> Identity | None:
    """Return what tells a file from another at the same path, None if there is none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
