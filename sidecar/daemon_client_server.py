"""An external client's program as what serves a volume: one process, which nobody can succeed.

One that dies after it has worked is started again here, with a new connection: kubelet would take ten seconds for that, and then
longer and longer. One that does not get that far, or dies too often, ends its container, for everybody to see.
"""

import contextlib
import os
import signal
import time
from collections import deque

from sidecar import daemon_codes
from sidecar.daemon_client import Client, client_argv
from sidecar.daemon_client_family import end_family
from sidecar.daemon_settings import DaemonSettings, Master, Order
from sidecar.orphaned_mounts import Use
from sidemount.host.fuse_mount import is_connection_gone
from sidemount.host.handover import Heartbeat, Hello, Ready
from sidemount.host.logs import EventLog
from sidemount.model.client_command import program_of
from sidemount.model.names import client_place

_FILES = "credentials"  # in the run directory, which is memory and nobody else's
_WORKED_S = 1.0
_RESTARTS_MAX = 10
_WINDOW_S = 60.0
_FAMILY_S = 2.0


class Restarts:
    """Decides whether a client that died is started again in this container. Times are of one monotonic clock."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_RESTARTS_MAX)

    def is_due(self, started: float, now: float) -> bool:
        """Tell whether it is, and remember that."""
        is_often = len(self._times) == _RESTARTS_MAX and now - self._times[0] < _WINDOW_S
        if now - started < _WORKED_S or is_often:
            return False
        self._times.append(now)
        return True


class ClientServer:
    """Implements `sidecar.daemon_settings.Server`."""

    def __init__(
        self, order: Order, settings: DaemonSettings, master: Master, restarts: Restarts, log: EventLog
    ) -> None:
        self._serve = order.serve
        self._device = order.device
        self._settings = settings
        self._master = master
        self._restarts = restarts
        self._log = log
        self._client: Client | None = None
        self._started = time.monotonic()
        self._is_told_to_end = False

    def start(self) -> None:
        """Start the program."""
        spec = self._serve.spec
        own = f"{self._settings.mounts_dir}/{client_place(spec.volume)}"
        mountpoint = f"/dev/fd/{self._device}" if self._device >= 0 else own
        argv = client_argv(spec.command, mountpoint, f"{self._settings.run_dir}/{_FILES}")
        self._client = Client(argv, self._device, self._settings.secrets, self._log)
        self._log.info("client_started", program=program_of(spec.command), pid=self._client.pid)
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

    def use(self) -> Use | None:
        """Return None: a program tells nothing of what is open."""
        return None

    def check(self) -> None:
        """See whether there is still something to serve."""
        if self._is_unmounted():
            self._master.finish()

    def _is_unmounted(self) -> bool:
        return self._device >= 0 and is_connection_gone(self._device)

    def on_stale(self) -> None:
        """End a program whose own mount is not there any more; only a new one makes a new mount."""
        if not self._serve.spec.descriptor:
            self._master.finish()

    def reap(self) -> None:
        """Notice the program's end, and reap what it has left behind."""
        if self._client is None:
            return
        with contextlib.suppress(
            ChildProcessError
        ):  # whoever sends it a signal has looked whether it is there, and reaped it
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == self._client.pid:
                    break
                os.waitpid(ended.si_pid, os.WNOHANG)
        self._ended()

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        self._is_told_to_end = True
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
        self._is_told_to_end = True
        if self._client is not None:
            self._client.signal(signal.SIGKILL)

    def _ended(self) -> None:
        """See whether the program has ended, and do what follows from it."""
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
        now = time.monotonic()
        is_early = not self._is_told_to_end and now - self._started < _WORKED_S
        if code == 0 and is_early and not self._is_unmounted():
            code = daemon_codes.NOT_STARTED  # some call that success, and kubelet would, too
        if code == 0 or self._is_told_to_end or not self._restarts.is_due(self._started, now):
            self._master.ended(code, clean=code == 0)
            return
        if not end_family(
            _FAMILY_S
        ):  # what still lives might write to the store that the next client starts on
            self._log.error("client_left_processes", waited_s=_FAMILY_S)
            self._master.ended(code, clean=False)
            return
        if self._device >= 0:
            os.close(self._device)
        self._master.lost(f"the client ended with code {code}", clean=False)
