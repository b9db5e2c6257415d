"""A kubelet for mount pods on a MountNode: memory volumes, one container a pod, restarts, graceful deletion, real unmounts."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidemount.model.names import RUN_PATH
from tests.csi.pod_api import Key, Manifest, PodApi
from tests.host.mount_node import ROOT, MountNode

_LOOK_S = 0.02
_TOLD_BYTES = 2048


@dataclass
class _Run:
    """A pod that is run here."""

    pod: Manifest
    comm: Path
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    told_at: float | None = None
    restarts: int = 0
    last: Manifest = field(default_factory=dict)
    is_unmounted: bool = False


class FakeKubelet:
    """Runs every pod of the API server. `reject` and `hold` are a test's: why a pod is not run; how long its deletion takes."""

    def __init__(self, node: MountNode, api: PodApi, node_name: str = "n1") -> None:
        self.node = node
        self.api = api
        self.node_name = node_name
        self.reject: Manifest | None = None
        self.is_paused = False
        self.hold_deletions = False
        self.busy_unmounts = 0
        self.faults: list[BaseException] = []
        self.runs: dict[str, _Run] = {}
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._loop)
        (node.work / "kubelet").mkdir(exist_ok=True)
        self._thread.start()

    @property
    def directory(self) -> Path:
        """Its directory, for `--kubelet-dir`."""
        return self.node.work / "kubelet"

    def end(self) -> None:
        """Kill every container, and unmount everything."""
        self._is_ended.set()
        self._thread.join(30)
        for run in self.runs.values():
            if run.process is not None:
                run.process.kill()
                run.process.wait(10)
            self.node.run("umount", "-l", run.comm, check=False)
        assert self.faults == []

    def daemon(self, uid: str) -> int:
        """Return the first process of a pod's daemon."""
        process = self.runs[uid].process
        assert process is not None
        return process.pid

    def _loop(self) -> None:
        while not self._is_ended.wait(_LOOK_S):
            if self.is_paused:
                continue
            try:
                for key, pod in list(self.api.pods.items()):
                    self._sync(key, pod)
                self._collect()
            except BaseException as error:
                self.faults.append(error)
                raise

    def _sync(self, key: Key, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self.runs:
            if self.reject is not None:
                if pod["status"] != self.reject:
                    self.api.status(key, uid, self.reject)
                return
            self._begin(key, pod)
            return
        run = self.runs[uid]
        run.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._end(key, run)
        elif run.process is None or run.process.poll() is not None:
            self._again(key, run)

    def _begin(self, key: Key, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        comm = self.directory / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / "comm"
        comm.mkdir(parents=True, mode=0o750)
        # As kubelet: the directory is there before the mount.
        time.sleep(_LOOK_S)
        self.node.run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", comm)
        run = self.runs[uid] = _Run(pod, comm, self.node.work / f"container-{uid}.log")
        bound = self.api.bind(key, uid, self.node_name)
        if bound is None:
            return  # deleted meanwhile: `_collect` takes away what was made for it
        run.pod = bound
        self._start(run)
        self._tell(key, run)

    def _start(self, run: _Run) -> None:
        container = run.pod["spec"]["containers"][0]
        context = container["securityContext"]
        command = [*container["command"], *container["args"]]
        assert command[0] == "python3"
        argv: list[Any] = [
            *(sys.executable, "-m", "tests.csi.container", self.node.pid, run.comm, self.node.work, RUN_PATH),
            *(context["runAsUser"], ",".join(context["capabilities"].get("add", []))),
            *(sys.executable, *command[1:]),
        ]
        with run.log.open("ab") as output:
            run.process = subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )

    def _again(self, key: Key, run: _Run) -> None:
        assert run.process is not None
        code = run.process.wait()
        message = "" if code == 0 else run.log.read_bytes()[-_TOLD_BYTES:].decode("utf-8", "replace")
        ended = {"exitCode": 128 - code if code < 0 else code, "reason": "Error", "message": message}
        run.last = {"terminated": ended}
        run.restarts += 1
        self._start(run)
        self._tell(key, run)

    def _end(self, key: Key, run: _Run) -> None:
        if self.hold_deletions:
            return
        assert run.process is not None
        now = time.monotonic()
        if run.told_at is None:
            run.told_at = now
            run.process.send_signal(signal.SIGTERM)
        grace_s = run.pod["metadata"]["deletionGracePeriodSeconds"]
        if run.process.poll() is None:
            if now - run.told_at < grace_s:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait(10)
        if not run.is_unmounted:
            ended = {"exitCode": run.process.returncode, "reason": "Completed"}
            status = {"phase": "Running", "containerStatuses": [{"state": {"terminated": ended}}]}
            if run.pod["status"].get("containerStatuses") != status["containerStatuses"]:
                self.api.status(key, run.pod["metadata"]["uid"], status)
                return
            done = self.node.run("umount", run.comm, check=False)
            if done.returncode != 0:
                self.busy_unmounts += 1
                return
            run.is_unmounted = True
        self.api.remove(key, run.pod["metadata"]["uid"])

    def _collect(self) -> None:
        """Forget pods that are gone; kill what was deleted without grace."""
        there = {pod["metadata"]["uid"] for pod in list(self.api.pods.values())}
        for uid, run in list(self.runs.items()):
            if uid in there:
                continue
            if run.process is not None and run.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.process.pid, signal.SIGKILL)
                run.process.wait(10)
            if not run.is_unmounted and self.node.run("umount", run.comm, check=False).returncode != 0:
                self.busy_unmounts += 1
                continue
            del self.runs[uid]

    def _tell(self, key: Key, run: _Run) -> None:
        status: Manifest = {
            "phase": "Running",
            "containerStatuses": [
                {
                    "restartCount": run.restarts,
                    "state": {"running": {"startedAt": "now"}},
                    "lastState": run.last,
                }
            ],
        }
        self.api.status(key, run.pod["metadata"]["uid"], status)
