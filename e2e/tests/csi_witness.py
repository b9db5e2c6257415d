"""Witnesses whose volume comes by CSI: the pod, the mount pod that serves it, and what the witnesses saw of an event."""

import copy
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests import witness, witness_pod
from e2e.tests.csi_world import CsiPath, World, claim
from e2e.tests.fault_table import Row
from e2e.tests.images import sidemount
from e2e.tests.pods import Namespace, is_ending, is_ready, restarts
from e2e.tests.witness_pod import APPS, LOST, RECOVERED_S, SHELF, WitnessPod, kill

DAEMON = "daemon"
PAUSE, REOPENED = "a pause, no error", "files that were open: ENOTCONN; opened anew: works"
JOURNALS = {APPS[0]: f"journal-{APPS[0]}.0", APPS[1]: f"{SHELF}/journal-{APPS[1]}.0"}
_TARGET = "sidemount.io/target"
_GROWN_BYTES = 100
_LATE_S = 120.0
_FILL = f"""
import os
os.chmod("/data", 0o777)
os.mkdir("/data/{SHELF}")
os.chmod("/data/{SHELF}", 0o777)
blob = b"".join(b"%08d" % number * {witness.BLOCK // 8} for number in range({witness_pod.BLOCKS}))
for at in ("/data/blob", "/data/{SHELF}/blob"):
    with open(at, "wb") as file:
        file.write(blob)
        os.fsync(file.fileno())
"""


def csi_manifest(name: str, of_claim: str, *, sub_path: bool = True) -> Json:
    """Return the pod of `witness_pod.manifest` with a claim for its volume; its first container fills it.

    Without `sub_path` both see all of it: a sub-path of a claim does not come back when the volume is mounted anew.
    """
    made = copy.deepcopy(witness_pod.manifest(name, {}))
    made["metadata"]["annotations"] = {}
    spec = made["spec"]
    for container in spec["containers"]:
        container["volumeMounts"][0]["mountPropagation"] = "HostToContainer"  # sees what is mounted anew
    if not sub_path:
        second = spec["containers"][1]
        del second["volumeMounts"][0]["subPath"]
        second["command"][-2] += f"/{SHELF}"
    spec["volumes"] = [{"name": "books", "persistentVolumeClaim": {"claimName": of_claim}}]
    spec["initContainers"] = [
        {
            "name": "fill",
            "image": sidemount(),
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-S", "-c", _FILL],
            "securityContext": {"runAsUser": 0, "runAsGroup": 0},
            "volumeMounts": [{"name": "books", "mountPath": "/data"}],
        }
    ]
    return made


class ServedPod(WitnessPod):
    """A pod of witnesses that runs, and who serves it."""

    def __init__(self, path: CsiPath, world: Namespace, name: str, volume: str) -> None:
        """`volume` is the name of the PersistentVolume."""
        super().__init__(path.cluster, world, name)
        self.path, self.volume = path, volume

    def servants(self) -> list[Json]:
        """Return the mount pods of its target."""
        pods = self.path.mount_pods()
        return [each for each in pods if f"/pods/{self.uid}/" in each["metadata"]["annotations"][_TARGET]]

    def mount_pod(self) -> "MountPod":
        """Wait for the one pod that serves, ready and not about to end."""

        def found() -> Json | None:
            (each, *more) = self.servants() or (None,)
            return each if each and not more and is_ready(each) and not is_ending(each) else None

        each = wait_for(found, RECOVERED_S)
        assert each is not None, self.described(f"is not served: {[_shown(one) for one in self.servants()]}")
        metadata = each["metadata"]
        return MountPod(self.path.cluster, Namespace(self.path.api, metadata["namespace"]), metadata["name"])

    def settled_by(self, more: int | None, before: "MountPod", was: int, own: dict[str, int]) -> None:
        """Wait until it is served: by the same mount pod with so many more restarts, or with None by another one."""

        def is_settled() -> bool:
            try:
                found, served = self.look(), self.servants()
            except KubectlFailed:  # the API server is away
                return False
            if len(served) != 1 or not is_ready(served[0]) or not is_ready(found) or restarts(found) != own:
                return False
            is_same = served[0]["metadata"]["uid"] == before.uid
            count = restarts(served[0])[DAEMON]
            return not is_same if more is None else is_same and count == was + more

        assert wait_for(is_settled, RECOVERED_S), self.described(
            f"is not served with {more} restarts more than {was}: {[_shown(one) for one in self.servants()]}"
        )

    def journal(self, name: str) -> Path:
        """Return a witness's journal in the pool."""
        return self.in_pool / JOURNALS[name]

    @property
    def in_pool(self) -> Path:
        """What is in its volume, as it lies in the pool."""
        return self.path.cluster.places.node / "srv/pool/volumes" / self.volume / "data"

    def writes_on(self) -> None:
        """Wait until both journals have grown, which is seen without anything of Kubernetes."""
        before = {name: self.journal(name).stat().st_size for name in APPS}

        def have_grown() -> bool:
            return all(self.journal(name).stat().st_size > before[name] + _GROWN_BYTES for name in APPS)

        assert wait_for(have_grown, RECOVERED_S), self.described("writes nothing")

    def check_journals(self, acknowledged: dict[str, int]) -> None:
        """See that what was acknowledged is written, and nothing twice."""
        for name, at_least in acknowledged.items():
            written = [int(line) for line in self.journal(name).read_text().splitlines()]
            assert written == list(range(len(written))), "a line is there twice, or is not"
            assert len(written) >= at_least >= 10, (len(written), acknowledged)


