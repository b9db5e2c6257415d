"""What is left to do when the last container has ended. Nothing here is kinder than a kubelet."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from e2e.podlet import cgroups
from e2e.podlet.paths import NodePaths
from e2e.podlet.pod_state import PodState
from e2e.podlet.process import ContainerProcess
from e2e.podlet.removal import remove_one_filesystem
from e2e.podlet.runtime import Crun, RuntimeFailed
from e2e.podlet.sandbox import Sandbox
from e2e.podlet.volumes import Volumes

_RETRY_S = 0.5
_RETRY_MAX_S = 122.0


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to remove, repeatable."""

    what: str
    run: Callable[[], None]


class TearDown:
    """The teardown of one pod: in stages, each step tried again with a growing pause until it succeeds."""

    def __init__(
        self, state: PodState, paths: NodePaths, volumes: Volumes, tell: Callable[[str], None], scale: float
    ) -> None:
        self._state = state
        self._paths = paths
        self._volumes = volumes
        self._tell = tell
        self._scale = scale

    def run(
        self, runtime: Crun, sandbox: Sandbox | None, unclean: list[ContainerProcess], cgroup: str
    ) -> None:
        """Remove sandbox, volumes, directories, cgroup. Blocks for as long as something is in the way."""
        pod = self._state.pod
        self._complete([Step("commands in containers", runtime.wait_until_idle)])
        self._complete([Step(f"container {process.identity}", process.clean_up) for process in unclean])
        self._complete([Step("sandbox", sandbox.stop)] if sandbox else [])
        self._complete(
            [
                Step(f"volume {volume.name}", partial(self._volumes.tear_down, volume))
                for volume in pod.volumes
            ]
        )
        directory = self._paths.pod(pod.uid)
        self._complete([
            Step("pod directory", partial(remove_one_filesystem, directory)),
            Step("cgroup", partial(cgroups.remove, cgroup)),
        ])  # fmt: skip

    def _complete(self, steps: list[Step]) -> None:
        pause = _RETRY_S * self._scale
        while steps:
            steps, faults = self._attempt(steps)
            self._state.set_faults(*faults)
            for fault in faults:
                self._tell(f"teardown: {fault}")
            if steps:
                time.sleep(pause)  # kubelet's back-off: nothing announces that a mount is free
                pause = min(pause * 2, _RETRY_MAX_S * self._scale)

    def _attempt(self, steps: list[Step]) -> tuple[list[Step], list[str]]:
        left: list[Step] = []
        faults: list[str] = []
        for step in steps:
            self._state.set_faults(
                *faults, f"{step.what}: its removal has not ended"
            )  # it may never: a hung mount
            try:
                step.run()
            except (OSError, RuntimeFailed) as error:
                left.append(step)
                faults.append(f"{step.what}: {error}")
        return left, faults
