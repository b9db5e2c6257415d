"""A running plugin on a node of the test's own, and a client that speaks to its socket as any other caller would."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from csi.cgroups import find_control_groups
from csi.daemon_places import INSTANCE_FILE
from csi.proto import csi_pb2
from tests.host.mount_node import MountNode, eventually

CLASSES = """
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: directory}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
  uid: 0
  capabilities: [CHOWN, DAC_OVERRIDE, FOWNER]
  abilities: {descriptor: true, takeover: true, readOnly: enforced}
  options:
    attributeTimeout: {type: duration, max: 1h, default: 0s}
  resources: {limits: {memory: 256Mi}}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: sidecars-only}
spec:
  deliveries: [sidecar]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: team}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {matchLabels: {team: ml}}
  filesystem: directory
"""
MULTI_WRITER = csi_pb2.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER
SINGLE_WRITER = csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER


class Refused(Exception):
    """A call that was answered with an error."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


@dataclass
class Plugin:
    """One plugin: its process, its places, its client."""

    node: MountNode
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        for name in ("socket", "targets", "facts", "store"):
            (self.node.work / name).mkdir(exist_ok=True)
        (self.node.work / "facts" / "classes.yaml").write_text(CLASSES)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.node.work / "socket" / "csi.sock"

    @property
    def state(self) -> Path:
        """Its state directory, as the plugin names it."""
        return self.node.work / "state"

    @property
    def seen_state(self) -> Path:
        """Its state directory, for this process."""
        return Path(f"/proc/{self.node.pid}/root{self.state}")

    @property
    def log(self) -> Path:
        """Its output, and its keeper's."""
        return self.node.work / "plugin.log"

    def start(self, entry: str = "csi") -> "Plugin":
        """Start it, and wait until it is ready."""
        self.process = self.node.start(
            [
                *(*self.within, sys.executable, "-m", entry, "node"),
                *("--endpoint", f"unix://{self.socket}", "--node-id", "n1", "--launcher", "process"),
                *("--state-dir", str(self.state), "--target-root", str(self.node.work / "targets")),
                *("--facts", str(self.node.work / "facts"), *self.flags),
            ],
            log=self.log,
            environment={"PYTHONFAULTHANDLER": "1", **self.environment},
        )
        eventually(self._is_ready, what=f"ready\n{self.log.read_text()}", timeout_s=30)
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.call("Identity", "Probe", csi_pb2.ProbeRequest(), timeout_s=2).ready.value)
        except Refused as refused:
            if refused.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return False
            raise

    def keeper(self) -> int:
        """Return its keeper's process, and none of those that it has forked to look at something."""
        alike = {
            pid: _parent(pid)
            for pid in _pids()
            if {b"keeper", os.fsencode(self.state)} <= set(_arguments(pid))
        }
        (pid,) = (pid for pid, parent in alike.items() if parent is not None and parent not in alike)
        return pid

    def kill(self) -> None:
        """SIGKILL it."""
        self.process.kill()
        self.process.wait(5)

    def stop(self) -> int:
        """SIGTERM it, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # faulthandler's: it says where every thread is
            self.process.wait(5)
            raise AssertionError(f"it does not end\n{self.log.read_text()[-20000:]}") from None

    # Calls -------------------------------------------------------------------------------------------

    def call(self, service: str, method: str, request: Any, *, timeout_s: float = 60.0) -> Any:
        """Call an RPC over a connection of its own. Raises Refused."""
        answer_type = getattr(csi_pb2, f"{method}Response")
        raw = self.call_raw(service, method, request.SerializeToString(), timeout_s=timeout_s)
        return answer_type.FromString(raw)

    def call_raw(self, service: str, method: str, request: bytes, *, timeout_s: float = 60.0) -> bytes:
        """Call an RPC with bytes. Raises Refused."""
        with grpc.insecure_channel(
            f"unix:{self.socket}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            call = channel.unary_unary(f"/csi.v1.{service}/{method}")
            try:
                return bytes(call(request, timeout=timeout_s))
            except grpc.RpcError as error:
                raise Refused(error.code(), error.details() or "") from None

    def target(self, name: str) -> Path:
        """Return a target."""
        return self.node.work / "targets" / name

    def store(self, name: str = "vol") -> Path:
        """Return a volume's directory in the store, made."""
        path = self.node.work / "store" / name
        path.mkdir(exist_ok=True)
        return path

    def publish_request(
        self,
        target: str = "t",
        volume: str = "vol",
        *,
        mode: Any = MULTI_WRITER,
        readonly: Any = False,
        **context: str,
    ) -> csi_pb2.NodePublishVolumeRequest:
        """Return a request to show a volume of the store."""
        given = {"class": "directory", "source": f"dir://{self.store(volume)}", **context}
        return csi_pb2.NodePublishVolumeRequest(
            volume_id=volume,
            target_path=str(self.target(target)),
            volume_capability=csi_pb2.VolumeCapability(
                mount=csi_pb2.VolumeCapability.MountVolume(),
                access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),
            ),
            readonly=readonly,
            volume_context=given,
        )

    def publish(self, target: str = "t", volume: str = "vol", **given: Any) -> None:
        """Publish."""
        self.call("Node", "NodePublishVolume", self.publish_request(target, volume, **given))

    def unpublish(self, target: str = "t", volume: str = "vol") -> None:
        """Unpublish."""
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(self.target(target)))
        self.call("Node", "NodeUnpublishVolume", request)

    def stats(self, target: str = "t", volume: str = "vol") -> csi_pb2.NodeGetVolumeStatsResponse:
        """Ask for statistics."""
        request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=str(self.target(target)))
        answer: csi_pb2.NodeGetVolumeStatsResponse = self.call("Node", "NodeGetVolumeStats", request)
        return answer

    # Looking -----------------------------------------------------------------------------------------

    def seen(self, target: str = "t") -> Path:
        """Return where a target is for this process. Never for what may hang."""
        return Path(f"/proc/{self.node.pid}/root{self.target(target)}")

    def daemons(self) -> list[int]:
        """Return every process of every daemon, whoever's child it is."""
        marker = f"{self.state}/run/".encode()
        return [pid for pid in _pids() if any(part.startswith(marker) for part in _arguments(pid))]

    def first_daemon(self) -> int:
        """Return the first process of the only daemon."""
        (path,) = (self.seen_state / "daemons").glob("*.pid")
        return int(path.read_text())

    def mount_ids(self) -> list[int]:
        """Return the ids of the node's FUSE mounts."""
        return [mount.mount_id for mount in self.node.fuse_mounts()]

    def leftovers(self) -> list[str]:
        """Return what is left of volumes: mounts, processes, state, directories."""
        found = [f"mount {mount.mount_point}" for mount in self.node.fuse_mounts()]
        found += [f"process {pid}" for pid in self.daemons()]
        for directory in ("run", "targets", "daemons", "logs"):
            found += [str(path) for path in self._places(directory)]
        return found + [str(path) for path in (self.node.work / "targets").iterdir()]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of that name in the log. Its last line may be being written."""
        text = self.log.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in told if event["event"] == name]

    def end(self) -> None:
        """Kill everything of this plugin, for a test that is over; its log is shown if that has failed."""
        print(self.log.read_text() if self.log.exists() else "never started")
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(5)
        instance = self.seen_state / INSTANCE_FILE
        groups = find_control_groups(instance.read_text()) if instance.exists() else None
        names = [path.name for path in self._places("run")]
        eventually(self._kill_daemons, what="the daemons end")
        if groups is not None:
            for name in names:
                groups.remove(name)
            groups.close()

    def _kill_daemons(self) -> bool:
        left = self.daemons()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def _places(self, name: str) -> list[Path]:
        place = self.seen_state / name
        return list(place.iterdir()) if place.exists() else []


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int | None:
    """Return the id of a process's parent, None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
