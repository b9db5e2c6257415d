"""Three replicas as pods, on a real node: rolled out, deleted and missing while pods are created as fast as the machine can.

The long form of `test_availability.py`. What the machine sustains is printed: `pytest -s -m slow e2e/tests/test_availability_rollout.py`.
"""

import signal
import time
from collections.abc import Iterator

import pytest
import yaml

from e2e.cluster.kubectl import Json, Kubectl
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.deployment import CONFIGURATIONS, DEPLOYMENT, Installation
from e2e.tests.load import creations, handshakes, load, reviews
from e2e.tests.pods import Namespace, is_ready, shell
from e2e.tests.replicas import asking, be_patient
from e2e.tests.sources import Source
from sidemount.model.names import OWN_NAMESPACE

pytestmark = pytest.mark.slow

_EFFECT_S, _AGAIN_S = 180.0, 400.0
_CARRIES = ("sidemount-keeper", "sidemount-books")
_SELECTOR = f"app.kubernetes.io/name={DEPLOYMENT}"


@pytest.fixture(scope="module")
def three(installation: Installation, own_cluster: RunningCluster | None) -> Iterator[Installation]:
    """The overlay `ha`; afterwards what was there before."""
    if own_cluster is None:
        pytest.skip("KUBECONFIG names a cluster whose network is not ours to enter")
    installation.ensure()
    overlay = yaml.safe_load((installation.overlay / "kustomization.yaml").read_text())
    overlay["resources"] = ["../manifests/overlays/ha"]
    directory = installation.overlay.parent / "three"
    directory.mkdir()
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    try:
        installation.api.run("apply", "-k", str(directory), timeout_s=120)
        installation.roll_out()
        be_patient(own_cluster)
        yield installation
    finally:
        installation.api.run("apply", "-k", str(installation.overlay), timeout_s=120)
        installation.roll_out()


def _restart(installation: Installation) -> float:
    """Replace every replica; return how many seconds it took."""
    began = time.monotonic()
    installation.api.run("rollout", "restart", f"deployment/{DEPLOYMENT}", f"--namespace={OWN_NAMESPACE}")
    installation.roll_out()
    return time.monotonic() - began


def _authority(api: Kubectl) -> str:
    """Return whom API servers trust, in base64."""
    found = api.get(CONFIGURATIONS[0], "sidemount") or {}
    bundle: str = found["webhooks"][0]["clientConfig"]["caBundle"]
    return bundle


def test_a_rollout_under_all_the_load_that_the_machine_bears_loses_no_pod(
    three: Installation, cluster: RunningCluster, ml_beside: Namespace
) -> None:
    """J714, J1553."""
    order = creations(cluster, asking(ml_beside.name), carries=_CARRIES, connections=24)
    with load(cluster, order) as made:
        made.wait_good(200)
        took_s = _restart(three)
        made.wait_good(200)
        outcome = made.stop()
    print(f"replaced in {took_s:.0f} s; {outcome.told()}")
    assert outcome.failures == {}


def test_a_rollout_under_calls_straight_to_its_pods_loses_no_call(
    three: Installation, cluster: RunningCluster, ml_beside: Namespace
) -> None:
    """k/k#127335: ten times the load, as far as the machine goes, on connections that are kept until they are closed."""
    order = reviews(cluster, asking(ml_beside.name), _authority(three.api), connections=48)
    with load(cluster, order) as direct:
        direct.wait_good(500)
        took_s = _restart(three)
        direct.wait_good(500)
        outcome = direct.stop()
    print(f"replaced in {took_s:.0f} s; {outcome.told()}")
    assert outcome.failures == {}


def _deployment(name: str, annotations: dict[str, str], volume: Json) -> Json:
    app = shell("app", volumeMounts=[{"name": "books", "mountPath": "/data"}])
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"terminationGracePeriodSeconds": 5, "containers": [app], "volumes": [{"name": "books", **volume}]},
    }  # fmt: skip
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }


def _ready(namespace: Namespace, name: str) -> list[Json]:
    return [each for each in namespace.api.items("pods", namespace.name, f"app={name}") if is_ready(each)]


def _are_refused(namespace: Namespace) -> bool:
    events = namespace.api.items("events", namespace.name)
    return any("failed calling webhook" in event.get("message", "") for event in events)


