"""A node that runs: its first process, its components, its container runtime."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterFault
from e2e.cluster.locks import is_locked
from e2e.cluster.namespaces import entering
from e2e.cluster.node_components import CONTAINERD_SOCKET
from e2e.cluster.orders import first_process, give
from e2e.cluster.places import NodePlaces
from e2e.cluster.waiting import wait_for

_STOP_S = 30.0
_IMPORT_S = 300.0
LOG_LINES = 25


class RunningNode:
    """A node by its places. It may end at any time: then each call says that nobody answers.

    `ctr` is containerd's client. `cgroup` is what everything of the node's pods lies beneath.
    """

    def __init__(self, name: str, places: NodePlaces, ctr: str, cgroup: str) -> None:
        self.name = name
        self.node_places = places
        self.cgroup = cgroup
        self._ctr = ctr

    @property
    def pid(self) -> int:
        """The node's first process. Raises ClusterFault when there is none."""
        found = first_process(self.node_places.socket)
        if found is None:
            raise ClusterFault(
                f"{self.name} does not run any more", hint=f"its logs are in {self.node_places.logs}"
            )
        return found

    def runs(self) -> bool:
        """Tell whether anything of the node lives: its first process, or that one's parent, holds the lock."""
        return is_locked(self.node_places.lock)

    def on_node(self, *argv: str, timeout_s: float = 60.0) -> str:
        """Run a command on the node and return what it printed. Raises ClusterFault."""
        whole = [*entering(self.pid), "env", "--chdir=/", *argv]
        try:
            done = subprocess.run(
                whole, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise ClusterFault(
                f"{' '.join(argv)} has not ended after {timeout_s:g} s on {self.name}"
            ) from None
        if done.returncode:
            raise ClusterFault(f"{' '.join(argv)} failed on {self.name}: {done.stderr.strip()}")
        return done.stdout

    def ctr(self, *arguments: str, timeout_s: float = _IMPORT_S) -> str:
        """Run containerd's own client in the namespace that kubelet uses."""
        return self.on_node(
            self._ctr, "-a", CONTAINERD_SOCKET, "-n", "k8s.io", *arguments, timeout_s=timeout_s
        )

    def import_image(self, archive: Path) -> None:
        """Give an image to the node."""
        self.ctr("images", "import", "--local", str(archive))

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what each component does."""
        answer = give(self.node_places.socket, {"order": "status"})
        components: Mapping[str, Mapping[str, Any]] = answer["components"]
        return components

    def start(self, component: str) -> None:
        """Start a component, unless it runs."""
        give(self.node_places.socket, {"order": "start", "component": component})

    def signal(self, component: str, number: signal.Signals, *, is_wanted: bool = True) -> None:
        """Send a signal to a component; one that is still wanted is started anew when it ends of that."""
        order = {"order": "signal", "component": component, "signal": number.name, "wanted": is_wanted}
        give(self.node_places.socket, order)

    def stop(self, component: str) -> None:
        """Stop a component and wait for its end, in the end by force."""
        self.signal(component, signal.SIGTERM, is_wanted=False)
        if not wait_for(lambda: self.status()[component]["pid"] is None, _STOP_S):
            self.signal(component, signal.SIGKILL, is_wanted=False)
            if not wait_for(lambda: self.status()[component]["pid"] is None, _STOP_S):
                raise ClusterFault(f"{component} does not end", log=self.log_tail(component))

    def restart(self, component: str) -> None:
        """Stop a component and start it. That it runs is not yet that it is ready."""
        self.stop(component)
        self.start(component)

    def log_tail(self, component: str, lines: int = LOG_LINES) -> str:
        """Return a heading and the end of a component's log."""
        path = self.node_places.log(component)
        return f"the end of {path}:\n{tail(path, lines)}"


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a file, however large it is."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - lines * 2000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({error})"
