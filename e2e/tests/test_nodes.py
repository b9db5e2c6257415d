"""More than one node: Services across nodes, pods that move, nodes that lose their power and come back."""

import sys
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.more_nodes import join, leave, power_off, power_on
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster
from e2e.cluster.running_node import RunningNode
from e2e.cluster.waiting import wait_for
from e2e.tests import foreign
from e2e.tests.conftest import OPEN, in_namespace, named_after
from e2e.tests.deployment import Installation
from e2e.tests.images import sidemount
from e2e.tests.node_state import look_at_node
from e2e.tests.pods import Namespace, pod, shell, task
from e2e.tests.sources import Source, Sources
from e2e.tests.witness_pod import RECOVERED_S, WitnessPod, fill, manifest

_ASK = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode(), end="")
except OSError as error:
    print(error)
"""
_LATE_S = 60.0


@pytest.fixture(scope="module")
def second(
    own_cluster: RunningCluster | None, installation: Installation, sources: Sources
) -> Iterator[RunningNode]:
    """A second node, for these tests alone unless the cluster had one. What is there for the whole run is on the first."""
    if own_cluster is None:
        pytest.skip(foreign.LEFT_OUT)
    if len(own_cluster.nodes) > 1:
        yield own_cluster.nodes[1]
        return
    node = join(own_cluster, Progress())
    yield node
    leave(own_cluster, node)


@pytest.fixture
def both_unchanged(cluster: RunningCluster, second: RunningNode) -> Iterator[None]:
    """Compare both nodes with what they were, when the test's namespace is gone."""
    before = {node.name: look_at_node(node) for node in (cluster, second)}
    yield
    left: list[str] = []

    def is_settled() -> bool:
        left[:] = [
            f"{node.name}: {each}"
            for node in (cluster, second)
            for each in look_at_node(node).more_than(before[node.name])
        ]
        return not left

    assert wait_for(is_settled, RECOVERED_S), "left:\n" + "\n".join(left)


