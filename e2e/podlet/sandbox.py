"""The pod sandbox: a pause process that holds the namespaces, /dev/shm, and the files of /etc."""

import os
import shutil
from pathlib import Path

from e2e.podlet import cgroups, mounts
from e2e.podlet.command import run_command
from e2e.podlet.errors import NodeFailure
from e2e.podlet.oci import Bind, pause_spec
from e2e.podlet.paths import NodePaths
from e2e.podlet.pod import Kind, Pod
from e2e.podlet.process import ContainerProcess
from e2e.podlet.removal import remove_one_filesystem
from e2e.podlet.runtime import Crun, write_bundle

_BUSYBOX = Path("/bin/busybox")
# The first process of a shared process namespace must reap the orphans of every container: a shell's wait does.
_PAUSE = ("/bin/busybox", "sh", "-c", "trap 'exit 0' TERM INT; /bin/busybox sleep 2147483647 & wait $!")
_HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t{hostname}\n"
_STOP_S = 10


class Sandbox:
    """One pod's sandbox, from start() until stop()."""

    def __init__(self, paths: NodePaths, pod: Pod, runtime: Crun, cgroup: str) -> None:
        self._paths = paths
        self._pod = pod
        self._runtime = runtime
        self._cgroup = f"{cgroup}/sandbox"
        self._directory = paths.sandbox(pod.uid)
        self._process: ContainerProcess | None = None

    @property
    def pause_pid(self) -> int:
        """Return the process whose namespaces the containers join."""
        if self._process is None:
            raise NodeFailure("the sandbox is not running")
        return self._process.pid

    @property
    def binds(self) -> tuple[Bind, ...]:
        """Return what every container of the pod mounts from the sandbox."""
        files = tuple(
            Bind(source=self._directory / name, destination=f"/etc/{name}", read_only=False)
            for name in ("hosts", "hostname", "resolv.conf")
        )
        return (Bind(source=self._directory / "shm", destination="/dev/shm", read_only=False), *files)

    def start(self) -> None:
        """Start the pause process and bring its loopback up. Raises NodeFailure, RuntimeFailed, OSError."""
        self._write_files()
        identity = f"{self._pod.uid}-pause"
        bundle = self._paths.bundle(identity)
        root = bundle / "rootfs"
        for name in ("bin", "proc", "dev", "sys"):
            (root / name).mkdir(parents=True, exist_ok=True)
        if not _BUSYBOX.is_file():
            raise NodeFailure(f"{_BUSYBOX} is missing: install busybox-static")
        shutil.copy(_BUSYBOX, root / "bin" / "busybox")
        write_bundle(bundle, pause_spec(self._pod, root, _PAUSE, self._cgroup))
        log = os.open(bundle / "log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            pid = self._runtime.create(identity, bundle, log)
        finally:
            os.close(log)
        self._process = ContainerProcess(
            identity, pid, self._cgroup, self._runtime, is_root_overlay=False, bundle=bundle
        )
        self._runtime.start(identity)
        if not self._pod.host_network:
            raise_loopback(pid)

    def stop(self) -> None:
        """End the pause process and remove what start() made. Repeatable. Raises OSError, TimeoutError."""
        if self._process is not None:
            self._process.stop(_STOP_S)
        shm = self._directory / "shm"
        if mounts.is_mount_point(shm):
            mounts.unmount(shm)
        remove_one_filesystem(self._directory)

    def _write_files(self) -> None:
        shm = self._directory / "shm"
        shm.mkdir(parents=True, exist_ok=True)
        if not mounts.is_mount_point(shm):
            mounts.mount("tmpfs", "shm", shm, "nosuid", "nodev", "noexec", "mode=1777", "size=65536k")
        (self._directory / "hosts").write_text(_HOSTS.format(hostname=self._pod.hostname))
        (self._directory / "hostname").write_text(f"{self._pod.hostname}\n")
        (self._directory / "resolv.conf").write_text("")


def raise_loopback(pid: int | None = None) -> None:
    """Bring lo up in a process's network namespace, or in our own."""
    enter = [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]
    done = run_command([*enter, str(_BUSYBOX), "ip", "link", "set", "lo", "up"], 10)
    if done.fault:
        raise NodeFailure(f"cannot bring the loopback interface up: {done.fault}")


def pod_cgroup(node_id: str, pod: Pod) -> str:
    """Create the pod's cgroup, limited as kubelet limits it, and return its path."""
    path = f"{cgroups.top_name(node_id)}/pod{pod.uid}"
    cgroups.limit_pod(path, _memory_limit(pod), pod.resources.cpu_limit_milli)
    return path


def _memory_limit(pod: Pod) -> int | None:
    """Return the pod's own limit, else what its containers need together if every one is limited."""
    if pod.resources.memory_limit_bytes is not None:
        return pod.resources.memory_limit_bytes
    together = peak = 0
    for container in pod.containers:
        limit = container.resources.memory_limit_bytes
        if limit is None:
            return None
        if container.kind is Kind.INIT:
            peak = max(peak, together + limit)
        else:
            together += limit  # sidecars come before, app containers after every init container
    return max(peak, together)
