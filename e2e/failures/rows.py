"""The rows: an event, a delivery, what is done to bring it about, what applications must see.

Those of CSI need a cluster: `e2e/tests/test_csi_faults.py` has them, docs/failures.md what was seen.
"""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.failures.scene import DAEMON, KEEPER, Scene

TAKEOVER, REMOUNT = "sidecar, takeover", "sidecar, remount"
_PAUSE = "pause, no error"
_NOTHING = "nothing"
_REOPEN = "old descriptors ENOTCONN, new opens work"
_ENDS = "pod ends, no mount left, no object deleted"
_SILENT_S = 5.0  # more than twice what the classes here allow
_CLASSES: Mapping[str, Mapping[str, Any]] = {
    TAKEOVER: {"hungAfter": "2s"},
    REMOUNT: {"hungAfter": "2s", "abilities": {"takeover": False}},
}
_LITTLE_MEMORY = {"resources": {"limits": {"memory": "128Mi"}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`act` brings the event about, sees it through, and returns in words what was seen."""

    event: str
    delivery: str
    injected: str
    expected: str
    act: Callable[[Scene], str]
    more_spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return what tells it from others."""
        return f"{self.event}, {self.delivery}: {self.injected}"

    @property
    def class_spec(self) -> Mapping[str, Any]:
        """Return what the volume's class is like."""
        return {**_CLASSES[self.delivery], **self.more_spec}


def _serving_killed(scene: Scene) -> str:
    scene.kill_serving(signal.SIGKILL)
    scene.wait_for_another()
    assert scene.running.status().containers[DAEMON].restart_count == 0
    return scene.expect_pause()


def _container_killed(scene: Scene) -> str:
    scene.kill(DAEMON)
    scene.wait_restarted(DAEMON)
    return scene.expect_pause()


def _out_of_memory(scene: Scene) -> str:
    scene.exhaust_memory()
    return scene.expect_pause()


def _serving_hung(scene: Scene) -> str:
    scene.kill_serving(signal.SIGSTOP)
    scene.wait_for_another()
    return scene.expect_pause()


def _first_process_hung(scene: Scene) -> str:
    scene.kill(DAEMON, number=signal.SIGSTOP)
    time.sleep(_SILENT_S)
    scene.go_on()
    scene.kill(DAEMON, number=signal.SIGCONT)
    return scene.expect_pause()


def _keeper_killed(scene: Scene) -> str:
    scene.kill(KEEPER)
    scene.wait_restarted(KEEPER)
    return scene.expect_pause()


def _daemon_upgraded(scene: Scene) -> str:
    scene.kill(DAEMON, number=signal.SIGUSR1)
    scene.wait_for_another()
    return scene.expect_pause()


def _image_changed(container: str) -> Callable[[Scene], str]:
    def act(scene: Scene) -> str:
        scene.change_image(container)
        scene.wait_restarted(container)
        return scene.expect_pause()

    return act


def _both_killed(scene: Scene) -> str:
    scene.kill(KEEPER, DAEMON)
    scene.wait_restarted(KEEPER, DAEMON)
    return scene.expect_reopening(loses=False)


def _remounted(strike: Callable[[Scene], None], *restarted: str) -> Callable[[Scene], str]:
    def act(scene: Scene) -> str:
        strike(scene)
        scene.wait_lost()
        scene.wait_restarted(*restarted)
        return scene.expect_reopening()

    return act


def _deleted(grace_s: int | None, *killed: str) -> Callable[[Scene], str]:
    def act(scene: Scene) -> str:
        scene.go_on()
        if killed:
            scene.kill(*killed)
            scene.wait_restarted(*killed)
        began = time.monotonic()
        scene.delete(grace_s)
        return f"gone after {time.monotonic() - began:.1f} s, nothing left, source as it was"

    return act


def _of_takeover() -> list[Row]:
    def row(event: str, injected: str, expected: str, act: Callable[[Scene], str], **spec: Any) -> Row:
        return Row(
            event=event, delivery=TAKEOVER, injected=injected, expected=expected, act=act, more_spec=spec
        )

    return [
        row("daemon killed", "SIGKILL to what serves", _PAUSE, _serving_killed),
        row("daemon killed", "SIGKILL to its container", _PAUSE, _container_killed),
        row("daemon out of memory", "its container's limit", _PAUSE, _out_of_memory, **_LITTLE_MEMORY),
        row("daemon hung", "SIGSTOP to what serves", _PAUSE, _serving_hung),
        row("daemon hung", "SIGSTOP to its first process", _NOTHING, _first_process_hung),
        row("keeper killed", "SIGKILL to its container", _NOTHING, _keeper_killed),
        row("both at once", "SIGKILL to both containers", _REOPEN, _both_killed),
        row("upgrade of the daemon", "SIGUSR1 to its first process", _PAUSE, _daemon_upgraded),
        row("upgrade of the daemon", "another image for its container", _PAUSE, _image_changed(DAEMON)),
        row("upgrade of the keeper", "another image for its container", _NOTHING, _image_changed(KEEPER)),
        row("pod deleted", "with its grace", _ENDS, _deleted(None)),
        row("pod deleted", "SIGKILL, no grace", _ENDS, _deleted(0)),
        row("pod deleted", "evicted after both were killed", _ENDS, _deleted(0, KEEPER, DAEMON)),
    ]


def _of_remount() -> list[Row]:
    def row(event: str, injected: str, expected: str, act: Callable[[Scene], str], **spec: Any) -> Row:
        return Row(
            event=event, delivery=REMOUNT, injected=injected, expected=expected, act=act, more_spec=spec
        )

    killed = _remounted(lambda scene: scene.kill(DAEMON), DAEMON)
    exhausted = _remounted(lambda scene: scene.exhaust_memory(), DAEMON)
    stopped = _remounted(
        lambda scene: scene.kill_serving(signal.SIGSTOP)
    )  # another process of the container goes on
    both = _remounted(lambda scene: scene.kill(KEEPER, DAEMON), KEEPER, DAEMON)
    asked = _remounted(lambda scene: scene.kill(DAEMON, number=signal.SIGTERM), DAEMON)
    return [
        row("daemon killed", "SIGKILL to its container", _REOPEN, killed),
        row("daemon out of memory", "its container's limit", _REOPEN, exhausted, **_LITTLE_MEMORY),
        row("daemon hung", "SIGSTOP to what serves", _REOPEN, stopped),
        row("keeper killed", "SIGKILL to its container", _NOTHING, _keeper_killed),
        row("both at once", "SIGKILL to both containers", _REOPEN, both),
        row("upgrade of the daemon", "SIGTERM to its container", _REOPEN, asked),
        row("upgrade of the keeper", "another image for its container", _NOTHING, _image_changed(KEEPER)),
        row("pod deleted", "with its grace", _ENDS, _deleted(None)),
        row("pod deleted", "SIGKILL, no grace", _ENDS, _deleted(0)),
    ]


ROWS: tuple[Row, ...] = (*_of_takeover(), *_of_remount())
