"""The cluster of the run with Sidemount on it, a namespace for each test, and proof after each that the node is what it was."""

import os
import re
import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from e2e.cluster.bring_up import bring_up
from e2e.cluster.errors import MachineLacks
from e2e.cluster.kubectl import Kubectl, KubectlFailed
from e2e.cluster.places import BUILD, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, take_down
from e2e.cluster.service_images import load_services
from e2e.cluster.waiting import wait_for
from e2e.tests import evidence, foreign
from e2e.tests.csi_world import RESTRICTED, CsiPath, World
from e2e.tests.deployment import Installation
from e2e.tests.node_state import look_at_node
from e2e.tests.pods import Namespace
from e2e.tests.sources import Source, Sources
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL

_TEST_S = 600
_SETTLED_S, _ACCOUNT_S, _GONE_S = 120.0, 120.0, 240.0
_PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
OPEN = {**_PRIVILEGED, INJECTION_LABEL: INJECTION_ENABLED}
"""Labels of a namespace that is open to injection."""
_LAST = ("test_uninstall.py",)
# Namespaces of this run.
_OF_RUN, _RUN = "sidemount.test/run", secrets.token_hex(4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test here its marker and the time that a cluster takes; building one is not a test's."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(_TEST_S, func_only=True))
            if foreign.is_named() and foreign.needs_our_own(item):
                item.add_marker(pytest.mark.skip(reason=foreign.LEFT_OUT))
    # What takes the installation away comes when nobody needs it any more.
    items.sort(key=lambda item: item.path.name in _LAST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep with a failure what there is to be read, and name the files in its message."""
    report = yield
    if report.failed:
        kept = evidence.keep(item, report.when)
        if kept is not None:
            report.sections.append(kept)
    return report


@pytest.fixture(scope="session")
def own_cluster() -> Iterator[RunningCluster | None]:
    """The cluster of `e2e.cluster`; None where KUBECONFIG names another."""
    if foreign.is_named():
        fault = foreign.fault()
        if fault:
            pytest.exit(f"e2e: {fault}", returncode=2)
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
        pytest.skip(foreign.LEFT_OUT)
    return own_cluster


@pytest.fixture(scope="session")
def api(own_cluster: RunningCluster | None) -> Kubectl:
    """The administrator's kubectl."""
    return foreign.kubectl() if own_cluster is None else own_cluster.kubectl()


@pytest.fixture(scope="session")
def namespaces_go(api: Kubectl) -> Iterator[None]:
    """Make sure in the end that every namespace of the run is gone: nothing that was in one keeps it from going."""
    yield
    left: list[str] = []

    def are_gone() -> bool:
        found = api.items("namespace", selector=f"{_OF_RUN}={_RUN}")
        left[:] = [each["metadata"]["name"] for each in found]
        return not left

    assert wait_for(are_gone, _GONE_S), f"namespaces do not go: {left}"


@pytest.fixture(scope="session")
def installation(
    api: Kubectl, own_cluster: RunningCluster | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Sidemount, installed for all tests of the run and removed at its end. On the cluster of E2E_CLUSTER it stays as it is."""
    installation = Installation(api, tmp_path_factory.mktemp("overlay"))
    stays = bool(os.environ.get("E2E_CLUSTER"))
    if installation.is_there() and not stays:
        if own_cluster is None:
            pytest.exit(f"e2e: {foreign.INSTALLED}", returncode=2)
        installation.uninstall()  # what an interrupted run has left
    try:
        installation.ensure()
        yield installation
    finally:
        if not stays:
            installation.uninstall()


@pytest.fixture
def installed(installation: Installation) -> Installation:
    """Sidemount, installed and asked, whatever the tests before have done to it."""
    installation.ensure()
    return installation


@pytest.fixture(scope="session")
def sources(api: Kubectl, namespaces_go: None) -> Iterator[Sources]:
    """Directories of the node, for volumes to come from."""
    for namespace in in_namespace(api, f"e2e-sources-{secrets.token_hex(3)}", _PRIVILEGED):
        yield Sources(namespace)


@pytest.fixture
def source(sources: Sources) -> Iterator[Source]:
    """A directory of the test's own, which anybody may write to."""
    made = sources.make({}, mode=0o777)
    yield made
    made.remove()


@pytest.fixture
def unchanged_node(own_cluster: RunningCluster | None) -> Iterator[None]:
    """Compare the node with what it was, when the test's namespace is gone."""
    with unchanged(own_cluster):
        yield


@contextmanager
def unchanged(own_cluster: RunningCluster | None) -> Iterator[None]:
    """Compare the node before and after; not that of somebody else's cluster, which has other work too."""
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
def namespace(
    api: Kubectl, namespaces_go: None, unchanged_node: None, request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    with_labels = getattr(request, "param", {})
    yield from in_namespace(api, named_after(request.node), with_labels)


@pytest.fixture
def ml(
    installed: Installation, sources: Sources, unchanged_node: None, request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """A namespace that is open to injection, whose pods are where the sources are."""
    yield from in_namespace(installed.api, named_after(request.node), OPEN, sources.node)


@pytest.fixture
def ml_beside(
    installed: Installation, sources: Sources, request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """The same, where the node cannot be compared: the webhook's own pods are other ones afterwards."""
    yield from in_namespace(installed.api, named_after(request.node), OPEN, sources.node)


@pytest.fixture(scope="session")
def csi_path(
    installation: Installation, own_cluster: RunningCluster | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CsiPath]:
    """The CSI path, not yet installed."""
    if own_cluster is None:
        pytest.skip("the companions' images are on no other cluster")
    path = CsiPath(installation, own_cluster, tmp_path_factory.mktemp("csi"))
    try:
        yield path
    finally:
        _take_away(path)


@pytest.fixture(scope="module")
def csi(csi_path: CsiPath, request: pytest.FixtureRequest) -> Iterator[CsiPath]:
    """The CSI path, installed. It stays for the next module, unless that has no use for it."""
    csi_path.ensure()
    yield csi_path
    items = request.session.items
    last = max(index for index, item in enumerate(items) if item.path == request.path)
    following = (getattr(item, "fixturenames", ()) for item in items[last + 1 :])
    # Some tests need no cluster at all.
    if "csi" not in next((names for names in following if "own_cluster" in names), ()):
        _take_away(csi_path)


@pytest.fixture(scope="module")
def snapshots(csi: CsiPath) -> CsiPath:
    """The same with snapshots."""
    csi.ensure_snapshots()
    return csi


def _take_away(path: CsiPath) -> None:
    if not os.environ.get("E2E_CLUSTER"):
        path.remove()


@pytest.fixture
def world(
    csi: CsiPath, namespaces_go: None, unchanged_node: None, request: pytest.FixtureRequest
) -> Iterator[World]:
    """A namespace that enforces the level `restricted`, unless the test names other labels; the node is compared afterwards."""
    with_labels = getattr(request, "param", RESTRICTED)
    for made in in_namespace(csi.api, named_after(request.node), with_labels):
        yield World(csi, made)


@pytest.fixture
def world_beside(csi: CsiPath, namespaces_go: None, request: pytest.FixtureRequest) -> Iterator[World]:
    """The same, where the node cannot be compared: the plugin's own pod is another one afterwards."""
    for made in in_namespace(csi.api, named_after(request.node), RESTRICTED):
        yield World(csi, made)


def named_after(test: pytest.Item) -> str:
    """Return a name for a test's namespace, which nobody has used."""
    plain = re.sub(r"[^a-z0-9]+", "-", test.name.lower()).strip("-")[:40].strip("-")
    return f"{plain}-{secrets.token_hex(3)}"


def make_namespace(api: Kubectl, name: str, labels: dict[str, str], node: str = "") -> Namespace:
    """Make a namespace that pods can be created in; those that are created by it go to `node`."""
    labels = {**labels, _OF_RUN: _RUN}
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    # Pods are refused until the namespace has its account.
    assert wait_for(lambda: api.get("serviceaccount", "default", name) is not None, _ACCOUNT_S)
    return Namespace(api, name, node)


def in_namespace(api: Kubectl, name: str, labels: dict[str, str], node: str = "") -> Iterator[Namespace]:
    """Make a namespace, and take it away with all that is in it. What runs is gone then; its object goes a few seconds later."""
    try:
        yield make_namespace(api, name, labels, node)
    finally:
        with suppress(KubectlFailed):  # which pods are left is what to tell
            api.run("delete", "all", "--all", f"--namespace={name}", timeout_s=_GONE_S)
        api.delete("namespace", name)
        gone = wait_for(lambda: not api.items("pods", name), _GONE_S)
        left = [] if gone else [each["metadata"]["name"] for each in api.items("pods", name)]
    assert gone, f"pods of namespace {name} do not go: {left}"
