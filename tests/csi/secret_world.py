"""A node with a plugin of either launcher and credentials that lie on it, and whoever looks for them where they must not be."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.csi.fake_kubelet import FakeKubelet
from tests.csi.plugin import CLASSES, Plugin
from tests.csi.pod_api import PodApi
from tests.host.mount_node import MountNode, eventually

PROCESS, POD = "process", "pod"
SECRETIVE = """
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: secretive}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
  uid: 65532
  abilities: {descriptor: true, takeover: true, readOnly: enforced}
  credentials: {secretKeys: [token], required: true}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: optional}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
  uid: 65532
  credentials: {secretKeys: [token]}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: talkative}
spec:
  deliveries: [csi]
  sources: ["talk://**"]
  namespaces: {}
  image: registry.example/talkative:1
  uid: 65532
  command: [python3, "-c", "PROGRAM", "${secrets}", "${mountpoint}"]
  credentials: {secretKeys: [token], required: true}
  abilities: {descriptor: true}
"""
# Tells what it was given in every way that comes to mind, and then cannot go on.
TALKATIVE = (
    "import sys, json, urllib.parse as u; t = open(sys.argv[1] + '/token').read();"
    "print('bad credential', t, repr(t), json.dumps({'auth': t}), u.quote(t), u.quote_plus(t.strip()), flush=True);"
    "print('x' * 490, t, file=sys.stderr, flush=True); [print(w, flush=True) for w in t.split()]; sys.exit(7)"
)


@dataclass
class SecretWorld:
    """One node. `kubelet` and `api` are None for processes of the node."""

    plugin: Plugin
    directory: Path
    kubelet: FakeKubelet | None = None
    api: PodApi | None = None
    watched: list["Sweeper"] = field(default_factory=list)

    def given(self) -> list[Path]:
        """Return the credentials that daemons have, for this process."""
        if self.kubelet is None:
            return sorted(self.plugin.seen_state.glob("run/*/secrets/*"))
        root = Path(f"/proc/{self.plugin.node.pid}/root")
        return [
            path
            for run in list(self.kubelet.runs.values())
            for path in sorted(root.joinpath(str(run.comm)[1:], "secrets").glob("*"))
        ]

    def kept(self) -> list[Path]:
        """Return the copies that are for the next pod of a target."""
        return [] if self.kubelet is None else sorted(self.plugin.seen_state.glob("run/*/secrets/*"))

    def texts(self) -> list[str]:
        """Return what daemons have been given."""
        return [path.read_text() for path in self.given()]

    def daemon(self) -> int:
        """Return the first process of some daemon."""
        if self.kubelet is not None:
            return self.kubelet.daemon(next(iter(self.kubelet.runs)))
        return int(next(self.plugin.seen_state.glob("daemons/*.pid")).read_text())

    def nothing_is_left(self) -> None:
        """Check it."""
        kubelet = self.kubelet
        if kubelet is not None and self.api is not None:
            assert list(self.api.pods) == []
            eventually(lambda: kubelet.runs == {}, what="every volume of a pod is unmounted")
        eventually(lambda: self.plugin.leftovers() == [], what="nothing is left")


@contextlib.contextmanager
def secret_world(node: MountNode, launcher: str, *flags: str) -> Iterator[SecretWorld]:
    """Give a plugin that runs, with its state and the node's credentials in memory."""
    plugin = Plugin(node)
    classes = CLASSES + SECRETIVE.replace("PROGRAM", TALKATIVE)
    (node.work / "facts" / "classes.yaml").write_text(classes)
    directory = node.work / "credentials"
    for place in (plugin.state, directory):
        place.mkdir()
        node.run("mount", "-t", "tmpfs", "-o", "mode=711", place.name, place)
    world = SecretWorld(plugin, Path(f"/proc/{node.pid}/root{directory}"))
    plugin.flags = ("--secrets-dir", str(directory), *flags)
    if launcher == POD:
        world.api = PodApi()
        world.kubelet = FakeKubelet(node, world.api)
        plugin.flags += (
            *("--launcher", "pod", "--image", "registry.example/sidemount:1"),
            *("--kubeconfig", str(world.api.kubeconfig(node.work / "kubeconfig"))),
            *("--kubelet-dir", str(world.kubelet.directory)),
        )
    try:
        yield world
    finally:
        for sweeper in world.watched:
            sweeper.end()
        plugin.end()
        if world.kubelet is not None and world.api is not None:
            world.kubelet.end()
            world.api.end()


_YOUNG_S = 1.0


class Sweeper:
    """Looks all the time into arguments and environment of every process of the machine."""

    def __init__(self, needle: str) -> None:
        self._needle = needle.encode()
        self.found: set[str] = set()
        self.looks = 0
        self._born: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            self.look(but_old=True)

    def look(self, *, but_old: bool = False) -> None:
        """Look once; with `but_old` only at processes that may be becoming another program."""
        now = time.monotonic()
        living = [name for name in os.listdir("/proc") if name.isdigit()]
        known = self._born
        born = self._born = {pid: known.get(pid, now) for pid in living}
        for pid in living:
            if but_old and now - born[pid] > _YOUNG_S:
                continue
            for what in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    if self._needle in Path(f"/proc/{pid}/{what}").read_bytes():
                        self.found.add(f"{what} of {pid}")
        self.looks += 1


def files_with(needle: str, root: Path) -> list[Path]:
    """Return every file beneath a directory that holds it, in content, name or link."""
    return [
        path
        for place, folders, names in os.walk(root, followlinks=False)
        for path in (Path(place, name) for name in (*folders, *names))
        if needle in path.name or needle.encode() in _content(path)
    ]


def _content(path: Path) -> bytes:
    """Return what a file holds or a link says; nothing of what is neither, or has just gone."""
    with contextlib.suppress(OSError):
        if path.is_symlink():
            return os.fsencode(os.readlink(path))
        if path.is_file():
            return path.read_bytes()
    return b""
