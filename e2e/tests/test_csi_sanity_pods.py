"""The public suite csi-sanity on the cluster, on the node: against the DaemonSet, whose daemons are in mount pods, and the controller beside it.

The suite's targets are in a further target root, given to the DaemonSet as docs/csi.md shows: it is no kubelet, and its calls name no pod.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.go_tools import SANITY, go_programs
from e2e.cluster.kubectl import Json
from e2e.cluster.namespaces import entering
from e2e.cluster.places import BUILD
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_plugin import Plugin
from e2e.tests.csi_rest import nothing_left
from e2e.tests.csi_world import CSI, WITHIN_S, CsiPath
from e2e.tests.test_csi_sanity import CANARY, SECRETS, SPECS, ended

_ROOT = "/var/lib/sanity"
_NODE = "/var/lib/kubelet/plugins/csi.sidemount.io/csi.sock"
_CONTROLLER = "/var/lib/kubelet/pods/{}/volumes/kubernetes.io~empty-dir/socket/csi.sock"
_SUITE_S = 500.0
_PATCH = [
    {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": f"--target-root={_ROOT}"},
    {
        "op": "add",
        "path": "/spec/template/spec/containers/0/volumeMounts/-",
        "value": {"name": "further", "mountPath": _ROOT, "mountPropagation": "Bidirectional"},
    },
    {
        "op": "add",
        "path": "/spec/template/spec/volumes/-",
        "value": {"name": "further", "hostPath": {"path": _ROOT, "type": "DirectoryOrCreate"}},
    },
]


@pytest.fixture
def further_root(cluster: RunningCluster, csi: CsiPath) -> Iterator[str]:
    """A directory of the node that is a target root, too, as long as the test runs."""
    plugin = Plugin(csi, cluster)
    plugin.ready()
    where = ("daemonset/node", f"--namespace={CSI}")
    csi.api.run("patch", *where, "--type=json", "-p", json.dumps(_PATCH))
    try:
        csi.roll_out()
        plugin.ready()
        yield _ROOT
    finally:
        csi.api.run("rollout", "undo", *where)
        csi.roll_out()
        plugin.ready()


@pytest.fixture
def controller(csi: CsiPath) -> str:
    """Return where the controller listens, as the node sees it."""

    def uid() -> str:
        pods = csi.api.items("pods", CSI, "app.kubernetes.io/name=csi-controller")
        (found, *more) = [
            each["metadata"]["uid"] for each in pods if "deletionTimestamp" not in each["metadata"]
        ] or ("",)
        return "" if more else found

    found = wait_for(uid, WITHIN_S)
    assert found, csi.told()
    return _CONTROLLER.format(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "given", "seeds"),
    [
        pytest.param("", {}, (21, 22), id="plain"),
        pytest.param(
            "--csi.testvolumeparameters",
            {"subPath": "team/a", "enforceCapacity": "true"},
            (23,),
            id="sub-path",
        ),
        pytest.param(
            "--csi.secrets", {name: {"access-key": CANARY} for name in SECRETS}, (24,), id="secrets"
        ),
    ],
)
def test_the_public_suite_finds_nothing_where_daemons_are_in_pods(
    cluster: RunningCluster,
    csi: CsiPath,
    further_root: str,
    controller: str,
    tmp_path: Path,
    flag: str,
    given: Json,
    seeds: tuple[int, ...],
) -> None:
    """S0-04, S0-18, S0-20, S4-10…24: every spec of what is advertised, twice on one process; nothing is left of them."""
    program = go_programs(BUILD, Progress(), (SANITY,))["csi-sanity"]
    (file := tmp_path / "given.yaml").write_text(json.dumps(given))
    with nothing_left(csi):
        for seed in seeds:
            done = _run(
                cluster,
                program,
                *("--csi.endpoint", f"unix://{_NODE}", "--csi.controllerendpoint", f"unix://{controller}"),
                *("--csi.mountdir", f"{further_root}/mount", "--csi.stagingdir", f"{further_root}/staging"),
                *("--ginkgo.no-color", "--ginkgo.randomize-all", f"--ginkgo.seed={seed}"),
                *((flag, str(file)) if flag else ()),
            )
            counts = ended(done)
            assert counts is not None, done
            assert (int(counts[1]), int(counts[2])) == (SPECS, 0), done.stdout
    assert cluster.on_node("ls", further_root).split() == []
    assert CANARY not in csi.api.run("logs", f"--namespace={CSI}", "daemonset/node")
    assert CANARY not in csi.api.run(
        "logs", f"--namespace={CSI}", "deployment/controller", "--all-containers"
    )


def _run(cluster: RunningCluster, program: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    argv = [*entering(cluster.pid), "env", "--chdir=/", str(program), *arguments]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SUITE_S)
