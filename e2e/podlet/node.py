"""The node: namespaces of its own, an init, and podlet's kubelet in them.

Started by the client as `python -m e2e.podlet.node FD` beneath unshare(1). When it ends, for whatever
reason, every process and every mount of the node ends with it.
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from e2e.podlet import cgroups, mounts
from e2e.podlet.command import Completed, run_command
from e2e.podlet.errors import NodeFailure, PodletError, PodRefused
from e2e.podlet.image import load_image
from e2e.podlet.init import Exits, become_init
from e2e.podlet.objects import Objects, parse_objects
from e2e.podlet.parse_pod import parse_pod
from e2e.podlet.parse_volume import ROOT_CA
from e2e.podlet.paths import NodePaths
from e2e.podlet.runtime import Crun
from e2e.podlet.sandbox import raise_loopback
from e2e.podlet.wire import Message, Wire
from e2e.podlet.worker import NodeContext, PodWorker

_HOSTNAME = "podlet"
_PROGRAMS = {"crun": "crun", "busybox": "busybox-static", "mount": "mount", "nsenter": "util-linux"}


class Node:
    """Answers the client's requests, each in a thread of its own. One pod at a time."""

    def __init__(self, wire: Wire, exits: Exits) -> None:
        self._wire = wire
        self._exits = exits
        self._context: NodeContext | None = None
        self._worker: PodWorker | None = None
        self._requests: dict[str, Callable[[Message], object]] = {
            "configure": self._configure,
            "run": self._run,
            "status": self._status,
            "exec": self._exec,
            "logs": self._logs,
            "kill": self._kill,
            "image": self._change_image,
            "pid": self._pid,
            "delete": self._delete,
            "mounts": lambda _: mounts.mount_table_text(),
            "leaks": lambda _: list(self._pod.leaks()),
            "command": self._command,
        }

    def serve(self) -> None:
        """Serve until the client is gone."""
        for message in self._wire.messages():
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()

    def abandon(self) -> None:
        """Kill every container and remove the cgroups: the client is gone and nobody else will."""
        if self._context is not None:
            top = cgroups.top_name(self._context.node_id)
            with contextlib.suppress(OSError):  # what hangs now dies with the node
                cgroups.kill_all(top)
                cgroups.remove(top)

    def _answer(self, message: Message) -> None:
        answer: Message = {"id": message["id"]}
        try:
            answer["result"] = self._requests[str(message["op"])](message)
        except PodletError as error:
            answer["error"] = [type(error).__name__, str(error)]
        except Exception as error:  # every request is answered, or the client would wait for it
            answer["error"] = [
                NodeFailure.__name__,
                str(error) if isinstance(error, OSError) else repr(error),
            ]
        try:
            self._wire.send(answer)
        except OSError:
            return  # the client is gone, and the node goes with it

    def _tell(self, text: str) -> None:
        try:
            self._wire.send({"told": text, "at": time.time()})
        except OSError:
            return

    @property
    def _pod(self) -> PodWorker:
        if self._worker is None:
            raise PodletError("no pod has been run on this node yet")
        return self._worker

    def _configure(self, message: Message) -> object:
        paths = NodePaths(Path(_text(message, "root")))
        manifests = parse_objects(_list(message, "objects"))
        directories = {
            (kind, name): Path(directory)
            for kind, key in (("Secret", "secrets"), ("ConfigMap", "configMaps"))
            for name, directory in _map(message, key).items()
        }
        self._context = NodeContext(
            node_id=_text(message, "nodeId"),
            paths=paths,
            images={name: load_image(Path(directory)) for name, directory in _map(message, "images").items()},
            objects=Objects(directories, manifests, {k: Path(v) for k, v in _map(message, "claims").items()}),
            runtime=Crun(paths.crun, self._exits),
            scale=float(str(message["scale"])),
            tell=self._tell,
        )
        return None

    def _run(self, message: Message) -> object:
        assert self._context is not None
        if self._worker is not None and not self._worker.state.is_gone:
            raise PodRefused(f"pod {self._worker.pod.name} still runs on this node: delete it first")
        pod = parse_pod(message["manifest"])
        for container in pod.containers:
            if container.image not in self._context.images:
                known = ", ".join(sorted(self._context.images)) or "none"
                raise PodRefused(
                    f"container {container.name}: no image is named {container.image!r}; given: {known}"
                )
        objects = self._context.objects
        authority = ("ConfigMap", pod.namespace, ROOT_CA)
        if objects.find(*authority) is None:
            # Every namespace of a cluster has it.
            manifests = {**objects.manifests, authority: {"ca.crt": b"podlet has no certificate authority\n"}}
            objects = Objects(objects.directories, manifests, objects.claims)
        self._worker = PodWorker(self._context, pod, objects)
        return self._worker.state.render()

    def _status(self, message: Message) -> object:
        """Answer at once or, given the version last seen, when there is another or after a while."""
        state = self._pod.state
        if message.get("seen") is not None:
            state.wait_for_change(int(_number(message, "seen")), time.time() + _number(message, "timeout"))
        return state.render()

    def _exec(self, message: Message) -> object:
        process = self._pod.state.process(_text(message, "container"))
        argv = tuple(map(str, _list(message, "argv")))
        stdin = _text(message, "stdin").encode(errors="surrogateescape")
        return _completed(process.execute(argv, _number(message, "timeout"), stdin))

    def _logs(self, message: Message) -> object:
        assert self._context is not None
        record = self._pod.state.record(_text(message, "container"))
        attempt = record.attempts - 1 - _number(message, "back")
        log = self._context.paths.log(self._pod.pod.uid, record.container.name, int(attempt))
        return log.read_bytes().decode(errors="surrogateescape") if log.exists() else ""

    def _kill(self, message: Message) -> object:
        self._pod.state.process(_text(message, "container")).signal(int(_number(message, "signal")))
        return None

    def _change_image(self, message: Message) -> object:
        image = _text(message, "image")
        if self._context is None or image not in self._context.images:
            raise PodRefused(f"no image is named {image!r}")
        self._pod.change_image(_text(message, "container"), image)
        return None

    def _pid(self, message: Message) -> object:
        return self._pod.state.process(_text(message, "container")).pid

    def _delete(self, message: Message) -> object:
        grace = message.get("grace")
        self._pod.state.request_deletion(None if grace is None else int(_number(message, "grace")))
        return None

    def _command(self, message: Message) -> object:
        return _completed(
            run_command([str(word) for word in _list(message, "argv")], _number(message, "timeout"))
        )


