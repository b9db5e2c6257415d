"""One running container: its first process, and everything that has to happen when that ends."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from e2e.podlet import cgroups, mounts
from e2e.podlet.command import Completed
from e2e.podlet.runtime import Crun

_KILLED_S = 10.0


class ContainerProcess:
    """The process that crun created; crun gone, the node's init is its parent.

    `ended` is set once the process is reaped, its cgroup and root are gone and the callbacks have run.
    `fault` says what could not be removed; clean_up() tries again.
    """

    def __init__(
        self, identity: str, pid: int, cgroup: str, runtime: Crun, *, is_root_overlay: bool, bundle: Path
    ) -> None:
        self.identity = identity
        self.pid = pid
        self.cgroup = cgroup
        self.ended = threading.Event()
        self.exit_code = 0
        self.was_out_of_memory = False
        self.fault = ""
        self.started_at = time.time()
        self._runtime = runtime
        self._bundle = bundle
        self._is_root_overlay = is_root_overlay
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self._is_over = False
        self._on_end: list[Callable[[], None]] = []
        threading.Thread(target=self._wait, name=f"wait-{identity}", daemon=True).start()

    def call_when_ended(self, callback: Callable[[], None]) -> None:
        """Call back once the container has ended, at once if it has. Registered callbacks hold up `ended`."""
        with self._lock:
            if not self._is_over:
                self._on_end.append(callback)
                return
        callback()

    def signal(self, number: int) -> None:
        """Send a signal to the first process. One that has ended is no error."""
        with self._lock:
            if self._pidfd < 0:
                return
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def execute(self, argv: tuple[str, ...], timeout_s: float, stdin: bytes = b"") -> Completed:
        """Run a command beside it. Raises RuntimeFailed, OSError when the container has ended."""
        return self._runtime.execute(self.identity, self._bundle, argv, timeout_s, stdin)

    def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after the grace; return when it has ended. Raises TimeoutError."""
        self.signal(signal.SIGTERM)
        if not self.ended.wait(grace_s):
            self.signal(signal.SIGKILL)
        if not self.ended.wait(_KILLED_S):
            raise TimeoutError(
                f"container {self.identity} does not end: {sorted(cgroups.processes(self.cgroup))}"
            )

    def kill_group(self) -> None:
        """SIGKILL every process of the container at once, as memory.oom.group does."""
        cgroups.kill_all(self.cgroup)

    def _wait(self) -> None:
        code = os.waitstatus_to_exitcode(self._runtime.exits.wait(self.pid))
        self.exit_code = 128 - code if code < 0 else code
        with self._lock:
            os.close(self._pidfd)
            self._pidfd = -1
        try:
            # A shared process namespace leaves the other processes running: a runtime kills them.
            cgroups.kill_all(self.cgroup)
            self.was_out_of_memory = cgroups.oom_kills(self.cgroup) > 0
            self.clean_up()
        except Exception as error:  # whatever it is, the container has ended and must be seen to have
            self.fault = f"container {self.identity} leaves something behind: {error}"
        with self._lock:
            self._is_over = True
            callbacks = tuple(self._on_end)
        for callback in callbacks:
            callback()
        self.ended.set()

    def clean_up(self) -> None:
        """Remove crun's state, the cgroup, the root and the bundle. Repeatable."""
        self._runtime.delete(self.identity)
        cgroups.remove(self.cgroup)
        discard_bundle(self._bundle, self._is_root_overlay)


def make_root(bundle: Path, image_root: Path) -> Path:
    """Mount the container's root: the image below, a layer of its own above, as containerd's snapshots are."""
    upper, work, root = (bundle / name for name in ("upper", "work", "rootfs"))
    for directory in (upper, work, root):
        directory.mkdir(parents=True, exist_ok=True)
    mounts.mount("overlay", "overlay", root, f"lowerdir={image_root}", f"upperdir={upper}", f"workdir={work}")
    return root


def discard_bundle(bundle: Path, is_root_overlay: bool) -> None:
    """Unmount the root and remove the bundle. Repeatable."""
    root = bundle / "rootfs"
    if is_root_overlay and mounts.is_mount_point(root):
        mounts.unmount(root)
    if bundle.exists():
        shutil.rmtree(bundle)
