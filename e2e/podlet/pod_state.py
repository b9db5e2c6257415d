"""The state of one pod: what its worker, its probes and whoever asks share, behind one lock."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.podlet.errors import PodletError
from e2e.podlet.pod import Pod
from e2e.podlet.process import ContainerProcess
from e2e.podlet.record import BackOff, Record, State, Waiting
from e2e.podlet.status import Json, is_ready, render_container, summary


class PodState:
    """Change it only within `change()`; every change has a number and wakes those who wait."""

    def __init__(self, pod: Pod, scale: float) -> None:
        self.pod = pod
        self.records = {
            c.name: Record(c, BackOff(scale), Waiting(reason="ContainerCreating")) for c in pod.containers
        }
        self.version = 0
        self.phase = "Pending"
        self.reason = ""
        self.passed_inits = 0
        self.grace_s: int | None = None  # set once deletion is asked for
        self.is_ending = False
        self.is_gone = False
        self.faults: tuple[str, ...] = ()
        self.broken = ""
        self._changed = threading.Condition()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock; count and announce a change on the way out."""
        with self._changed:
            yield
            self.version += 1
            self._changed.notify_all()

    def set_all(self, state: State) -> None:
        """Give every container the same state."""
        with self.change():
            for record in self.records.values():
                record.state = state

    def set_faults(self, *faults: str) -> None:
        """Say what is in the way of the pod's end."""
        with self.change():
            self.faults = faults

    def request_deletion(self, grace_s: int | None) -> None:
        """Ask for the end; None means the pod's own grace. A second request changes nothing."""
        with self.change():
            if self.grace_s is None:
                # For 0 the API server forgets the pod at once; kubelet still works with 1.
                self.grace_s = max(self.pod.grace_s if grace_s is None else grace_s, 1)

    def wait_for_change(self, seen: int, until: float | None) -> None:
        """Return when the version is another than `seen`, or at the time."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != seen, _left(until))

    def wait_for_deletion(self, until: float | None) -> bool:
        """Wait until deletion is asked for, at most until the time; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.grace_s is not None, _left(until))

    def record(self, container: str) -> Record:
        """Return what is known of a container. Raises PodletError."""
        if container not in self.records:
            known = ", ".join(self.records)
            raise PodletError(f"pod {self.pod.name} has no container {container!r}; it has {known}")
        return self.records[container]

    def process(self, container: str) -> ContainerProcess:
        """Return a running container's process. Raises PodletError."""
        with self._changed:
            process = self.record(container).process
        if process is None:
            raise PodletError(f"container {container} of pod {self.pod.name} is not running")
        return process

    def running(self) -> dict[str, ContainerProcess]:
        """Return the processes of all running containers."""
        with self._changed:
            return {name: r.process for name, r in self.records.items() if r.process is not None}

    def render(self) -> Json:
        """Return what kubectl would show, and podlet's own fields: graceSeconds, isGone, faults, broken, version."""
        with self._changed:
            records = list(self.records.values())
            is_terminating = self.grace_s is not None and not self.is_gone
            return {
                "namespace": self.pod.namespace,
                "name": self.pod.name,
                "uid": self.pod.uid,
                "phase": self.phase,
                "reason": self.reason,
                "status": summary(
                    self.phase, records, is_terminating=is_terminating, passed=self.passed_inits
                ),
                "ready": self.phase == "Running" and is_ready(records),
                "graceSeconds": self.pod.grace_s if self.grace_s is None else self.grace_s,
                "isGone": self.is_gone,
                "faults": list(self.faults),
                "broken": self.broken,
                "version": self.version,
                "containers": [render_container(record) for record in records],
            }


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - time.time(), 0)
