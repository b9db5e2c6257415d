"""Kubernetes' own tests of external storage, with `manifests/csi/test-driver.yaml` as it is: one after another, half an hour."""

import re
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.places import BUILD
from e2e.cluster.progress import Progress
from e2e.cluster.storage_suite import load_storage_images, storage_suite
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import GONE_S, CsiPath
from e2e.tests.rendered import MANIFESTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2100, func_only=True)]

_LIMIT_S = 1800.0
_PASSED = re.compile(r"(\d+) Passed \| (\d+) Failed")
# Kubelet is stopped by ssh; populators come from a registry; how fast a thousand volumes are is no test without numbers.
_LEFT_OUT = "Disruptive|any volume data source|performance|stress"


@pytest.fixture(scope="module")
def suite(snapshots: CsiPath) -> Path:
    """The program; the cluster has its images."""
    load_storage_images(snapshots.cluster, BUILD, Progress())
    return storage_suite(BUILD, Progress())


@pytest.mark.parametrize(
    ("focus", "least"),
    [
        pytest.param("volumes should|volumeMode|fsgroupchangepolicy|read-write-once-pod", 10, id="volumes"),
        pytest.param("subPath", 15, id="sub-paths"),
        pytest.param("provisioning|volume-expand", 8, id="provisioning"),
        pytest.param("ephemeral", 10, id="ephemeral"),
        pytest.param("snapshottable", 3, id="snapshots"),
        pytest.param("multiVolume|volumeIO", 4, id="several"),
    ],
)
def test_kubernetes_own_storage_tests_pass(
    snapshots: CsiPath, suite: Path, tmp_path: Path, focus: str, least: int
) -> None:
    """S4-01…05, S4-36…44. The suite passes over by itself what the driver's description does not claim."""
    done = _run(suite, snapshots.api, focus, tmp_path)
    ended = _PASSED.search(done.stdout)
    assert ended is not None, done
    assert int(ended[2]) == 0, done.stdout
    assert int(ended[1]) >= least, done.stdout
    assert wait_for(snapshots.is_idle, GONE_S), snapshots.told()


def _run(suite: Path, api: Kubectl, focus: str, at: Path) -> "subprocess.CompletedProcess[str]":
    argv = [
        *(*api.prefix, str(suite), "-provider=skeleton", f"-kubectl-path={api.program}"),
        *(f"-kubeconfig={api.kubeconfig}", f"-storage.testdriver={MANIFESTS / 'csi/test-driver.yaml'}"),
        *("-ginkgo.no-color", f"-ginkgo.focus={focus}", f"-ginkgo.skip={_LEFT_OUT}"),
        f"-ginkgo.timeout={_LIMIT_S:g}s",
    ]
    return subprocess.run(
        argv,
        cwd=at,
        env=api.environment(),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S + 60,
        check=False,
    )
