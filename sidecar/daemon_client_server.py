"""An external client's program as what serves a volume: one process, which nobody can succeed."""

import os
import signal

from sidecar.daemon_client import Client, client_argv
from sidecar.daemon_settings import DaemonSettings, Master, Order
from sidemount.host.fuse_mount import is_connection_gone
from sidemount.host.handover import Heartbeat, Hello, Ready
from sidemount.host.logs import EventLog
from sidemount.model.names import client_place


class ClientServer:
    """Implements `sidecar.daemon_settings.Server`."""

    def __init__(self, order: Order, settings: DaemonSettings, master: Master, log: EventLog) -> None:
        self._serve = order.serve
        self._device = order.device
        self._settings = settings
        self._master = master
        self._log = log
        self._client: Client | None = None

    def start(self) -> None:
        """Start the program."""
        spec = self._serve.spec
        own = f"{self._settings.mounts_dir}/{client_place(spec.volume)}"
        mountpoint = f"/dev/fd/{self._device}" if self._device >= 0 else own
        self._client = Client(
            client_argv(spec.command, mountpoint), self._device, self._settings.secrets, self._log
        )
        self._log.info("client_started", program=spec.command[0], pid=self._client.pid)
        self._master.tell(Ready(generation=self._serve.generation))

    def introduce(self) -> tuple[Hello, int | None]:
        """Hand the descriptor back, if there is one."""
        has_device = self._serve.spec.descriptor
        hello = Hello(
            takeover=False,
            hands_back=has_device,
            generation=self._serve.generation,
            init=self._serve.init if has_device else b"",
        )
        return hello, self._device if has_device else None

    def adopted(self) -> None:
        """Say nothing: there is no more to it."""

    def take_kept(self, key: int, descriptor: int) -> None:
        """Take nothing."""
        os.close(descriptor)

    def heartbeat(self) -> Heartbeat:
        """Return that the program lives; it cannot count."""
        return Heartbeat()

    def check(self) -> None:
        """See whether there is still something to serve."""
        if self._device >= 0 and is_connection_gone(self._device):
            self._master.finish()

    def on_stale(self) -> None:
        """End a program whose own mount is not there any more; only a new one makes a new mount."""
        if not self._serve.spec.descriptor:
            self._master.finish()

    def reap(self) -> None:
        """Notice the program's end, and reap what it has left behind."""
        if self._client is None:
            return
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == self._client.pid:
                self._ended()
                return
            os.waitpid(ended.si_pid, os.WNOHANG)

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if self._client is not None:
            self._client.end(self._settings.flush_s)

    def kill(self, generation: int) -> None:
        """Kill it."""
        if self._client is not None and generation == self._serve.generation:
            self._client.signal(signal.SIGKILL)

    def hand_over(self) -> None:
        """Refuse: nobody can succeed it."""
        self._log.warning("hand_over_refused", why="an external client cannot be succeeded")

    def abandon(self) -> None:
        """Kill it."""
        if self._client is not None:
            self._client.signal(signal.SIGKILL)

    def _ended(self) -> None:
        if self._client is None:
            return
        code = self._client.poll()
        if code is None:
            return
        if code == 0:
            self._log.info("client_ended", code=code)
        else:
            self._log.error("client_ended", code=code, output=self._client.tail())
        self._client = None
        self._master.ended(code, clean=code == 0)
