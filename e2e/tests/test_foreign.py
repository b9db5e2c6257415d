"""The suite itself on a cluster that KUBECONFIG names: it installs from a registry of somebody's own and leaves nodes alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.bring_up import bring_up
from e2e.cluster.namespaces import entering_network
from e2e.cluster.node_images import BUSYBOX_IMAGE
from e2e.cluster.places import BUILD, SOURCE, ClusterPlaces, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, take_down
from e2e.cluster.service_images import load_services, service_reference
from e2e.tests import foreign

_REGISTRY = "registry.test/team"
_RUN_S, _TEST_S = 900.0, 1800


@pytest.fixture
def places() -> Iterator[ClusterPlaces]:
    """The places of the other cluster, which is not there before nor after."""
    places = places_of("e2e-foreign")
    take_down(places)
    yield places
    take_down(places)


def _run(cluster: RunningCluster, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the suite where the cluster's addresses lead to it, and nothing else is known of it but its kubeconfig."""
    ours = ("E2E_CLUSTER", "E2E_IMAGES", "PYTEST_CURRENT_TEST")
    kubectl = Path(cluster.description.kubectl).parent
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ours},
        "KUBECONFIG": str(cluster.places.kubeconfig),
        "PATH": f"{kubectl}:{os.environ['PATH']}",
        **settings,
    }
    argv = [sys.executable, "-m", "pytest", "-o", "faulthandler_timeout=0", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*entering_network(cluster.pid), *argv, *arguments],
        cwd=SOURCE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
    )


@pytest.mark.slow
@pytest.mark.timeout(_TEST_S, func_only=True)
def test_the_suite_runs_on_a_cluster_of_somebody_else_s(places: ClusterPlaces) -> None:
    """With images under other names. What it leaves out it says, a line each; and it installs over nobody's installation."""
    cluster = bring_up(places, Progress())
    load_services(cluster, BUILD, Progress())
    for reference in (service_reference(), BUSYBOX_IMAGE):
        cluster.ctr("images", "tag", reference, f"{_REGISTRY}/{reference.rpartition('/')[2]}")
        cluster.ctr("images", "rm", reference)
    chosen = ("e2e/tests/test_workloads.py", "e2e/tests/test_node.py", "-k", "readme or version or speaks")
    done = _run(cluster, *chosen, E2E_IMAGES=_REGISTRY)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "2 passed, 1 skipped" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SKIPPED"))
    assert "test_node.py" in line
    assert foreign.LEFT_OUT in line
    refused = _run(cluster, *chosen)
    assert refused.returncode == 2
    assert "E2E_IMAGES" in refused.stdout + refused.stderr
    cluster.kubectl().run("create", "namespace", "sidemount-system")
    kept = _run(cluster, *chosen, E2E_IMAGES=_REGISTRY)
    assert kept.returncode == 2
    assert foreign.INSTALLED in kept.stdout + kept.stderr
