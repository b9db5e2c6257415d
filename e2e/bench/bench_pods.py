"""What an injected pod costs beyond the same pod as it was: time until it lives and until it is gone, memory of our containers.

podlet stands for the kubelet, with its own periods unscaled: start-up probes come once a second.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonpatch

from e2e.bench.rows import Goal, Row, alternate
from e2e.demo.library import make_library
from e2e.demo.manifests import NAMESPACE, write_facts
from e2e.images import busybox_image, sidemount_image
from e2e.podlet.client import Podlet, RunningPod
from sidemount.commands.pods import review_of
from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.facts import Facts
from sidemount.model.names import KEEPER_CONTAINER, daemon_container
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings

ROUNDS = 5
VOLUME = "books"
KEEPER_MIB = 14.0
DAEMON_MIB = 40.0

_LIVE_S = 60.0
_IDLE_S = 1.0  # the last start-up probe and what it left in memory are over by then
_SETTLED = "trap 'exit 0' TERM; echo up >/dev/termination-log; sleep 1000 & wait $!"
_UNINJECTED = "the same pod without injection"


def rows() -> Iterator[Row]:
    """Measure pods with one volume of the class `directory`."""
    memory: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="sidemount-bench-") as scratch:
        directory = Path(scratch)
        library = directory / "library"
        make_library(library)
        write_facts(directory / "facts", library)
        facts = FactsDirectory(directory / "facts").facts()
        # A copy: files that pods elsewhere on this machine have mapped would count for less here.
        own = Path(shutil.copytree(sidemount_image(), directory / "image", symlinks=True))
        images = {InjectionSettings().sidecar_image: own, "busybox": busybox_image()}
        with Podlet(directory / "node", images=images) as node:
            figures = alternate(
                lambda: _life(node, _injected(_pod(library), facts), memory),
                lambda: _life(node, _pod(library), defaultdict(list)),
                rounds=ROUNDS,
            )
    for what, key in (("pod: from its creation until its application runs", "live_s"), ("pod: from its deletion until it is gone", "gone_s")):  # fmt: skip
        yield Row(
            what=what,
            ours=figures[key].ours,
            theirs=figures[key].theirs,
            unit="s",
            against=_UNINJECTED,
            note="in podlet, which probes every second as kubelet does",
        )
    for what, container, goal_mib in (
        ("keeper: PSS, one volume", KEEPER_CONTAINER, KEEPER_MIB),
        ("idle daemon: PSS of all its processes", daemon_container(VOLUME), DAEMON_MIB),
    ):
        yield Row(
            what=what,
            ours=statistics.median(memory[container]),
            unit="MiB",
            goal=Goal(at_most=goal_mib, of_ours=True),
            note="keeper and daemon of one pod share what they can, with nobody else",
        )


def _pod(library: Path) -> dict[str, Any]:
    app = {
        "name": "app",
        "image": "busybox",
        "command": ["sh", "-c", _SETTLED],
        "volumeMounts": [{"name": VOLUME, "mountPath": "/books"}],
    }
    metadata = {
        "name": "pod",
        "namespace": NAMESPACE,
        "annotations": {f"volume.sidemount.io/{VOLUME}": f"dir://{library}"},
    }
    spec = {"volumes": [{"name": VOLUME, "emptyDir": {}}], "containers": [app]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _injected(pod: dict[str, Any], facts: Facts) -> dict[str, Any]:
    outcome = mutate(review_of(pod, NAMESPACE), facts=facts, settings=InjectionSettings()).outcome
    assert outcome.patch, outcome
    patched: dict[str, Any] = jsonpatch.apply_patch(pod, json.loads(outcome.patch))
    return patched


def _life(node: Podlet, manifest: dict[str, Any], memory: dict[str, list[float]]) -> dict[str, float]:
    """Return how long a pod took to live and to go; its sidecars' memory meanwhile is added to `memory`, in MiB."""
    began = time.monotonic()
    running = node.run(manifest)
    running.wait_for(lambda status: status.containers["app"].state == "running", _LIVE_S, "live")
    lived = time.monotonic()
    running.wait_ready(_LIVE_S)
    ours = [container["name"] for container in manifest["spec"].get("initContainers", [])]
    if ours:
        time.sleep(_IDLE_S)
    for name in ours:
        memory[name].append(_pss_mib(running, name))
    deleted = time.monotonic()
    running.delete()
    return {"live_s": lived - began, "gone_s": time.monotonic() - deleted}


def _pss_mib(running: RunningPod, container: str) -> float:
    """Return the proportional set size of all processes of a container."""
    kib = 0
    for pid in _processes(running.pid(container)):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024


def _processes(first: int) -> list[int]:
    """Return the processes of the container whose first process is `first`: those in its process namespace."""
    namespace = Path(f"/proc/{first}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                if Path(f"/proc/{entry.name}/ns/pid").readlink() == namespace:
                    found.append(int(entry.name))
    return found