def test_while_every_replica_is_missing_only_pods_that_ask_wait_and_then_come_by_themselves(
    three: Installation, ml_beside: Namespace, source: Source
) -> None:
    """J714, KAI#751: nobody does anything but the controllers."""
    three.scale(0)
    assert wait_for(lambda: not three.api.items("pods", OWN_NAMESPACE, _SELECTOR), _EFFECT_S)
    asks = {"volume.sidemount.io/books": f"{source.uri}?readOnly=true"}
    ml_beside.create(_deployment("asking", asks, {"emptyDir": {}}))
    ml_beside.create(_deployment("plain", {}, {"emptyDir": {}}))
    assert wait_for(lambda: len(_ready(ml_beside, "plain")) == 2, _EFFECT_S)
    assert wait_for(lambda: _are_refused(ml_beside), _EFFECT_S)
    assert not three.api.items("pods", ml_beside.name, "app=asking")
    three.scale(3)
    began = time.monotonic()
    three.roll_out()
    back_s = time.monotonic() - began
    assert wait_for(lambda: len(_ready(ml_beside, "asking")) == 2, _AGAIN_S)
    print(
        f"three replicas after {back_s:.0f} s, pods that waited are ready after {time.monotonic() - began:.0f} s"
    )
    for each in _ready(ml_beside, "asking"):
        names = {container["name"] for container in each["spec"]["initContainers"]}
        assert names >= set(_CARRIES)


@pytest.mark.parametrize("how", [(), ("--grace-period=0", "--force")], ids=["politely", "by force"])
def test_replicas_that_are_deleted_at_once_come_back_and_let_no_pod_through(
    three: Installation, cluster: RunningCluster, ml_beside: Namespace, how: tuple[str, ...]
) -> None:
    order = creations(cluster, asking(ml_beside.name), carries=_CARRIES, connections=6, rate=50)
    with load(cluster, order) as made:
        made.wait_good(50)
        began = time.monotonic()
        three.api.run(
            "delete", "pods", f"--namespace={OWN_NAMESPACE}", f"--selector={_SELECTOR}", "--wait=false", *how
        )
        made.wait_good(20, _EFFECT_S)
        three.roll_out()
        print(f"three replicas after {time.monotonic() - began:.0f} s")
        made.wait_good(50, _EFFECT_S)
        outcome = made.stop()
    print(outcome.told())
    assert [sort for sort in outcome.failures if "failed calling webhook" not in sort] == []


def test_a_rotation_of_all_certificates_fails_no_admission(
    three: Installation, cluster: RunningCluster, ml_beside: Namespace
) -> None:
    """With the times of production: a deleted Secret, a new authority, and everybody over to it."""
    before = _authority(three.api)
    order = creations(cluster, asking(ml_beside.name), carries=_CARRIES, connections=6, rate=50)
    with load(cluster, order) as made, handshakes(cluster) as shaken:
        made.wait_good(50)
        began = time.monotonic()
        three.api.delete("secret", "webhook-certs", OWN_NAMESPACE)
        assert wait_for(lambda: _authority(three.api) != before, _EFFECT_S)
        assert wait_for(lambda: _has_leaf(three.api), _EFFECT_S)
        print(f"a new authority signs after {time.monotonic() - began:.0f} s")
        # Replicas that do not lead look every fifteen seconds.
        made.wait_good(1250, _EFFECT_S)
        shaken.wait_good(100, _EFFECT_S)
        outcomes = made.stop(), shaken.stop()
    for outcome in outcomes:
        print(outcome.told())
        assert outcome.failures == {}


def _has_leaf(api: Kubectl) -> bool:
    found = api.get("secret", "webhook-certs", OWN_NAMESPACE) or {}
    return bool(found.get("data", {}).get("tls.crt"))


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
def test_a_control_plane_that_is_killed_restarts_no_replica(
    three: Installation, cluster: RunningCluster, ml_beside: Namespace, component: str
) -> None:
    before = _restarts(three.api)
    cluster.signal(component, signal.SIGKILL)
    assert wait_for(lambda: three.is_asked(), _EFFECT_S), cluster.log_tail(component)
    order = creations(cluster, asking(ml_beside.name), carries=_CARRIES, connections=6, rate=50)
    with load(cluster, order) as made:
        made.wait_good(300)
        outcome = made.stop()
    print(outcome.told())
    assert outcome.failures == {}
    assert _restarts(three.api) == before


def _restarts(api: Kubectl) -> dict[str, int]:
    """Return how often the containers of each replica were started anew."""
    return {
        f"{each['metadata']['name']}/{status['name']}": status["restartCount"]
        for each in api.items("pods", OWN_NAMESPACE, _SELECTOR)
        for status in (*each["status"].get("initContainerStatuses", ()), *each["status"]["containerStatuses"])
    }
