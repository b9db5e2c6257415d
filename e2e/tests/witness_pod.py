"""A pod of two witnesses, its processes and what its witnesses have told, seen from the node: nothing of Kubernetes needs to be there."""

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.podlet import cgroups
from e2e.tests import witness
from e2e.tests.images import sidemount
from e2e.tests.pods import Namespace, container_ids, is_ready, pod, restarts
from e2e.tests.sources import Source

KEEPER, DAEMON = "sidemount-keeper", "sidemount-books"
APPS = ("app", "second")
SHELF = "shelf"
# What the kernel says of a connection that is gone: before, and to whom was waiting when it went.
LOST = frozenset({"ENOTCONN", "ECONNABORTED"})
RECOVERED_S = 120.0
_ROUNDS = 10
BLOCKS = 64
_TREE = Path("/sys/fs/cgroup")


def blob() -> bytes:
    """Return the file that witnesses read."""
    return b"".join(b"%08d" % number * (witness.BLOCK // 8) for number in range(BLOCKS))


def fill(source: Source) -> dict[str, str]:
    """Write what witnesses need; return the hashes."""
    source.write({"blob": blob()}, mode=0o777)
    Source(source.namespace, f"{source.path}/{SHELF}").write({"blob": blob()}, mode=0o777)
    return source.digests()


def manifest(name: str, volume: Json) -> Json:
    """Return the pod: root sees the volume, another user a directory of it. `volume` is the entry of the annotation."""
    annotations = {"sidemount.io/volumes": json.dumps([{"name": "books", **volume}])}
    return pod(
        name,
        _witness("app", "/data", {}, runAsUser=0, runAsGroup=0),
        _witness("second", "/shelf", {"subPath": SHELF}, runAsUser=1000, runAsGroup=1000, runAsNonRoot=True),
        annotations=annotations,
        volumes=[{"name": "books", "emptyDir": {}}],
    )


def _witness(name: str, at: str, mount: Json, **security: Any) -> Json:
    return {
        "name": name,
        "image": sidemount(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-S", "-u", "-c", Path(str(witness.__file__)).read_text(), at, name],
        "securityContext": security,
        "volumeMounts": [{"name": "books", "mountPath": at, **mount}],
    }


@dataclass(frozen=True, slots=True)
class Seen:
    """What a witness has told since some moment. Each by `held` and `fresh`."""

    outcomes: dict[str, list[str]]
    good: dict[str, int]
    stalls_ms: list[float]


class WitnessPod:
    """A pod that runs."""

    def __init__(self, cluster: RunningCluster, namespace: Namespace, name: str) -> None:
        self.namespace = namespace
        self.name = name
        found = namespace.ready(name)
        self.node = cluster.node(found["spec"]["nodeName"])
        self.uid: str = found["metadata"]["uid"]
        self.grace_s: int = found["spec"]["terminationGracePeriodSeconds"]
        self.ids = container_ids(found)

    def look(self) -> Json:
        """Return the pod as the API server has it. Raises AssertionError when it is gone."""
        found = self.namespace.pod(self.name)
        assert found is not None, f"{self.name} is gone"
        return found

    def restarts(self) -> dict[str, int]:
        """Return how often each container was started anew."""
        return restarts(self.look())

    def processes(self, container: str) -> dict[int, int]:
        """Return a container's processes: the numbers that they have here by those that they have in it."""
        identity = container_ids(self.look())[container].partition("://")[2]
        assert identity, f"{container} of {self.name} was not started yet"
        found = {}
        for directory in self._cgroups().rglob(identity):
            for number in (directory / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    status = Path(f"/proc/{number}/status").read_text()
                    inside = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[
                        -1
                    ]
                    found[int(inside)] = int(number)
        assert found, f"{container} of {self.name} has no processes"
        return found

    def family(self, container: str) -> list[int]:
        """Return the numbers here of a container's first process and its children: not of a probe that runs at this moment."""
        first = self.first_process(container)
        return [first, *(pid for pid in self.processes(container).values() if _parent(pid) == first)]

    def has_processes(self) -> bool:
        """Tell whether any process of the pod lives."""
        for directory in self._cgroups().rglob(f"pod{self.uid}"):
            for procs in directory.rglob("cgroup.procs"):
                with suppress(OSError):
                    if procs.read_text():
                        return True
        return False

    def _cgroups(self) -> Path:
        return (_TREE if cgroups.is_unified() else _TREE / "pids") / self.node.cgroup

    def first_process(self, container: str) -> int:
        """Return the number here of the process whose end is the container's."""
        return self.processes(container)[1]

    def serving(self) -> int:
        """Return the number in its container of the process that serves, or did last: the daemon's log tells."""
        told = [message["pid"] for message in self.told(DAEMON) if message.get("event") == "serving"]
        return int(told[-1])

    def strike_serving(self, number: signal.Signals) -> None:
        """Send a signal to the process that serves, and wait until another one does."""
        before = self.serving()
        kill(number, self.processes(DAEMON)[before])
        assert wait_for(lambda: self.serving() != before, RECOVERED_S), self.described(
            f"is served by {before} still"
        )

    def told(self, container: str) -> list[Json]:
        """Return every message of a container, of all its lives in turn."""
        logs = self.node.node_places.disk / "var/log/pods"
        directory = logs / f"{self.namespace.name}_{self.name}_{self.uid}" / container
        files = sorted(directory.glob("*.log"), key=lambda path: int(path.stem))
        lines = [line for path in files for line in path.read_text().splitlines()]
        return [json.loads(line.split(" ", 3)[3]) for line in lines if line.endswith("}") and " F {" in line]

    def mark(self) -> dict[str, int]:
        """Return a moment, for `seen`."""
        return {name: len(self.told(name)) for name in APPS}

    def seen(self, name: str, since: int = 0) -> Seen:
        """Return what a witness has told since a moment. What came out before comes first."""
        told = self.told(name)
        outcomes: dict[str, list[str]] = {"held": [], "fresh": []}
        for at, message in enumerate(told):
            if message["op"] == "outcome":
                kept = outcomes[message["of"]]
                if at < since:
                    kept.clear()
                kept.append(message["outcome"])
        good = [message["good"] for message in told if message["op"] == "sum"]
        before = [message["good"] for message in told[:since] if message["op"] == "sum"]
        last, first = (found[-1] if found else {"held": 0, "fresh": 0} for found in (good, before))
        stalls = [message["ms"] for message in told[since:] if message["op"] == "stall"]
        return Seen(outcomes, {key: last[key] - first[key] for key in last}, stalls)

    def acknowledged(self, name: str) -> int:
        """Return how many lines of a witness's journal are certainly written."""
        told = [message["acknowledged"] for message in self.told(name) if message["op"] == "sum"]
        return int(told[-1]) if told else 0

    def goes_on(self, *, held: bool = True) -> None:
        """Wait until each witness has done more of its work; `held`: through what it opened at the start as well."""
        kinds = ("held", "fresh") if held else ("fresh",)
        before = self.mark()

        def has_gone_on() -> bool:
            return all(self.seen(name, before[name]).good[kind] >= _ROUNDS for name in APPS for kind in kinds)

        assert wait_for(has_gone_on, RECOVERED_S), self.described("stands still")

    def settled(self, more: dict[str, int], before: dict[str, int]) -> None:
        """Wait until the pod is ready with so many more restarts than before, and every container runs."""

        def is_settled() -> bool:
            try:
                found = self.look()
            except KubectlFailed:  # the API server is away
                return False
            wanted = {name: before[name] + more.get(name, 0) for name in before}
            return restarts(found) == wanted and is_ready(found) and _all_run(found)

        assert wait_for(is_settled, RECOVERED_S), self.described(
            f"is not ready with restarts {more} beyond {before}"
        )
        # One that has not taken everything back yet is as good as dead: the next blow would be the second at once.
        assert wait_for(self._is_kept, RECOVERED_S), self.described("has a keeper that does not keep it")

    def _is_kept(self) -> bool:
        phase = ""
        for message in self.told(KEEPER):
            if message["event"] == "keeper_started":
                phase = ""
            elif message["event"] == "phase_changed":
                phase = message["phase"]
        return phase == "Serving"

    def mounts(self) -> list[str]:
        """Return the node's mounts that are of the pod."""
        lines = self.node.on_node("cat", "/proc/self/mountinfo").splitlines()
        return [line for line in lines if self.uid in line]

    def wait_gone(self, timeout_s: float) -> None:
        """Wait until the API server has forgotten this very pod."""
        assert wait_for(self.is_gone, timeout_s), self.described(f"is not gone after {timeout_s:g} s")

    def is_gone(self) -> bool:
        """Tell whether the API server has forgotten this very pod; not while it is away."""
        try:
            found = self.namespace.pod(self.name)
        except KubectlFailed:
            return False
        return found is None or found["metadata"]["uid"] != self.uid

    def is_reached(self) -> bool:
        """Tell whether kubelet and the container runtime answer for the pod."""
        try:
            return self.namespace.exec(self.name, APPS[0], "echo", "here") == "here\n"
        except KubectlFailed:
            return False

    def described(self, what: str) -> str:
        """Return a sentence, what the witnesses have told, and what a person would look at first."""
        seen = {name: self.seen(name) for name in APPS}
        told = {
            name: (each.outcomes, each.good, max(each.stalls_ms, default=0.0)) for name, each in seen.items()
        }
        return f"{self.name} {what}: {told}\n{self.namespace.described(self.name)}"


def _parent(pid: int) -> int:
    """Return the number of a process's parent; 0 when it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def kill(number: signal.Signals, *pids: int) -> None:
    """Send a signal to processes, to one right after the other."""
    for pid in pids:
        os.kill(pid, number)


def _all_run(found: Json) -> bool:
    status = found["status"]
    both = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return all("running" in each["state"] and each.get("started") for each in both)
