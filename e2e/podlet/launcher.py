"""Starting one container: kubelet's part, containerd's own checks, then the runtime."""

import os
from dataclasses import dataclass
from pathlib import Path

from e2e.podlet import cgroups, mounts
from e2e.podlet.bounded import bounded
from e2e.podlet.env import command_line, environment, expand, process_environment
from e2e.podlet.image import Account, Image
from e2e.podlet.objects import MissingObject, Objects
from e2e.podlet.oci import Bind, Process, container_spec
from e2e.podlet.paths import NodePaths
from e2e.podlet.pod import Container, Pod, Propagation, VolumeMount
from e2e.podlet.process import ContainerProcess, discard_bundle, make_root
from e2e.podlet.runtime import Crun, RuntimeFailed, write_bundle
from e2e.podlet.sandbox import Sandbox
from e2e.podlet.subpath import prepare_sub_path
from e2e.podlet.volumes import Mounted
from sidemount.model.mountinfo import Mount

# What kubelet takes for a message, of the file and of the log.
_MESSAGE_MAX = 4096
_LOG_MESSAGE_MAX = 2048
_LOG_MESSAGE_LINES = 80


class LaunchFailed(Exception):
    """A container did not start. `was_created` says whether it counts as a run that ended (exit code 128)."""

    def __init__(self, reason: str, message: str, *, was_created: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.was_created = was_created


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Everything that a container of one pod is started with."""

    paths: NodePaths
    pod: Pod
    images: dict[str, Image]
    objects: Objects
    volumes: dict[str, Mounted]
    runtime: Crun
    sandbox: Sandbox
    cgroup: str
    stat_s: float  # a hung source would hold a real containerd for ever; here it is refused after this

    def launch(self, container: Container, attempt: int) -> ContainerProcess:
        """Start the container and return its process. Raises LaunchFailed."""
        image = self.images[container.image]
        try:
            account = _account(container, image)
            variables = environment(self.pod, container, self.objects)
            binds = self._binds(container, variables)
        except (MissingObject, OSError) as error:
            raise LaunchFailed("CreateContainerConfigError", str(error)) from error
        argv = command_line(container, image, variables)
        if not argv:
            raise LaunchFailed("CreateContainerError", "no command specified")
        try:
            binds = tuple(
                _checked(bind, self.stat_s)
                for bind in (*self.sandbox.binds, *binds, self._termination_bind(container, attempt))
            )
        except OSError as error:
            raise LaunchFailed(
                "CreateContainerError", f"failed to generate container spec: {error}"
            ) from error
        process = Process(
            argv=argv,
            env=tuple(process_environment(self.pod, image, variables)),
            account=account,
            groups=(
                *self.pod.supplemental_groups,
                *(() if self.pod.fs_group is None else (self.pod.fs_group,)),
            ),
            working_dir=container.working_dir or image.working_dir,
            oom_score_adj=_oom_score_adj(self.pod, container),
        )
        return self._run(container, attempt, image, process, binds)

    def termination_log(self, container: Container, attempt: int) -> Path:
        """Return the node's file behind terminationMessagePath."""
        return self.paths.pod(self.pod.uid) / "containers" / container.name / str(attempt)

    def termination_message(self, container: Container, attempt: int, exit_code: int) -> str:
        """Return what the container left to be told: its file, or the end of its log if it failed and asks for that."""
        told = self.termination_log(container, attempt).read_bytes()[:_MESSAGE_MAX]
        if not told and exit_code != 0 and container.message_from_log:
            log = self.paths.log(self.pod.uid, container.name, attempt).read_bytes()[-_LOG_MESSAGE_MAX:]
            told = b"".join(log.splitlines(keepends=True)[-_LOG_MESSAGE_LINES:])
        return told.decode(errors="replace")

    def _run(
        self, container: Container, attempt: int, image: Image, process: Process, binds: tuple[Bind, ...]
    ) -> ContainerProcess:
        identity = f"{self.pod.uid}-{container.name}-{attempt}"
        cgroup = f"{self.cgroup}/{container.name}-{attempt}"
        bundle = self.paths.bundle(identity)
        log = self._open_log(container, attempt)
        try:
            root = make_root(bundle, image.root)
            spec = container_spec(
                self.pod,
                container,
                process,
                binds,
                root=root,
                pod_cgroup=self.cgroup,
                cgroup=cgroup,
                pause_pid=self.sandbox.pause_pid,
            )
            write_bundle(bundle, spec)
            pid = self.runtime.create(identity, bundle, log)
        except (RuntimeFailed, OSError) as error:
            self._undo(identity, cgroup, bundle)
            raise LaunchFailed("RunContainerError", str(error), was_created=True) from error
        finally:
            os.close(log)
        started = ContainerProcess(identity, pid, cgroup, self.runtime, is_root_overlay=True, bundle=bundle)
        try:
            if container.resources.memory_limit_bytes and not cgroups.is_unified():
                cgroups.on_out_of_memory(cgroup, started.kill_group)
            self.runtime.start(identity)
        except (RuntimeFailed, OSError) as error:
            started.stop(0)
            raise LaunchFailed("RunContainerError", str(error), was_created=True) from error
        return started

    def _undo(self, identity: str, cgroup: str, bundle: Path) -> None:
        try:
            self.runtime.delete(identity)
            cgroups.kill_all(cgroup)
            cgroups.remove(cgroup)
            discard_bundle(bundle, is_root_overlay=True)
        except (RuntimeFailed, OSError):
            return  # what stays is told as a leak when the pod ends

    def _open_log(self, container: Container, attempt: int) -> int:
        log = self.paths.log(self.pod.uid, container.name, attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _binds(self, container: Container, variables: dict[str, str]) -> tuple[Bind, ...]:
        return tuple(
            self._volume_bind(container, index, mount, variables)
            for index, mount in enumerate(container.mounts)
        )

    def _volume_bind(
        self, container: Container, index: int, mount: VolumeMount, variables: dict[str, str]
    ) -> Bind:
        volume = self.volumes[mount.volume]
        sub_path = mount.sub_path or _expanded(mount.sub_path_expr, variables)
        source = volume.path
        if sub_path:
            target = self.paths.sub_path(self.pod.uid, mount.volume, container.name, index)
            source = bounded(self.stat_s, "subPath", lambda: prepare_sub_path(volume.path, sub_path, target))
        return Bind(
            source=source,
            destination=mount.mount_path,
            read_only=mount.read_only or volume.read_only,
            propagation=mount.propagation,
        )

    def _termination_bind(self, container: Container, attempt: int) -> Bind:
        log = self.termination_log(container, attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        log.chmod(0o666)
        return Bind(source=log, destination=container.termination_path, read_only=False)


def _expanded(expression: str, variables: dict[str, str]) -> str:
    """Expand a subPathExpr: unlike a command's, an unknown name in it is an error."""
    found = expand(expression, variables)
    if "$(" in found:
        raise MissingObject(f"subPathExpr {expression!r} names a variable that is not set")
    if found.startswith("/") or ".." in found.split("/"):
        raise MissingObject(f"subPathExpr {expression!r} becomes {found!r}, which leaves the volume")
    return found


def _account(container: Container, image: Image) -> Account:
    security = container.security
    try:
        account = image.account(security.run_as_user, security.run_as_group)
    except (KeyError, ValueError, StopIteration) as error:
        raise MissingObject(
            f"the image's user {image.user!r} is not in its passwd and group files"
        ) from error
    if security.run_as_non_root:
        if security.run_as_user is None and image.user and not image.user.partition(":")[0].isdecimal():
            raise MissingObject(
                "container has runAsNonRoot and image has non-numeric user, cannot verify it is non-root"
            )
        if account.uid == 0:
            raise MissingObject("container has runAsNonRoot and image will run as root")
    return account


def _checked(bind: Bind, limit_s: float) -> Bind:
    """Check a source as containerd does before any runtime is called. Raises OSError.

    Source: https://github.com/containerd/containerd/blob/main/internal/cri/opts/spec_linux_opts.go
    """
    source = bounded(limit_s, f"stat {bind.source}", lambda: _resolved(bind.source))
    if bind.propagation is not Propagation.NONE:
        tags = _covering(source).tags
        is_shared = any(tag.startswith("shared:") for tag in tags)
        is_slave = any(tag.startswith("master:") for tag in tags)
        if not is_shared and (bind.propagation is Propagation.BIDIRECTIONAL or not is_slave):
            wanted = "shared" if bind.propagation is Propagation.BIDIRECTIONAL else "shared or slave"
            raise OSError(
                f"path {str(bind.source)!r} is mounted on {str(source)!r} but it is not a {wanted} mount"
            )
    return Bind(
        source=source, destination=bind.destination, read_only=bind.read_only, propagation=bind.propagation
    )


def _resolved(source: Path) -> Path:
    try:
        source.stat()
    except FileNotFoundError:
        source.mkdir(mode=0o755, parents=True)
    return Path(os.path.realpath(source, strict=True))


def _covering(path: Path) -> Mount:
    """Return the mount that holds a path, by the table alone."""
    table = mounts.mount_table()
    best = max(
        (mount for mount in table if path.is_relative_to(mount.mount_point)),
        key=lambda mount: (len(Path(mount.mount_point).parts), table.index(mount)),
    )
    return best


def _oom_score_adj(pod: Pod, container: Container) -> int | None:
    """Return kubelet's score for the container's quality of service, None where we may not lower ours so far."""
    limits = [(c.resources.memory_limit_bytes, c.resources.cpu_limit_milli) for c in pod.containers]
    requests = [(c.resources.memory_request_bytes, c.resources.cpu_request_milli) for c in pod.containers]
    if not any(any(pair) for pair in (*limits, *requests)):
        score = 1000
    elif all(all(pair) for pair in limits) and limits == requests:
        score = -997
    else:
        with open("/proc/meminfo") as meminfo:
            capacity = int(meminfo.readline().split()[1]) * 1024
        score = min(max(1000 - 1000 * (container.resources.memory_request_bytes or 0) // capacity, 3), 999)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    return score if score >= own else None
