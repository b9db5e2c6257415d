"""Real clients that are killed again and again (M6, M7, S0-29, JuiceFS#343): a new connection takes the place of the dead one in
containers that run, nothing is written beneath it, nothing hangs, and the layers go with the pod.

`sshfs` and `rclone mount2` serve the keeper's descriptor without privilege, `bindfs` can do nothing but mount by itself.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.clients.images import bindfs_image, rclone_image, sshfs_image
from e2e.podlet.client import RunningPod
from e2e.podlet.errors import PodletError
from tests.pods.application import LOST, PROGRAMS, call, idler, layers
from tests.pods.conftest import MakeStage
from tests.pods.manifests import Json, driver_class, mount, pod, program
from tests.pods.stage import READY_S

pytestmark = [pytest.mark.root, pytest.mark.fuse]
SCRIBE = PROGRAMS / "scribe.py"
KILLS = 3
RECOVERED_S = 30.0
HANGS_S = 15.0  # half of the time after which a silent client is taken for hung
WORKED_S = 1.1  # a client that lived shorter is not started again in its container
DAEMON = "sidemount-store"
OPEN_TO_ALL = "0777"
# In the keeper's own namespace: what lies in the mounts volume when no mount covers it.
BENEATH = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
bare = libc.syscall(428, -100, b"/sidemount", 1)
assert bare >= 0, os.strerror(ctypes.get_errno())
seen = [os.path.join(at, n) for at, _, names in os.walk(f"/proc/self/fd/{bare}/") for n in names]
"""
WRITTEN = "seen = {n: open(f'/cache/{n}').read() for n in os.listdir('/cache') if n.startswith('w')}"


@dataclass(frozen=True, slots=True)
class Client:
    """A client as an admin allows it. What it shows is its cache volume, which nobody else sees."""

    name: str
    command: tuple[str, ...]
    image: Callable[[], Path]
    descriptor: bool

    def driver_class(self) -> Json:
        """Return the allowlist's entry."""
        return driver_class(
            self.name,
            {
                "deliveries": ["sidecar"],
                "sources": [f"{self.name}://**"],
                "namespaces": {},
                "image": self.name,
                "command": list(self.command),
                "cacheSize": "64Mi",
                "abilities": {"descriptor": self.descriptor},
            },
        )


CLIENTS = (
    Client("sshfs", ("sshfs", "-f", "-o", "umask=000", "store:${cache}", "${mountpoint}"), sshfs_image, True),
    Client(
        "rclone",
        (
            "rclone", "mount2", "--config=", "--allow-non-empty", "--vfs-cache-mode=off", "--umask=0",
            f"--dir-perms={OPEN_TO_ALL}", f"--file-perms={OPEN_TO_ALL}", "${cache}", "${mountpoint}",
        ),
        rclone_image,
        True,
    ),
    Client("bindfs", ("bindfs", "-f", f"--perms={OPEN_TO_ALL}", "${cache}", "${mountpoint}"), bindfs_image, False),
)  # fmt: skip


class Scribe:
    """What the writing container has told."""

    def __init__(self, running: RunningPod) -> None:
        self._running = running

    def rounds(self) -> list[dict[str, Any]]:
        """Return every round so far."""
        return [json.loads(line) for line in self._running.logs("app").splitlines() if line.endswith("}")]

    def wait_for_success(self, since: float) -> float:
        """Wait for the first file written after a moment by a round that saw no failure before it; return when that was."""
        until = time.monotonic() + RECOVERED_S
        while True:
            later = [r for r in self.rounds() if r["at"] > since]
            failed = [r["at"] for r in later if r["write"] != "ok"]
            good = [r["at"] for r in later if r["write"] == "ok" and (not failed or r["at"] > failed[-1])]
            # A file that was written just before the kill may be told just after it.
            if len(good) >= 5 and failed:
                return float(good[0])
            assert time.monotonic() < until, later[-3:]
            time.sleep(0.05)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_killed_again_and_again_is_remounted(make_stage: MakeStage, client: Client) -> None:
    stage = make_stage(classes=(client.driver_class(),), more_images={client.name: client.image()})
    whole, below = mount("store", "/store"), mount("store", "/below", subPath="sub")
    asked = pod(
        {"store": f"{client.name}://any"},
        program("app", SCRIBE, "/store", volumeMounts=[whole]),
        idler("second", below),
    )
    running = stage.start(asked)
    _make_sub(running)
    running.wait_ready(READY_S)
    scribe, waits_s = Scribe(running), []
    for number in range(KILLS):
        waits_s.append(_kill(running, scribe, client))
        name, text = f"/below/note{number}", f"note {number}"
        assert (
            call(running, "second", f"open({name!r}, 'w').write({text!r}); seen = open({name!r}).read()")
            == text
        )
    print(f"{client.name}: from kill to live in {[round(wait_s, 2) for wait_s in waits_s]} s")  # for -rP
    _check_rounds(scribe.rounds())
    _check_source(running, scribe)
    assert call(running, "sidemount-keeper", BENEATH) == []
    status = running.status()
    assert {name: c.restart_count for name, c in status.containers.items()} == dict.fromkeys(
        status.containers, 0
    )
    assert layers(running, "store") == KILLS + 1
    hidden = [m for m in running.mounts() if m.mount_point.endswith("/sidemount/store.client")]
    assert len(hidden) == (0 if client.descriptor else 1)
    running.delete(deadline_s=30)
    assert not running.leaks(), running.leaks()


def _make_sub(running: RunningPod) -> None:
    """Make the sub-path's directory in the source as soon as its container runs: the pod waits for it."""
    until = time.monotonic() + READY_S
    while True:
        with suppress(PodletError, AssertionError):  # the container does not run yet
            call(
                running,
                DAEMON,
                f"os.mkdir('/cache/sub'); os.chmod('/cache/sub', 0o{OPEN_TO_ALL[1:]}); seen = 0",
            )
            return
        assert time.monotonic() < until, "the client's container does not start"
        time.sleep(0.05)


def _kill(running: RunningPod, scribe: Scribe, client: Client) -> float:
    """Kill the client that has worked for a while; return how long it took until a file could be written again."""
    time.sleep(WORKED_S)
    (pid,) = _processes(running, client.name)
    killed = time.time()
    os.kill(pid, 9)
    return scribe.wait_for_success(killed) - killed


def _check_rounds(rounds: list[dict[str, Any]]) -> None:
    """Nothing but a lost connection was seen, and that at once; what was open stays lost."""
    lost = {*LOST, "EIO"}
    for op in ("write", "read", "list", "held"):
        assert {r[op] for r in rounds} - {"ok"} <= lost, op
    assert rounds[0]["held"] == "ok"
    assert rounds[-1]["held"] in lost
    assert max(r["longest_s"] for r in rounds) < HANGS_S


def _check_source(running: RunningPod, scribe: Scribe) -> None:
    """Every file whose writing was acknowledged is where the client keeps them."""
    acknowledged = {f"w{r['n']}": str(r["n"]) for r in scribe.rounds() if r["write"] == "ok"}
    there = call(running, DAEMON, WRITTEN)
    assert {name: there.get(name) for name in acknowledged} == acknowledged
    assert len(acknowledged) > 20


def _processes(running: RunningPod, program: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and f"/pod{running.uid}/" in (entry / "cgroup").read_text():
                found += [int(entry.name)] if (entry / "comm").read_text() == f"{program}\n" else []
    return found
