"""podlet's Python API: a node in namespaces of its own, and the one pod that runs on it."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import e2e
from e2e.podlet import cgroups, errors
from e2e.podlet.command import Completed
from e2e.podlet.errors import NodeFailure, NotInTime, PodLeaked, PodletError, PodStuck
from e2e.podlet.running import PodStatus, parse_status, render_table, seconds_left
from e2e.podlet.wire import Message, Wire
from sidemount.model.mountinfo import Mount, mounts_beneath, parse_mountinfo

_ANSWER_S = 30.0
_LONG_POLL_S = 5.0
_ENDING_S = 60.0  # beyond the grace: SIGKILL, sidecars after apps, teardown
_UNSHARE = (
    "unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc",
    "--propagation", "private",
)  # fmt: skip


@dataclass(slots=True)
class _Pending:
    """A request on its way."""

    answered: threading.Event
    answer: Message | None = None


class Podlet:
    """A node. A context manager: on the way out everything of it is killed, unmounted and removed.

    `images` maps image names to directories. `time_scale` below 1 shortens restart back-off, retries and
    probe periods, nothing else: for tests. `on_event` is called with each line of progress.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        images: Mapping[str, Path],
        secrets: Mapping[str, Path] | None = None,
        config_maps: Mapping[str, Path] | None = None,
        claims: Mapping[str, Path] | None = None,
        objects: Iterable[object] = (),
        time_scale: float = 1.0,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self._given_root = root
        self._configuration: Message = {
            "images": _paths(images),
            "secrets": _paths(secrets or {}),
            "configMaps": _paths(config_maps or {}),
            "claims": _paths(claims or {}),
            "objects": list(objects),
            "scale": time_scale,
        }
        self._on_event = on_event
        self.node_id = _random_id()
        self._pending: dict[int, _Pending] = {}
        self._lock = threading.Lock()
        self._next_id = 0
        self.events: list[str] = []

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NodeFailure("podlet needs root: it makes namespaces, mounts and cgroups")
        self.root = (self._given_root or Path(tempfile.mkdtemp(prefix="podlet-"))).resolve()
        if set(str(self.root)) & {":", ",", "\\"}:
            raise NodeFailure(
                f"root {self.root} must hold no colon, comma or backslash: overlay could not name it"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        ready = self._expect(0)
        with theirs:
            self._node = subprocess.Popen(
                [*_UNSHARE, sys.executable, "-S", "-m", "e2e.podlet.node", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([_source_root(), os.environ.get("PYTHONPATH", "")]),
                },
                process_group=0,  # Ctrl-C at a terminal reaches the client alone
            )
        self._wire = Wire(ours)
        self._reader = threading.Thread(target=self._read, name="podlet-reader", daemon=True)
        self._reader.start()
        try:
            self._await(0, ready, _ANSWER_S)
            self.request(
                "configure", _ANSWER_S, root=str(self.root), nodeId=self.node_id, **self._configuration
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def process_id(self) -> int:
        """Return the process whose one child is the node's first process."""
        return self._node.pid

    def close(self) -> None:
        """Kill the node and remove what it had: its cgroups and, unless it was given, its root."""
        self._wire.close()
        self._node.kill()
        self._node.wait(_ANSWER_S)
        self._reader.join(_ANSWER_S)
        cgroups.kill_all(cgroups.top_name(self.node_id))
        cgroups.remove(cgroups.top_name(self.node_id))
        if self._given_root is None:
            shutil.rmtree(self.root)

    def run(self, manifest: object) -> "RunningPod":
        """Start a pod. Raises PodRefused when an API server or a kubelet would not take it."""
        status = self.request("run", manifest=manifest)
        assert isinstance(status, dict)
        return RunningPod(self, parse_status(status))

    def on_node(self, argv: Sequence[str], timeout_s: float = 10.0) -> Completed:
        """Run a command in the node's namespaces, as an administrator would on the host."""
        return _completed(self.request("command", timeout_s + _ANSWER_S, argv=list(argv), timeout=timeout_s))

    def mounts(self) -> tuple[Mount, ...]:
        """Return the node's whole mount table."""
        return parse_mountinfo(str(self.request("mounts")))

    def request(self, op: str, wait_s: float = _ANSWER_S, /, **fields: object) -> object:
        """Ask the node. Raises what it raised, NodeFailure when it is gone or silent."""
        with self._lock:
            self._next_id += 1
            number = self._next_id
        pending = self._expect(number)
        try:
            self._wire.send({"id": number, "op": op, **fields})
        except OSError as error:
            raise NodeFailure(f"the node is gone: {error}") from error
        return self._await(number, pending, wait_s)

    def _expect(self, number: int) -> _Pending:
        pending = _Pending(threading.Event())
        with self._lock:
            self._pending[number] = pending
        return pending

    def _await(self, number: int, pending: _Pending, timeout_s: float) -> object:
        in_time = pending.answered.wait(timeout_s)
        with self._lock:
            self._pending.pop(number, None)
        if not in_time:
            raise NodeFailure(f"the node does not answer within {timeout_s:g} s")
        if pending.answer is None:
            raise NodeFailure("the node has ended")
        if (error := pending.answer.get("error")) is not None:
            assert isinstance(error, list)
            raise getattr(errors, error[0], PodletError)(error[1])
        return pending.answer.get("result")

    def _read(self) -> None:
        try:
            for message in self._wire.messages():
                if "told" in message:
                    self.events.append(str(message["told"]))
                    if self._on_event is not None:
                        self._on_event(str(message["told"]))
                    continue
                with self._lock:
                    pending = self._pending.get(int(str(message["id"])))
                if pending is not None:
                    pending.answer = message
                    pending.answered.set()
        except (OSError, ValueError):
            pass  # the node was closed or died in the middle of a line
        with self._lock:
            for pending in self._pending.values():
                pending.answered.set()


class RunningPod:
    """The pod on its node, until deleted."""

    def __init__(self, node: Podlet, status: PodStatus) -> None:
        self.node = node
        self.name = status.name
        self.uid = str(status.raw["uid"])

    @property
    def directory(self) -> Path:
        """Return kubelet's directory of the pod; what is mounted below it is seen on the node only."""
        return self.node.root / "pods" / self.uid

    def status(self) -> PodStatus:
        """Return the status now."""
        raw = self.node.request("status")
        assert isinstance(raw, dict)
        return parse_status(raw)

    def wait_for(self, condition: Callable[[PodStatus], bool], deadline_s: float, what: str) -> PodStatus:
        """Return the first status that meets the condition. Raises NotInTime with the last one."""
        deadline = time.monotonic() + deadline_s
        status = self.status()
        while not condition(status):
            if status.broken:
                raise NodeFailure(status.broken)
            left = seconds_left(deadline)
            if not left:
                raise NotInTime(f"pod {self.name} is not {what} after {deadline_s:g} s\n{_told(status)}")
            raw = self.node.request("status", seen=status.version, timeout=min(left, _LONG_POLL_S))
            assert isinstance(raw, dict)
            status = parse_status(raw)
        return status

    def wait_ready(self, deadline_s: float = 60.0) -> PodStatus:
        """Wait until every container is ready. Raises NotInTime, also when the pod ends instead."""
        status = self.wait_for(lambda s: s.ready or s.phase in ("Succeeded", "Failed"), deadline_s, "ready")
        if not status.ready:
            raise NotInTime(f"pod {self.name} ended instead of becoming ready\n{_told(status)}")
        return status

    def wait_done(self, deadline_s: float = 60.0) -> PodStatus:
        """Wait until the pod has succeeded or failed."""
        return self.wait_for(lambda s: s.phase in ("Succeeded", "Failed"), deadline_s, "done")

    def exec(
        self, container: str, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30.0
    ) -> Completed:
        """Run a command in a container, as `kubectl exec` does."""
        wait = timeout_s + _ANSWER_S
        answer = self.node.request(
            "exec", wait, container=container, argv=list(argv), stdin=stdin, timeout=timeout_s
        )
        return _completed(answer)

    def logs(self, container: str, *, previous: bool = False) -> str:
        """Return a container's output; it stays readable after the pod is gone."""
        return str(self.node.request("logs", container=container, back=int(previous)))

    def kill(self, container: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to the container's first process, from outside."""
        self.node.request("kill", container=container, signal=int(number))

    def change_image(self, container: str, image: str) -> None:
        """Give a container another image, the one thing that may be changed of a pod that runs: it is ended and started anew."""
        self.node.request("image", container=container, image=image)

    def pid(self, container: str) -> int:
        """Return the container's first process as this process sees it. Raises NodeFailure."""
        inner = self.node.request("pid", container=container)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and _is_process(entry, str(inner), self.uid):
                return int(entry.name)
        raise NodeFailure(f"process {inner} of the node is not to be seen in /proc")

    def mounts(self) -> tuple[Mount, ...]:
        """Return what is mounted on the node beneath the pod's directory."""
        return mounts_beneath(self.node.mounts(), str(self.directory))

    def leaks(self) -> tuple[str, ...]:
        """Return what is there that must not be there once the pod is gone."""
        found = self.node.request("leaks")
        assert isinstance(found, list)
        return tuple(map(str, found))

    def delete(self, grace_s: int | None = None, *, deadline_s: float | None = None) -> None:
        """Delete the pod and wait until nothing is left of it.

        Raises PodStuck when it stays Terminating, PodLeaked when it left something behind. May be called
        again: the node goes on trying, so a pod ends once what was in its way is gone.
        """
        self.node.request("delete", grace=grace_s)
        limit_s = self.status().grace_s + _ENDING_S if deadline_s is None else deadline_s
        try:
            self.wait_for(lambda status: status.is_gone, limit_s, "gone")
        except NotInTime as error:
            faults = "; ".join(self.status().faults) or "its containers have not ended"
            raise PodStuck(f"pod {self.name} stuck Terminating: {faults}") from error
        if found := self.leaks():
            raise PodLeaked(f"pod {self.name} left behind: " + "; ".join(found))


def _told(status: PodStatus) -> str:
    reasons = [f"{c.name}: {c.message}" for c in status.containers.values() if c.message]
    return "\n".join([render_table(status), *reasons])


def _is_process(entry: Path, inner: str, uid: str) -> bool:
    """Tell by pid in the node's namespace (the second of NSpid) and by the pod's cgroup."""
    try:
        if f"/pod{uid}/" not in (entry / "cgroup").read_text():
            return False
        line = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("NSpid:"))
    except (OSError, StopIteration):
        return False
    levels = line.split()[1:]
    return len(levels) > 1 and levels[1] == inner


def _completed(answer: object) -> Completed:
    assert isinstance(answer, dict)
    return Completed(exit_code=answer["exitCode"], stdout=answer["stdout"], stderr=answer["stderr"])


def _paths(mapping: Mapping[str, Path]) -> dict[str, str]:
    return {name: str(Path(path).resolve()) for name, path in mapping.items()}


def _source_root() -> str:
    return str(Path(str(e2e.__file__)).resolve().parent.parent)


def _random_id() -> str:
    return secrets.token_hex(4)
