"""Admissions while replicas of the webhook come and go, on a real API server: none is lost, and none is wrong.

Replicas are processes here, replaced in the order of a Deployment that surges; `test_availability_rollout.py` does it with pods.
"""

import base64
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterFault
from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.exposition import histogram, samples
from e2e.tests.load import creations, load, reviews
from e2e.tests.replicas import Replicas, api_server, asking, open_namespace, replicas_on
from sidemount.host.live_kinds import KINDS

_LAG_S = 0.5  # from a pod's end to the last kube-proxy that knows
_WAIT_S, _AWAY_S = 120.0, 3.0
_CARRIES = ("sidemount-keeper", "sidemount-books")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningCluster]:
    """An API server with our configurations, types, policies and a class."""
    with api_server("e2e-avail") as cluster:
        yield cluster


@pytest.fixture
def replicas(server: RunningCluster, tmp_path: Path) -> Iterator[Replicas]:
    """Replicas with a certificate that API servers trust; none is started."""
    with replicas_on(server, tmp_path) as found:
        found.trust_static()
        yield found


@pytest.fixture
def ml(server: RunningCluster) -> str:
    """A namespace of the test's own that is open to injection."""
    return open_namespace(server)


def test_no_admission_is_lost_while_every_replica_is_replaced(
    server: RunningCluster, replicas: Replicas, ml: str
) -> None:
    """J714, k/k#127335: by API servers, and by callers who keep their connections to a pod as long as it is in the Service."""
    present = [replicas.started() for _ in range(2)]
    replicas.service.route(present)
    authority = base64.b64encode(replicas.authority).decode()
    leaving = []
    with (
        load(server, creations(server, asking(ml), carries=_CARRIES, connections=6)) as by_the_server,
        load(server, reviews(server, asking(ml), authority, connections=4)) as direct,
    ):
        by_the_server.wait_good(50)
        direct.wait_good(50)
        for _ in range(2):
            present.append(replicas.started())
            replicas.service.route(present)
            leaving.append(present.pop(0))
            leaving[-1].signal(signal.SIGTERM)
            time.sleep(_LAG_S)
            replicas.service.route(present)
        assert [replica.wait() for replica in leaving] == [0, 0]
        by_the_server.wait_good(50)
        direct.wait_good(50)
        outcomes = {"through the API server": by_the_server.stop(), "straight": direct.stop()}
    for way, outcome in outcomes.items():
        print(f"{way}: {outcome.told()}")
    assert all(outcome.failures == {} for outcome in outcomes.values()), outcomes


def _creates(server: RunningCluster, pod: Json) -> str:
    """Return why a pod cannot be created, "" if it can: in a dry run of the server's."""
    try:
        server.kubectl().run("create", "--dry-run=server", "-f", "-", text=json.dumps(pod))
    except KubectlFailed as fault:
        return fault.reason
    return ""


def _bystanders(namespace: str) -> dict[str, Json]:
    """Return pods that must never wait for us."""
    claim = {"name": "books", "persistentVolumeClaim": {"claimName": "books"}}
    plain, claiming, leaving, system = asking(namespace), asking(namespace), asking(namespace), asking("kube-system")  # fmt: skip
    plain["metadata"]["annotations"] = {"example.com/note": "x"}
    claiming["metadata"]["annotations"], claiming["spec"]["volumes"] = {}, [claim]
    leaving["metadata"]["annotations"]["sidemount.io/inject"] = "false"
    return {"plain": plain, "of a claim": claiming, "that opts out": leaving, "of kube-system": system}


def test_while_no_replica_is_there_only_pods_that_ask_wait(
    server: RunningCluster, replicas: Replicas, ml: str
) -> None:
    """J714, KAI#751: refused at once with the webhook's name, and taken as soon as one replica is back."""
    replicas.service.route(())
    reason = _creates(server, asking(ml))
    assert 'failed calling webhook "pods.sidemount.io"' in reason
    refused = {what: reason for what, pod in _bystanders(ml).items() if (reason := _creates(server, pod))}
    assert refused == {}
    replica = replicas.started()
    began = time.monotonic()
    replicas.service.route([replica])
    assert wait_for(lambda: not _creates(server, asking(ml)), _WAIT_S)
    print(f"taken {time.monotonic() - began:.1f} s after the first replica was ready")


