"""What of a daemon's first process lasts longer than one connection: loaded modules, waiting processes, those that would not end."""

import os
from functools import partial

from sidecar.daemon_runtime import load_pyfuse3
from sidecar.daemon_settings import DaemonSettings
from sidecar.zygote_children import Child
from sidecar.zygote_memory import (
    child_data_limit,
    container_memory_limit,
    is_too_small,
    memory_events,
    out_of_memory_kills,
    own_memory,
)
from sidecar.zygote_spares import Spares
from sidecar.zygote_state import state_dir
from sidemount.host.logs import EventLog
from sidemount.host.loop import Loop
from sidemount.model.driver_class import DAEMON_MEMORY_MIN_BYTES
from sidemount.model.errors import HostFailure

_STUCK_MAX = 4


class ZygoteParts:
    """What lasts longer than one connection: loaded modules, waiting processes, processes that would not end."""

    def __init__(self, loop: Loop, settings: DaemonSettings, log: EventLog) -> None:
        self.loop = loop
        self.settings = settings
        self.stuck: list[Child] = []
        self._log = log
        self._spares: Spares | None = None
        self._memory_events = ""
        self._memory_kills = 0

    def load(self, filesystem: str) -> None:
        """Import what serves a filesystem, once, for all processes."""
        if self._spares is None:
            load_pyfuse3(self.settings.runtime)
            # An external client's daemon needs none of it.
            from sidecar.filesystems import preload
            from sidecar.spare import SpareSettings, run_spare
            from sidemount.host.own_descriptors import raise_descriptor_limit

            preload(filesystem)
            # For the children as well: they have to take what a predecessor has left. And no more descriptors can be
            # sent, not even the device's, than this allows to be under way.
            raise_descriptor_limit()
            self._memory_events = memory_events()  # now, for applications wait whenever it is read
            self._memory_kills = out_of_memory_kills(self._memory_events)
            limit = self._data_limit()
            settings = SpareSettings(
                state_dir=state_dir(self.settings.run_dir),
                source=self.settings.source,
                secrets=self.settings.secrets,
                cache=self.settings.cache,
                runtime=self.settings.runtime,
                resend=self.settings.resend,
                data_bytes=limit,
            )
            main = partial(run_spare, settings, os.getpid(), self._log)
            self._log.info("modules_loaded", data_limit_bytes=limit)
            self._spares = Spares(self.loop, self.settings.spares, main, self._log)

    def _data_limit(self) -> int | None:
        container = container_memory_limit()
        if is_too_small(container):
            self._log.warning(
                "memory_limit_low",
                limit_bytes=container,
                needed_bytes=DAEMON_MEMORY_MIN_BYTES,
                consequence="the kernel may kill the container whenever it is used by many",
                hint="give the driver class resources.limits.memory of that much or more",
            )
        return child_data_limit(container, own_memory())

    def take(self) -> Child:
        """Return a waiting process. Raises OSError, HostFailure."""
        if self._spares is None or len(self.stuck) >= _STUCK_MAX:
            raise HostFailure(f"{len(self.stuck)} processes were killed and do not end: the store hangs")
        return self._spares.take()

    def was_out_of_memory(self) -> bool:
        """Tell whether the kernel has killed one of the container's processes for its memory since this was asked last."""
        before, self._memory_kills = self._memory_kills, out_of_memory_kills(self._memory_events)
        return self._memory_kills > before

    def refill(self) -> None:
        """See that enough processes wait."""
        if self._spares is not None:
            self._spares.refill()

    def reap(self) -> list[tuple[int, int]]:
        """Reap every ended process, and return pid and status of those that have served."""
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            stuck = next((child for child in self.stuck if child.pid == pid), None)
            if stuck is not None:
                self.stuck.remove(stuck)
                stuck.close()
            elif self._spares is None or not self._spares.lose(pid):
                ended.append((pid, status))

    def close(self) -> None:
        """Let the waiting processes go."""
        if self._spares is not None:
            self._spares.close()
