"""A cluster that runs: its components, its node, its API; and its end."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterFault
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.namespaces import entering, entering_network, first_processes_of
from e2e.cluster.node_components import CONTAINERD_SOCKET
from e2e.cluster.orders import first_process, give
from e2e.cluster.places import ClusterPlaces
from e2e.cluster.topology import Topology
from e2e.cluster.waiting import wait_for
from e2e.podlet import cgroups

_STOP_S, _END_S = 30.0, 60.0
_IMPORT_S = 300.0
LOG_LINES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What `up` leaves behind for those who come later."""

    node: str
    address: str
    api_url: str
    is_api_only: bool
    pid_namespace: int
    kubectl: str
    ctr: str
    etcd: str

    def render(self) -> str:
        """Return it as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, indent=1) + "\n"


class RunningCluster:
    """A cluster by its places. It may end at any time: then each call says that nobody answers."""

    def __init__(self, places: ClusterPlaces) -> None:
        self.places = places
        try:
            self.description = Description(**json.loads(places.description.read_text()))
        except FileNotFoundError:
            raise ClusterFault(
                f"there is no cluster {places.name!r}", hint="start it: python -m e2e.cluster up"
            ) from None

    @property
    def pid(self) -> int:
        """The node's first process. Raises ClusterFault when there is none."""
        found = first_process(self.places.socket)
        if found is None:
            raise ClusterFault(
                f"cluster {self.places.name!r} does not run any more",
                hint=f"its logs are in {self.places.logs}",
            )
        return found

    def kubectl(self) -> Kubectl:
        """Return kubectl of the administrator, run from outside the node's mounts and processes."""
        return Kubectl(self.places.kubeconfig, entering_network(self.pid), self.description.kubectl)

    def on_node(self, *argv: str, timeout_s: float = 60.0) -> str:
        """Run a command on the node and return what it printed. Raises ClusterFault."""
        whole = [*entering(self.pid), "env", "--chdir=/", *argv]
        try:
            done = subprocess.run(
                whole, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise ClusterFault(f"{' '.join(argv)} has not ended after {timeout_s:g} s on the node") from None
        if done.returncode:
            raise ClusterFault(f"{' '.join(argv)} failed on the node: {done.stderr.strip()}")
        return done.stdout

    def ctr(self, *arguments: str, timeout_s: float = _IMPORT_S) -> str:
        """Run containerd's own client in the namespace that kubelet uses."""
        return self.on_node(
            self.description.ctr, "-a", CONTAINERD_SOCKET, "-n", "k8s.io", *arguments, timeout_s=timeout_s
        )

    def import_image(self, archive: Path) -> None:
        """Give an image to the node."""
        self.ctr("images", "import", "--local", str(archive))

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what each component does."""
        components: Mapping[str, Mapping[str, Any]] = give(self.places.socket, {"order": "status"})[
            "components"
        ]
        return components

    def start(self, component: str) -> None:
        """Start a component, unless it runs."""
        give(self.places.socket, {"order": "start", "component": component})

    def signal(self, component: str, number: signal.Signals, *, is_wanted: bool = True) -> None:
        """Send a signal to a component; one that is still wanted is started anew when it ends of that."""
        order = {"order": "signal", "component": component, "signal": number.name, "wanted": is_wanted}
        give(self.places.socket, order)

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
        path = self.places.log(component)
        return f"the end of {path}:\n{tail(path, lines)}"


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a file, however large it is."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - lines * 2000))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({error})"


def take_down(places: ClusterPlaces) -> bool:
    """End a cluster and remove all of it but its logs. Return whether there was one. Raises ClusterFault if it does not end."""
    if not places.directory.exists():
        return False
    was_there = places.description.exists() or is_held(places)
    _kill(places)
    if not wait_for(lambda: not is_held(places), _END_S):
        raise ClusterFault(
            f"the processes of cluster {places.name!r} do not end: {list(first_processes_of(places))}",
            hint="look at their /proc/PID/stack",
        )
    topology = Topology(places.name)
    for node in topology.nodes:
        _remove_cgroup(topology.cgroup_of(node))
    for directory in (places.node, places.config):
        shutil.rmtree(directory, ignore_errors=True)
    for file in (places.description, places.kubeconfig, places.socket):
        file.unlink(missing_ok=True)
    return was_there


def is_held(places: ClusterPlaces) -> bool:
    """Tell whether anything of the node lives: its first process, or that one's parent, holds the lock."""
    try:
        with places.lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _kill(places: ClusterPlaces) -> None:
    """Kill the first process: the one that listens, or what was started as such and does not listen."""
    first = first_process(places.socket)
    for pid in [first] if first is not None else first_processes_of(places):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _remove_cgroup(cgroup: str) -> None:
    try:
        cgroups.remove(cgroup)
    except OSError as error:
        raise ClusterFault(f"the cgroup {cgroup} cannot be removed: {error}") from error