def test_replicas_that_die_at_once_leave_no_pod_without_its_volume(
    server: RunningCluster, replicas: Replicas, ml: str
) -> None:
    """Killed in the middle of admissions: what is in flight is refused and may be tried again, never let through."""
    dying = [replicas.started() for _ in range(2)]
    replicas.service.route(dying)
    with load(
        server, creations(server, asking(ml), carries=_CARRIES, connections=6, rate=100)
    ) as by_the_server:
        by_the_server.wait_good(30)
        for replica in dying:
            replica.kill("webhook")
        began = time.monotonic()
        present = replicas.started()
        replicas.service.route([present])
        by_the_server.wait_good(30)
        print(f"admissions again after {time.monotonic() - began:.1f} s")
        outcome = by_the_server.stop()
    print(outcome.told())
    others = [sort for sort in outcome.failures if "failed calling webhook" not in sort]
    assert others == []
    assert outcome.failures


def test_a_thousand_pods_are_created_with_their_volumes(
    server: RunningCluster, replicas: Replicas, ml: str
) -> None:
    """J1553: not dry. How long admission takes, by the API server's own clock."""
    replicas.service.route([replicas.started() for _ in range(2)])
    api, count = server.kubectl(), 1000
    before = api.run("get", "--raw=/metrics")
    pod = asking(ml, generateName="reader-")
    with load(
        server, creations(server, pod, dry_run=False, carries=_CARRIES, connections=8, most=count)
    ) as made:
        outcome = made.wait(_WAIT_S * 2)
    after = api.run("get", "--raw=/metrics")
    print(outcome.told())
    for title, name, labels in _DURATIONS:
        gained = histogram(after, name, **labels).since(histogram(before, name, **labels))
        print(f"{title}: {gained.told()}")
        assert gained.count >= count
    assert (outcome.good, outcome.failures) == (count, {})
    found = api.items("pods", ml)
    assert len(found) == count
    for each in found:
        assert set(_CARRIES) <= {container["name"] for container in each["spec"]["initContainers"]}


_ADMISSION = "apiserver_admission_webhook_admission_duration_seconds"
_DURATIONS = (
    ("mutating webhook", _ADMISSION, {"name": "pods.sidemount.io", "type": "admit", "operation": "CREATE"}),
    (
        "validating webhook",
        _ADMISSION,
        {"name": "pods.sidemount.io", "type": "validating", "operation": "CREATE"},
    ),
    (
        "whole request",
        "apiserver_request_duration_seconds",
        {"resource": "pods", "verb": "POST", "scope": "resource"},
    ),
)


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
def test_what_is_served_outlives_the_control_plane(
    server: RunningCluster, replicas: Replicas, ml: str, component: str
) -> None:
    """Killed while everything is watched: calls are answered on, ages grow, every kind is followed again by few lists."""
    replica = replicas.started()
    replicas.service.route([replica])
    authority = base64.b64encode(replicas.authority).decode()
    assert wait_for(lambda: _follows_all(replica.metrics()), _WAIT_S)
    lists = _lists(replica.metrics())
    with load(server, reviews(server, asking(ml), authority, connections=2, rate=100)) as direct:
        direct.wait_good(30)
        server.signal(component, signal.SIGKILL, is_wanted=False)
        try:
            assert wait_for(lambda: _oldest_s(replica.metrics()) > _AWAY_S, _WAIT_S)
            direct.wait_good(50)
            assert replica.get(f"https://{replica.address}:8443/readyz")[0] == 200
        finally:
            server.start(component)
        assert wait_for(lambda: _is_back(server), _WAIT_S), server.log_tail(component)
        assert wait_for(lambda: _follows_all(replica.metrics()), _WAIT_S), replica.told()
        known = _namespaces(replica.metrics())
        server.kubectl().create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{ml}-more"}})
        assert wait_for(lambda: _namespaces(replica.metrics()) > known, _WAIT_S), replica.told()
        outcome = direct.stop()
    print(outcome.told())
    assert outcome.failures == {}
    assert not replica.has_ended()
    more = _lists(replica.metrics()) - lists
    print(f"{more:.0f} lists of {len(KINDS)} kinds after {component} was killed")
    assert more <= 3 * len(KINDS)
    assert wait_for(lambda: not _creates(server, asking(ml)), _WAIT_S)


def _follows_all(text: str) -> bool:
    live = [sample.value for sample in samples(text, "sidemount_webhook_facts_kind_live")]
    return bool(live) and all(live)


def _oldest_s(text: str) -> float:
    return max(sample.value for sample in samples(text, "sidemount_webhook_facts_kind_age_seconds"))


def _namespaces(text: str) -> float:
    return sum(
        sample.value for sample in samples(text, "sidemount_webhook_facts_kind_objects", kind="Namespace")
    )


def _lists(text: str) -> float:
    return sum(sample.value for sample in samples(text, "sidemount_webhook_facts_kind_lists_total"))


def _is_back(server: RunningCluster) -> bool:
    try:
        return server.kubectl().run("get", "--raw=/readyz", timeout_s=10) == "ok"
    except ClusterFault:
        return False
