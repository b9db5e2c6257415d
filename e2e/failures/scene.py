"""The pod of a row: an application that has files open, a second one that sees a sub-path, and what both have seen."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.podlet.client import RunningPod
from tests.pods.application import LOST, POLL_S, WATCH, Watcher, kill_serving_process, wait_for_probe, watcher
from tests.pods.manifests import mount, pod, program
from tests.pods.source_tree import INBOX, SHELF_TEXT, SourceTree
from tests.pods.stage import Images, Stage

DAEMON = "sidemount-books"
KEEPER = "sidemount-keeper"
_RECOVERED_S = 40.0
_ROUNDS = 20
_DELETED_S = 30.0
_AS_ROOT = {"runAsUser": 0, "runAsGroup": 0}  # whom no mode of a bare directory would stop


@dataclass(frozen=True, slots=True)
class Scene:
    """A running pod. Methods raise AssertionError or PodletError when something is not as it must be."""

    running: RunningPod
    tree: SourceTree
    app: Watcher
    second: Watcher

    def kill(self, *containers: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the first process of containers, to one right after the other."""
        for container in containers:
            self.running.kill(container, number)

    def kill_serving(self, number: int) -> None:
        """Send a signal to the process that serves."""
        kill_serving_process(self.running, DAEMON, number)

    def change_image(self, container: str) -> None:
        """Have a container ended and started anew, as when its image is changed."""
        image = next(c["image"] for c in self.running.status().raw["containers"] if c["name"] == container)  # type: ignore[attr-defined]  # as Kubernetes renders a status
        self.running.change_image(container, image)

    def exhaust_memory(self) -> None:
        """Use more memory in the daemon's container than it may: the kernel kills all of it."""
        self.running.exec(DAEMON, ["python3", "-S", "-c", "x = bytearray(1 << 30)"])
        self.wait_restarted(DAEMON)
        reason = self.running.status().containers[DAEMON].last_reason
        assert reason == "OOMKilled", reason

    def wait_restarted(self, *containers: str) -> None:
        """Wait until containers have restarted once, and all is ready."""
        self.running.wait_for(
            lambda status: status.ready and all(status.containers[c].restart_count == 1 for c in containers),
            _RECOVERED_S,
            f"ready with {containers or 'nothing'} restarted",
        )
        wait_for_probe(self.running, "ready", deadline_s=_RECOVERED_S)

    def wait_for_another(self) -> None:
        """Wait until another process serves than the first."""
        until = time.monotonic() + _RECOVERED_S
        while self.running.logs(DAEMON).count('"serving"') < 2:
            assert time.monotonic() < until, self.running.logs(DAEMON)
            time.sleep(POLL_S)

    def go_on(self) -> None:
        """Wait until both applications have done something more."""
        for watch in (self.app, self.second):
            watch.wait_for_rounds(_ROUNDS, _RECOVERED_S)

    def wait_lost(self) -> None:
        """Wait until what both had open is lost."""
        for watch in (self.app, self.second):
            watch.wait_until("held", "ENOTCONN", _RECOVERED_S)

    def delete(self, grace_s: int | None = None) -> None:
        """Delete the pod. Raises when anything of it is left."""
        self.running.delete(grace_s, deadline_s=_DELETED_S)

    def expect_pause(self) -> str:
        """End the pod. No call may have failed, not of what was open either. Return in words what was seen."""
        self.go_on()
        self._end()
        for name, watch in self._watchers():
            outcomes = {change.outcome for change in watch.changes()}
            assert outcomes == {"ok"}, (name, watch.changes())
        pause_ms = 1000 * max(watch.longest_s() for _, watch in self._watchers())
        return (
            f"no error in either application, {self._created()} files created, longest wait {pause_ms:.0f} ms"
        )

    def expect_reopening(self, *, loses: bool = True) -> str:
        """End the pod. What is opened anew works again; `loses`: what was open before is certainly lost. Return in words what was seen."""
        self.go_on()
        self._end()
        for name, watch in self._watchers():
            for op in ("read", "list", *(("create",) if name == "app" else ())):
                outcomes = watch.outcomes(op)
                assert outcomes[0] == outcomes[-1] == "ok", (name, op, outcomes)
                assert set(outcomes) <= {"ok", *LOST}, (name, op, outcomes)
            held = watch.outcomes("held")
            assert set(held) <= {"ok", *LOST}, (name, held)
            assert not loses or held[-1] == "ENOTCONN", (name, held)
        return f"what was open {self.app.outcomes('held')[-1]}, new opens ok, {self._created()} files created"

    def _end(self) -> None:
        restarts = {name: c.restart_count for name, c in self.running.status().containers.items()}
        assert (restarts["app"], restarts["second"]) == (0, 0), restarts
        self.delete()

    def _watchers(self) -> tuple[tuple[str, Watcher], ...]:
        return (("app", self.app), ("second", self.second))

    def _created(self) -> int:
        created = self.app.created(self.tree)
        assert created > 10, created
        return created


@contextmanager
def scene(directory: Path, images: Images, spec: Mapping[str, Any]) -> Iterator[Scene]:
    """Have the pod run for a block, its volume of a class with this specification. Raises as well if the pod leaves anything behind."""
    with Stage(directory, images, class_spec=spec) as stage:
        tree = stage.tree()
        tree.expect_written(INBOX)
        shelf = [mount("books", "/shelf", subPath="shelf")]
        second = program("second", WATCH, "/shelf", "pi.txt", SHELF_TEXT, "", volumeMounts=shelf)
        running = stage.run(pod({"books": stage.source(tree)}, watcher(securityContext=_AS_ROOT), second))
        yield Scene(running, tree, Watcher(running), Watcher(running, "second"))
