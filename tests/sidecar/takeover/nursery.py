"""Keeper and zygote for tests, in one process that never touches what it mounts: holds the device, raises daemons, kills them.

Run as a program: mounts in a mount namespace of its own, prints one JSON line when the volume is served, and takes commands on its
standard input: `kill`, `torture SECONDS LEAST_MS MOST_MS`, `storm SECONDS MOST_MS`,
`report`, `end`. Everything is gone when it ends, however it ends.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import socket
import sys
import time
from typing import Any

from sidecar.filesystems import preload
from sidecar.takeover.park import Park
from sidemount.host.fuse_mount import MountPlan, open_connection
from sidemount.host.readiness import wait_readable
from tests.sidecar.takeover.serving import Fault, Plan, serve

_SPARES = 2
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x4000 | 1 << 18
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """A daemon, or one that waits to become it."""

    def __init__(self, plan: Plan, device: int, init: bytes, park: Park) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self.link.close()
            code = 1
            try:
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                order = json.loads(theirs.recv(1000) or "0") or os._exit(0)
                serve(
                    plan,
                    device,
                    init,
                    park,
                    resume=order["resume"],
                    say=lambda what: _tell(theirs, what),
                )
                code = 0
            except BaseException as error:
                import traceback

                traceback.print_exc()
                theirs.send(json.dumps({"failed": repr(error)}).encode())
            finally:
                os._exit(code)
        theirs.close()

    def go(self, *, resume: bool) -> None:
        """Have it take over."""
        self.link.send(json.dumps({"resume": resume}).encode())

    def heard(self, timeout_s: float) -> dict[str, Any] | None:
        """Return what it says next, None if it dies before."""
        ready = wait_readable(self.link, timeout_s)
        if not ready:
            raise TimeoutError(f"daemon {self.pid} is not ready after {timeout_s} s")
        said = self.link.recv(10_000)
        return json.loads(said) if said else None

    def kill(self) -> None:
        """Kill it; it may be dead already."""
        os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for its certain end, and return its exit code."""
        _, status = os.waitpid(self.pid, 0)
        self.link.close()
        return os.waitstatus_to_exitcode(status)


class Nursery:
    """Raises one daemon after another."""

    def __init__(self, plan: Plan, ready_s: float) -> None:
        self._plan = plan
        self._ready_s = ready_s
        _check(_libc.unshare(_CLONE_NEWNS))
        _check(_libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None))
        connection = open_connection(MountPlan(source="sidemount-test"), read_init=True, staging=plan.target)
        connection.attach(plan.target)
        connection.release_mount()
        self._device, self._init = connection.device, connection.init
        self._park = Park.make()
        self.kills = 0
        self.takeovers: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self._spares = [self._new() for _ in range(_SPARES)]
        self._serving = self._spares.pop(0)
        self._serving.go(resume=False)
        serves = self._hear(time.perf_counter())
        self._spares.append(self._new())
        if not serves and not self.faults:
            self.replace()

    def _new(self) -> Child:
        return Child(self._plan, self._device, self._init, self._park)

    def _hear(self, since: float) -> bool:
        """Note how a takeover went. Return whether the daemon serves."""
        try:
            said = self._serving.heard(self._ready_s)
        except TimeoutError as error:
            self.faults.append(str(error))
            return False
        if said is None:
            return False
        if "failed" in said or "lost" in said:
            self.faults.append(str(said))
            return "failed" not in said
        said["stall_ms"] = (time.perf_counter() - since) * 1e3
        self.takeovers.append(said)
        return True

    def replace(self) -> None:
        """Have the next daemon take over from the one that is dead or about to be."""
        while True:
            since = time.perf_counter()
            code = self._serving.reap()
            if code != -signal.SIGKILL:
                self.faults.append(f"a daemon ended with {code}")
            self._serving = self._spares.pop(0)
            self._serving.go(resume=True)
            serves = self._hear(since)
            self._spares.append(self._new())
            if serves or self.faults:
                return

    def kill(self) -> None:
        """Kill the daemon, and have another one take over."""
        self._serving.kill()
        self.kills += 1
        self.replace()

    def torture(self, seconds: float, least_ms: float, most_ms: float) -> None:
        """Kill at random for a while; also replace daemons that die by themselves."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.faults:
            pause_s = min(random.uniform(least_ms, most_ms) / 1e3, max(0.0, end - time.monotonic()))
            ready = wait_readable(self._serving.link, pause_s)
            if ready and self._serving.link.recv(10_000):
                continue
            self.kills += 1
            if not ready:
                self._serving.kill()
            self.replace()

    def storm(self, seconds: float, most_ms: float) -> None:
        """Kill daemons while they are still taking over, at any time after their turn has come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.faults:
            self._serving.kill()
            self.kills += 1
            code = self._serving.reap()
            if code != -signal.SIGKILL:
                self.faults.append(f"a daemon ended with {code}")
            self._serving = self._spares.pop(0)
            self._serving.go(resume=True)
            self._spares.append(self._new())
            time.sleep(random.uniform(0, most_ms) / 1e3)
        if not self.faults:
            self.kill()

    def report(self) -> dict[str, Any]:
        """Return what has happened so far."""
        return {"kills": self.kills, "faults": self.faults, "takeovers": self.takeovers}


def main() -> None:
    """Do what standard input says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser()
    for name in ("target", "source", "state-dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--uri", default="")
    parser.add_argument("--cache", default="")
    parser.add_argument("--secrets", default="")
    parser.add_argument("--filesystem", default="directory")
    parser.add_argument("--options", default="{}")
    parser.add_argument("--fault", default="none")
    parser.add_argument("--suicide", type=float, default=0.0)
    parser.add_argument("--deadly-listing", type=float, default=0.0)
    parser.add_argument("--stillborn", action="store_true")
    parser.add_argument("--quiet-seconds", type=float, default=10.0)
    parser.add_argument("--deadly-operation", action="store_true")
    parser.add_argument("--deadly-pages", action="store_true")
    parser.add_argument("--ready-seconds", type=float, default=20.0)
    given = parser.parse_args()
    plan = Plan(
        source=given.source,
        target=given.target,
        state_dir=given.state_dir,
        uri=given.uri,
        cache=given.cache,
        secrets=given.secrets,
        filesystem=given.filesystem,
        options=json.loads(given.options),
        fault=Fault(given.fault),
        suicide=given.suicide,
        deadly_listing=given.deadly_listing,
        stillborn=given.stillborn,
        quiet_s=given.quiet_seconds,
        deadly_operation=given.deadly_operation,
        deadly_pages=given.deadly_pages,
    )
    os.chdir("/")
    preload(plan.filesystem)
    nursery = Nursery(plan, given.ready_seconds)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["kill"]:
                nursery.kill()
            case ["torture", seconds, least, most]:
                nursery.torture(float(seconds), float(least), float(most))
            case ["storm", seconds, most]:
                nursery.storm(float(seconds), float(most))
            case ["end"]:
                break
        print(json.dumps(nursery.report()), flush=True)
    os._exit(0)


def _tell(link: socket.socket, what: dict[str, Any]) -> None:
    link.send(json.dumps(what).encode())


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