@pytest.fixture
def anywhere(
    installed: Installation, source: Source, both_unchanged: None, request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """A namespace that is open to injection, whose pods may be on either node."""
    yield from in_namespace(installed.api, named_after(request.node), OPEN)


@pytest.fixture
def beside(
    installed: Installation, source: Source, second: RunningNode, request: pytest.FixtureRequest
) -> Iterator[Namespace]:
    """The same, where nodes cannot be compared: every container of one is another afterwards."""
    yield from in_namespace(installed.api, named_after(request.node), OPEN)


@pytest.fixture
def source(sources: Sources) -> Iterator[Source]:
    """A directory that both nodes have, as from a file server."""
    made = sources.make({}, mode=0o777)
    before = fill(made)
    yield made
    after = made.digests()
    assert {name: after.get(name) for name in before} == before, "a source was changed"
    made.remove()


def _on(node: RunningNode, manifest: Json) -> Json:
    return {**manifest, "spec": {**manifest["spec"], "nodeName": node.name}}


def test_a_service_is_reached_from_pods_and_components_of_another_node(
    cluster: RunningCluster, second: RunningNode, namespace: Namespace
) -> None:
    """In both directions; the API server's way to a webhook is that of the node's own processes."""
    for server, other in ((cluster, second), (second, cluster)):
        serve = "mkdir /www; echo from $HOSTNAME >/www/index.html; exec httpd -f -p 8080 -h /www"
        probe = {"httpGet": {"port": 8080, "path": "/index.html"}, "periodSeconds": 1}
        name = f"on-{server.name}"
        made = pod(name, task("app", serve, readinessProbe=probe), labels={"app": name})
        namespace.run(_on(server, made))
        ports = [{"port": 80, "targetPort": 8080}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
        spec = {"selector": {"app": name}, "ports": ports}
        url = f"http://{namespace.create({**service, 'spec': spec})['spec']['clusterIP']}/index.html"
        asks = {**shell("app"), "image": sidemount(), "imagePullPolicy": "IfNotPresent"}
        namespace.run(_on(other, pod(f"{name}-asks", asks)))

        def is_answered(other: RunningNode = other, url: str = url, name: str = name) -> bool:
            asked = other.on_node(sys.executable, "-S", "-c", _ASK, url)
            through = namespace.exec(f"{name}-asks", "app", "python3", "-S", "-c", _ASK, url)
            return asked == through == f"from {name}\n"

        assert wait_for(is_answered, RECOVERED_S), f"{name} is not reached from {other.name}"


def test_a_drained_pod_goes_on_at_another_node(
    cluster: RunningCluster, second: RunningNode, anywhere: Namespace, source: Source
) -> None:
    """The new pod runs there with what the old one has written; of the old one nothing is left."""
    made = manifest("moving", {"source": source.uri})
    made["metadata"]["labels"] = {"app": "moving"}
    api = anywhere.api
    api.run("cordon", second.name)
    anywhere.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "moving"},
            "spec": {
                "selector": {"matchLabels": {"app": "moving"}},
                "template": {"metadata": made["metadata"], "spec": made["spec"]},
            },
        }
    )
    try:
        old = WitnessPod(cluster, anywhere, _only_pod(anywhere, but=""))
        old.goes_on()
        assert old.node.name == cluster.name
        api.run("uncordon", second.name)
        began = time.monotonic()
        ours = ("--pod-selector=app=moving", "--delete-emptydir-data", "--timeout=120s")
        api.run("drain", cluster.name, *ours, timeout_s=150.0)
        old.wait_gone(_LATE_S)
        assert time.monotonic() - began < old.grace_s + _LATE_S
        new = WitnessPod(cluster, anywhere, _only_pod(anywhere, but=old.name))
        new.goes_on()
        assert new.node.name == second.name
        assert wait_for(lambda: not old.mounts(), RECOVERED_S), old.mounts()
        assert source.read("journal-app.0").startswith("0\n1\n2\n")
        assert source.read("journal-app.1").startswith("0\n1\n2\n")
    finally:
        for node in (cluster, second):
            api.run("uncordon", node.name)


def _only_pod(namespace: Namespace, *, but: str) -> str:
    """Wait for a Deployment's pod, but not this one; return its name."""

    def found() -> str | None:
        names = [each["metadata"]["name"] for each in namespace.api.items("pods", namespace.name)]
        return next((name for name in names if name != but), None)

    name = wait_for(found, RECOVERED_S)
    assert name is not None
    return name


def test_a_pod_has_its_volume_again_after_its_node_was_without_power(
    cluster: RunningCluster, second: RunningNode, beside: Namespace, source: Source
) -> None:
    """kubelet starts all of it anew in another sandbox: no mount is stacked, none is stale, what was written is there."""
    made = manifest("lasting", {"source": source.uri})
    beside.create(_on(second, made))
    before = WitnessPod(cluster, beside, "lasting")
    before.goes_on()
    mounts = _places(before)
    power_off(second)
    power_on(cluster, second)
    assert wait_for(lambda: min(before.restarts().values()) == 1, RECOVERED_S), before.described(
        "is as it was"
    )
    after = WitnessPod(cluster, beside, "lasting")
    after.goes_on()
    assert after.uid == before.uid
    assert not set(after.ids.values()) & set(before.ids.values())
    assert max(after.restarts().values()) == 1, after.described("was started more than once")
    assert wait_for(lambda: _places(after) == mounts, RECOVERED_S), (_places(after), mounts)
    beside.delete("lasting")
    assert wait_for(lambda: not (after.mounts() or after.has_processes()), RECOVERED_S), after.mounts()
    # What was acknowledged before is there, and what is written now.
    for life in (0, 1):
        assert source.read(f"journal-app.{life}").startswith("0\n1\n2\n")


def _places(witness: WitnessPod) -> list[str]:
    """Return where the pod's volumes are mounted, each as often as it is."""
    return sorted(line.split()[4] for line in witness.mounts() if "fuse" in line)
