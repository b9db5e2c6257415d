"""The cluster of the run, a namespace for each test, and proof after each that the node is what it was."""

import os
import re
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e.cluster.bring_up import bring_up
from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.places import BUILD, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, take_down
from e2e.cluster.service_images import load_services
from e2e.cluster.waiting import wait_for
from e2e.tests.node_state import look_at_node
from e2e.tests.pods import Namespace

_TEST_S = 600
_SETTLED_S, _ACCOUNT_S, _GONE_S = 90.0, 60.0, 120.0
_LOG_LINES = 15


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test here its marker and the time that a cluster takes; building one is not a test's."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(_TEST_S, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say with a failure where the logs are, and show those of components that ended meanwhile."""
    report = yield
    cluster = item.funcargs.get("cluster") if hasattr(item, "funcargs") else None
    if report.failed and isinstance(cluster, RunningCluster):
        report.sections.append((f"the cluster: logs are in {cluster.places.logs}", _told(cluster)))
    return report


def _told(cluster: RunningCluster) -> str:
    try:
        status = cluster.status()
    except ClusterFault as fault:
        return str(fault)
    culprits = [name for name, it in status.items() if it["pid"] is None or it["starts"] > 1]
    return "\n".join([str(status), *(cluster.log_tail(name, _LOG_LINES) for name in culprits)])


@pytest.fixture(scope="session")
def own_cluster() -> Iterator[RunningCluster | None]:
    """The cluster of `e2e.cluster`; None where KUBECONFIG names another."""
    if os.environ.get("KUBECONFIG"):
        yield None
        return
    named = os.environ.get("E2E_CLUSTER")
    if named:
        yield RunningCluster(places_of(named))
        return
    places, progress = places_of("e2e"), Progress()
    try:
        take_down(places)  # what an interrupted run has left
        running = bring_up(places, progress)
        load_services(running, BUILD, progress)
    except MachineLacks as fault:
        pytest.exit(f"e2e: {fault}", returncode=3)
    try:
        yield running
    finally:
        take_down(places)


@pytest.fixture
def cluster(own_cluster: RunningCluster | None) -> RunningCluster:
    """The cluster whose node and components the test looks at."""
    if own_cluster is None:
        pytest.skip("KUBECONFIG names a cluster whose node and components are not ours to touch")
    return own_cluster


@pytest.fixture
def api(own_cluster: RunningCluster | None) -> Kubectl:
    """The administrator's kubectl."""
    return Kubectl(Path(os.environ["KUBECONFIG"])) if own_cluster is None else own_cluster.kubectl()


@pytest.fixture
def unchanged_node(own_cluster: RunningCluster | None) -> Iterator[None]:
    """Compare the node with what it was, when the test's namespace is gone."""
    if own_cluster is None:
        yield
        return
    before = look_at_node(own_cluster)
    yield
    left: list[str] = []

    def is_settled() -> bool:
        left[:] = look_at_node(own_cluster).more_than(before)
        return not left

    assert wait_for(is_settled, _SETTLED_S), "left on the node:\n" + "\n".join(left)


@pytest.fixture
def namespace(api: Kubectl, unchanged_node: None, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    plain = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    with_labels = getattr(request, "param", {})
    yield from in_namespace(api, f"{plain}-{secrets.token_hex(3)}", with_labels)


def make_namespace(api: Kubectl, name: str, labels: dict[str, str]) -> Namespace:
    """Make a namespace that pods can be created in."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    # Pods are refused until the namespace has its account.
    assert wait_for(lambda: api.get("serviceaccount", "default", name) is not None, _ACCOUNT_S)
    return Namespace(api, name)


def in_namespace(api: Kubectl, name: str, labels: dict[str, str]) -> Iterator[Namespace]:
    """Make a namespace, and take it away with all that is in it."""
    try:
        yield make_namespace(api, name, labels)
    finally:
        api.delete("namespace", name)
        gone = wait_for(lambda: api.get("namespace", name) is None, _GONE_S)
        left = [] if gone else api.items("pods", name)
    assert gone, f"namespace {name} does not go: {[each['metadata']['name'] for each in left]}"