def prepare_node() -> None:
    """Make this mount namespace a node's: everything shared, a cgroup view that crun accepts, lo up."""
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            raise NodeFailure(f"{program} is missing: apt-get install {package}")
    mounts.share_everything()
    cgroups.hide_unified_tree()
    socket.sethostname(_HOSTNAME)
    raise_loopback()


def main() -> None:
    """Serve the client at the other end of the inherited socket."""
    if os.getpid() != 1:
        raise SystemExit("e2e.podlet.node is started by podlet, as the first process of a namespace")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's to handle
    os.umask(0o022)
    exits = Exits(become_init())
    with socket.socket(fileno=int(sys.argv[1])) as end:
        wire = Wire(end)
        try:
            prepare_node()
        except (PodletError, OSError) as error:
            wire.send({"id": 0, "error": [NodeFailure.__name__, f"this machine cannot be a node: {error}"]})
            return
        wire.send({"id": 0, "result": None})
        node = Node(wire, exits)
        node.serve()
        node.abandon()
    os._exit(0)  # threads that wait on a hung mount must not keep the node alive


def _completed(done: Completed) -> Message:
    return {"exitCode": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}


def _text(message: Message, key: str) -> str:
    value = message[key]
    assert isinstance(value, str)
    return value


def _number(message: Message, key: str) -> float:
    value = message[key]
    assert isinstance(value, int | float)
    return value


def _list(message: Message, key: str) -> list[object]:
    value = message[key]
    assert isinstance(value, list)
    return value


def _map(message: Message, key: str) -> dict[str, str]:
    value = message[key]
    assert isinstance(value, dict)
    return {str(k): str(v) for k, v in value.items()}


if __name__ == "__main__":
    main()
