"""Components that end while pods run."""

import signal

import pytest

from e2e.cluster.bring_up import answers, node_is_ready
from e2e.cluster.kubectl import KubectlFailed
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.pods import Namespace, container_ids, pod, shell

_AGAIN_S = 120.0


def _exec_works(namespace: Namespace, name: str) -> bool:
    try:
        return namespace.exec(name, "app", "echo", "works") == "works\n"
    except KubectlFailed:
        return False


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd", "kubelet", "containerd"])
def test_pods_run_on_while_a_component_is_killed(
    cluster: RunningCluster, namespace: Namespace, component: str
) -> None:
    before = container_ids(namespace.run(pod("steady", shell("app"))))
    starts = cluster.status()[component]["starts"]
    cluster.signal(component, signal.SIGKILL)
    assert wait_for(lambda: cluster.status()[component]["starts"] > starts, _AGAIN_S)
    assert wait_for(lambda: answers(cluster) and node_is_ready(cluster), _AGAIN_S)
    assert wait_for(lambda: _exec_works(namespace, "steady"), _AGAIN_S)
    assert container_ids(namespace.ready("steady")) == before
    # And the cluster goes on: a pod that is created now runs too.
    namespace.run(pod("later", shell("app")))


def test_a_component_stays_stopped_until_it_is_started(cluster: RunningCluster, namespace: Namespace) -> None:
    cluster.stop("kube-scheduler")
    try:
        namespace.create(pod("waiting", shell("app")))
        assert cluster.status()["kube-scheduler"]["pid"] is None
        found = namespace.pod("waiting")
        assert found is not None
        assert "nodeName" not in found["spec"]
    finally:
        cluster.start("kube-scheduler")
    namespace.ready("waiting")
