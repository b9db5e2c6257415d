"""Ending containers as a kubelet does: preStop, turns, SIGTERM, the grace that all of it shares, SIGKILL.

Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kuberuntime/kuberuntime_container.go
"""

import threading
import time
from collections.abc import Callable

from e2e.podlet.pod import Container, Kind, Pod, PreStop
from e2e.podlet.process import ContainerProcess
from e2e.podlet.runtime import RuntimeFailed

_MINIMUM_S = 2  # kubelet never gives a container less between SIGTERM and SIGKILL

Tell = Callable[[str], None]


class Turns:
    """Who waits for whom: a native sidecar for every app container and for each later sidecar."""

    def __init__(self, pod: Pod, running: frozenset[str]) -> None:
        self._ended = {container.name: threading.Event() for container in pod.containers}
        for name, event in self._ended.items():
            if name not in running:
                event.set()
        self._before: dict[str, list[str]] = {}
        apps = [container.name for container in pod.apps]
        later: list[str] = []
        for container in reversed(pod.inits):
            if container.kind is Kind.SIDECAR:
                self._before[container.name] = [*apps, *later]
                later = [container.name]

    def wait(self, name: str, limit_s: float) -> float:
        """Wait for the container's turn, at most so long; return the seconds spent."""
        began = time.monotonic()
        for other in self._before.get(name, []):
            left = limit_s - (time.monotonic() - began)
            if left <= 0 or not self._ended[other].wait(left):
                break
        return time.monotonic() - began

    def ended(self, name: str) -> None:
        """Let the next one go."""
        self._ended[name].set()


def end_container(
    container: Container,
    process: ContainerProcess,
    grace_s: int,
    *,
    tell: Tell,
    turns: Turns | None,
) -> None:
    """End one container; every step spends the same grace. Raises TimeoutError when it does not die."""
    left = grace_s
    # preStop runs at once, of sidecars too: only their SIGTERM waits for its turn.
    if container.pre_stop is not None and left > 0:
        left -= int(_run_pre_stop(container.name, container.pre_stop, process, left, tell))
    if turns is not None and left > 0:
        left -= int(turns.wait(container.name, left))
    left = max(left, _MINIMUM_S)
    if not process.ended.is_set():
        tell(f"SIGTERM {container.name}, {left} s until SIGKILL")
    process.stop(left)
    if turns is not None:
        turns.ended(container.name)


def end_all(pod: Pod, running: dict[str, ContainerProcess], grace_s: int, *, tell: Tell) -> tuple[str, ...]:
    """End every running container, all at the same time but for the sidecars' turns; return what went wrong."""
    turns = Turns(pod, frozenset(running))
    faults: list[str] = []

    def end(container: Container, process: ContainerProcess) -> None:
        try:
            end_container(container, process, grace_s, tell=tell, turns=turns)
        except TimeoutError as error:
            faults.append(str(error))

    threads = [
        threading.Thread(target=end, args=(container, running[container.name]), daemon=True)
        for container in pod.containers
        if container.name in running
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(faults)


def _run_pre_stop(name: str, hook: PreStop, process: ContainerProcess, limit_s: float, tell: Tell) -> float:
    began = time.monotonic()
    if not hook.command:
        process.ended.wait(min(hook.sleep_s, limit_s))
        return time.monotonic() - began
    try:
        done = process.execute(hook.command, limit_s)
    except (RuntimeFailed, OSError) as error:
        tell(f"PreStop hook of {name} failed: {error}")
    else:
        if done.exit_code is None:
            tell(f"PreStop hook of {name} did not complete within the grace period")
        elif done.exit_code != 0:
            tell(f"PreStop hook of {name} failed with exit code {done.exit_code}: {done.stderr.strip()}")
        else:
            tell(f"PreStop hook of {name} done")
    return time.monotonic() - began
