"""The pod worker: brings one pod up, keeps it as its manifest says, ends it, cleans up after it."""

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from e2e.podlet.image import Image
from e2e.podlet.launcher import Launcher, LaunchFailed
from e2e.podlet.leaks import find_leaks, mounts_now
from e2e.podlet.objects import Objects
from e2e.podlet.paths import NodePaths
from e2e.podlet.plan import Finish, Plan, Start, Wait
from e2e.podlet.pod import Kind, Pod, Probe
from e2e.podlet.pod_state import PodState
from e2e.podlet.prober import Prober, Verdicts
from e2e.podlet.process import ContainerProcess
from e2e.podlet.record import Record, Waiting
from e2e.podlet.runtime import Crun
from e2e.podlet.sandbox import Sandbox, pod_cgroup
from e2e.podlet.teardown import TearDown
from e2e.podlet.termination import end_all, end_container
from e2e.podlet.volumes import MountFailed, Volumes

_SYNC_RETRY_S = 10.0  # kubelet's pause after a sync that failed
_STAT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What every pod of a node shares. `scale` shortens back-off, retries and probe periods in tests."""

    node_id: str
    paths: NodePaths
    images: dict[str, Image]
    objects: Objects
    runtime: Crun
    scale: float
    tell: Callable[[str], None]


class PodWorker:
    """One pod and the thread that does everything for it."""

    def __init__(self, node: NodeContext, pod: Pod, objects: Objects) -> None:
        self.pod = pod
        self.state = PodState(pod, node.scale)
        self._node = node
        self._mounts_before = mounts_now()
        self._cgroup = pod_cgroup(node.node_id, pod)
        self._objects = objects
        self._volumes = Volumes(node.paths, pod, objects)
        self._unclean: list[ContainerProcess] = []
        self._epoch = time.time()
        threading.Thread(target=self._work, name=f"pod-{pod.name}", daemon=True).start()

    def leaks(self) -> tuple[str, ...]:
        """Return what is there that must not be there once the pod is gone."""
        return find_leaks(self._node.paths, self._cgroup, self._mounts_before)

    def change_image(self, container: str, image: str) -> None:
        """Do what a kubelet does when a container's definition has changed: end it within the pod's grace, and start the new one."""
        record = self.state.record(container)
        with self.state.change():
            record.container = replace(record.container, image=image)
            process = record.process
        self._node.tell(f"Container {container} definition changed, will be restarted")
        if process is not None:
            arguments = (record.container, process, self.pod.grace_s)
            keywords = {"tell": self._node.tell, "turns": None}
            threading.Thread(target=end_container, args=arguments, kwargs=keywords, daemon=True).start()

    def _work(self) -> None:
        try:
            sandbox = self._bring_up()
            if sandbox is not None:
                phase, reason = self._live(self._launcher(sandbox))
                self._end()
                with self.state.change():
                    self.state.phase, self.state.reason = phase, reason
            clean = TearDown(self.state, self._node.paths, self._volumes, self._node.tell, self._node.scale)
            clean.run(self._node.runtime, sandbox, self._unclean, self._cgroup)
            self.state.wait_for_deletion(None)
            with self.state.change():
                self.state.is_gone = True
        except Exception as error:  # a fault of podlet's own must not look like a pod that waits
            self._node.tell(traceback.format_exc())
            with self.state.change():
                self.state.broken = f"podlet itself failed: {error}"

    def _bring_up(self) -> Sandbox | None:
        """Make volumes and sandbox, retrying as kubelet does; None when deletion came first."""
        while True:
            try:
                for volume in self.pod.mounted_volumes:
                    self._volumes.set_up(volume)
                break
            except MountFailed as error:
                self._node.tell(f"FailedMount: {error}")
                self.state.set_all(Waiting(reason="ContainerCreating", message=str(error)))
            if self.state.wait_for_deletion(time.time() + _SYNC_RETRY_S * self._node.scale):
                return None
        sandbox = Sandbox(self._node.paths, self.pod, self._node.runtime, self._cgroup)
        sandbox.start()
        self.state.set_all(Waiting(reason="PodInitializing"))
        return sandbox

    def _launcher(self, sandbox: Sandbox) -> Launcher:
        return Launcher(
            paths=self._node.paths,
            pod=self.pod,
            images=self._node.images,
            objects=self._objects,
            volumes={volume.name: self._volumes.located(volume) for volume in self.pod.mounted_volumes},
            runtime=self._node.runtime,
            sandbox=sandbox,
            cgroup=self._cgroup,
            stat_s=_STAT_S * self._node.scale,
        )

    def _live(self, launcher: Launcher) -> tuple[str, str]:
        """Follow the plan until the pod is over or to be deleted; return its phase and reason."""
        records = self.state.records
        plan = Plan(
            self.pod, [records[c.name] for c in self.pod.inits], [records[c.name] for c in self.pod.apps]
        )
        deadline = self._epoch + self.pod.active_deadline_s if self.pod.active_deadline_s else None
        while True:
            with self.state.change():
                now = time.time()
                if self.state.grace_s is not None:
                    return self.state.phase, ""
                if deadline is not None and now >= deadline:
                    return "Failed", "DeadlineExceeded"
                action = plan.next_action(now)
                self.state.passed_inits = plan.passed
                seen = self.state.version + 1
            match action:
                case Finish(phase=phase):
                    return phase, ""
                case Start(record=record):
                    self._start(launcher, record)
                case Wait(until=until):
                    self.state.wait_for_change(seen, min((t for t in (until, deadline) if t), default=None))

    def _start(self, launcher: Launcher, record: Record) -> None:
        name, attempt, began = record.container.name, record.attempts, time.time()
        if record.last is not None:
            record.back_off.advance(record.last.finished_at, began)
        try:
            process = launcher.launch(record.container, attempt)
        except LaunchFailed as error:
            self._node.tell(f"{error.reason} {name}: {error}")
            with self.state.change():
                record.refuse(error.reason, str(error), began, was_created=error.was_created)
                if not error.was_created:
                    record.retry_at = time.time() + _SYNC_RETRY_S * self._node.scale
            return
        self._node.tell(f"started {name}" + (f", restart {attempt}" if attempt else ""))
        with self.state.change():
            record.begin(process)
            if record.container.kind is Kind.APP:
                self.state.phase = "Running"
        process.call_when_ended(lambda: self._ended(launcher, record, process, attempt))
        self._prober(record, process).begin()

    def _prober(self, record: Record, process: ContainerProcess) -> Prober:
        container = record.container
        return Prober(
            process=process,
            startup=container.startup,
            liveness=container.liveness,
            readiness=container.readiness,
            verdicts=Verdicts(
                started=lambda: self._note_started(record, process),
                ready=lambda is_ready: self._note_ready(record, process, is_ready),
                failed=lambda kind, probe, fault: self._kill(record, process, kind, probe, fault),
                is_terminating=lambda: self.state.is_ending,
            ),
            epoch=self._epoch,
            scale=self._node.scale,
        )

    def _note_started(self, record: Record, process: ContainerProcess) -> None:
        self._node.tell(f"startup probe of {record.container.name} succeeded")
        with self.state.change():
            if record.process is process:
                record.is_started = True
                record.is_ready = record.container.readiness is None

    def _note_ready(self, record: Record, process: ContainerProcess, is_ready: bool) -> None:
        with self.state.change():
            if record.process is process:
                record.is_ready = is_ready

    def _kill(self, record: Record, process: ContainerProcess, kind: str, probe: Probe, fault: str) -> None:
        container = record.container
        self._node.tell(f"{kind} probe of {container.name} failed, the container is restarted: {fault}")
        grace = self.pod.grace_s if probe.grace_s is None else probe.grace_s
        try:
            end_container(container, process, grace, tell=self._node.tell, turns=None)
        except TimeoutError as error:
            self._node.tell(str(error))

    def _ended(self, launcher: Launcher, record: Record, process: ContainerProcess, attempt: int) -> None:
        code = process.exit_code
        reason = "OOMKilled" if process.was_out_of_memory else "Completed" if code == 0 else "Error"
        self._node.tell(f"{record.container.name} ended: {reason}, exit code {code}")
        message = launcher.termination_message(record.container, attempt, code)
        with self.state.change():
            if process.fault:
                self._unclean.append(process)
            record.end(code, reason, message, process.started_at)

    def _end(self) -> None:
        """End all containers; try again for as long as one does not die."""
        with self.state.change():
            self.state.is_ending = True
            grace = self.state.grace_s or self.pod.grace_s
        while True:
            faults = end_all(self.pod, self.state.running(), grace, tell=self._node.tell)
            self.state.set_faults(*faults)
            if not self.state.running():
                return
            grace = 1