class MountPod(WitnessPod):
    """A mount pod."""

    def numbers(self) -> list[int]:
        """Return the numbers here of its first process and of the one that serves."""
        processes = self.processes(DAEMON)
        return [processes[1], processes[self.serving()]]

    def serving(self) -> int:
        """Return the number in its container of the process that serves, or did last: its log tells."""
        told = [message["pid"] for message in self.told(DAEMON) if message.get("event") == "serving"]
        return int(told[-1])

    def strike(self) -> None:
        """Kill the process that serves, and wait until another one does."""
        before = self.serving()
        kill(signal.SIGKILL, self.processes(DAEMON)[before])
        assert wait_for(lambda: self.serving() != before, RECOVERED_S), self.described("has no successor")


@dataclass(frozen=True, slots=True)
class CsiStage:
    """Where an event takes place."""

    cluster: RunningCluster
    world: World
    rows: list[Row]

    def pod(
        self, storage_class: str = "sidemount", name: str = "witness", *, sub_path: bool = True
    ) -> ServedPod:
        """Have a pod of witnesses run on a claim of its own."""
        self.world.make(claim(f"{name}-books", "64Mi", storage_class))
        self.world.make(csi_manifest(name, f"{name}-books", sub_path=sub_path))
        self.world.runs(name)
        pod = ServedPod(self.world.path, self.world, name, self.world.bound(f"{name}-books"))
        pod.goes_on()
        return pod

    def survive(
        self,
        pod: ServedPod,
        event: str,
        strike: Callable[[], None],
        *,
        keeps: bool = True,
        anew: int | None = 0,
    ) -> None:
        """Have something happen that the pod outlives.

        `keeps`: and its open files too. `anew`: how often the daemon's container is started again; None: another mount pod serves.
        """
        servant = pod.mount_pod()
        was, own, marks = restarts(servant.look())[DAEMON], pod.restarts(), pod.mark()
        strike()
        pod.settled_by(anew, servant, was, own)
        pod.goes_on(held=keeps)
        stalls = [0.0]
        for name in APPS:
            seen = pod.seen(name, marks[name])
            stalls += seen.stalls_ms
            if keeps:
                assert seen.outcomes == {"held": ["ok"], "fresh": ["ok"]}, pod.described("saw an error")
            else:
                assert seen.outcomes["held"][-1] == "ENOTCONN", pod.described("kept what was open")
                assert seen.outcomes["fresh"][-1] == "ok", pod.described("opens nothing")
                told = set(seen.outcomes["held"] + seen.outcomes["fresh"])
                assert told <= {"ok", *LOST}, pod.described("saw")
        again = "another mount pod" if anew is None else f"daemon {anew}x" if anew else ""
        self.rows.append(
            Row(event=event, saw=PAUSE if keeps else REOPENED, stall_ms=max(stalls), restarts=again)
        )

    def end(self, pod: ServedPod, *arguments: str) -> None:
        """Delete the pod; see what was acknowledged written, and its claim go with all that is in it."""
        acknowledged = {name: pod.acknowledged(name) for name in APPS}
        self.world.api.delete("pod", pod.name, self.world.name, *arguments)
        pod.wait_gone(pod.grace_s + _LATE_S)
        assert wait_for(lambda: not pod.servants(), RECOVERED_S), [_shown(one) for one in pod.servants()]
        pod.check_journals(acknowledged)
        self.world.unclaim(f"{pod.name}-books")


def _shown(found: Json) -> str:
    metadata, status = found["metadata"], found["status"]
    ready = "ready" if is_ready(found) else status.get("phase", "")
    ending = " ending" if is_ending(found) else ""
    return f"{metadata['namespace']}/{metadata['name']} {metadata['uid']} {ready}{ending} {restarts(found)}"
