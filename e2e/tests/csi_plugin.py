"""The plugin's own pod on a node, as something to be struck."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from e2e.cluster.kubectl import Json
from e2e.cluster.running_node import RunningNode
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import CSI, CsiPath
from e2e.tests.pods import Namespace, is_ready
from e2e.tests.witness_pod import RECOVERED_S, WitnessPod

_SELECTOR = "app.kubernetes.io/name=csi-node"
_KEEPER = "keeper"


class Plugin:
    """Whichever pod of the DaemonSet is on a node now."""

    def __init__(self, path: CsiPath, node: RunningNode) -> None:
        self.path, self.node = path, node

    def pod(self) -> Json | None:
        """Return the newest, None if there is none."""
        pods = self.path.api.items("pods", CSI, _SELECTOR)
        here = [each for each in pods if each["spec"].get("nodeName") == self.node.name]
        here = [each for each in here if "deletionTimestamp" not in each["metadata"]]
        return max(here, key=lambda each: str(each["metadata"]["creationTimestamp"]), default=None)

    def ready(self) -> Json:
        """Wait until it is ready, and kubelet knows it."""

        def found() -> Json | None:
            each = self.pod()
            return each if each and is_ready(each) and self.path.is_registered() else None

        each = wait_for(found, RECOVERED_S)
        assert each is not None, f"the plugin is not ready\n{self.path.told()}"
        return each

    def processes(self) -> dict[str, int]:
        """Return the numbers here of plugin and keeper, as far as they run."""
        each = self.pod()
        if each is None:
            return {}
        found: dict[str, int] = {}
        with suppress(AssertionError, OSError, KeyError):
            processes = _Running(self.path, each).processes("node")
            found["plugin"] = processes[1]
            for number in processes.values():
                with suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
                    if _KEEPER in file.read().decode(errors="replace").split("\0"):
                        found[_KEEPER] = number
        return found

    def times(self, event: str) -> Callable[[], int]:
        """Return what counts how often the pod that runs now has told of an event from now on, without the API server."""
        running = _Running(self.path, self.ready())

        def count() -> int:
            return sum(message.get("event") == event for message in running.told("node"))

        before = count()
        return lambda: count() - before

    def kill(self, which: str) -> bool:
        """Kill one of them; False if it does not run."""
        number = self.processes().get(which)
        if number is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        return True

    def delete(self, *arguments: str) -> None:
        """Have its pod deleted, and wait for nothing."""
        each = self.pod()
        if each is not None:
            self.path.api.delete("pod", each["metadata"]["name"], CSI, *arguments)

    def replace(self) -> None:
        """Delete its pod and wait until another one is ready."""
        before = self.ready()["metadata"]["uid"]
        self.delete()
        assert wait_for(lambda: self.ready()["metadata"]["uid"] != before, RECOVERED_S)


class _Running(WitnessPod):
    """Its processes only: it need not be ready."""

    def __init__(self, path: CsiPath, found: Json) -> None:
        self.namespace = Namespace(path.api, CSI)
        self.name = found["metadata"]["name"]
        self.node = path.cluster.node(found["spec"]["nodeName"])
        self.uid = found["metadata"]["uid"]
