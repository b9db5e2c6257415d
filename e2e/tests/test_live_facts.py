"""The webhook's facts from a real API server: there at once, kept while it is away, and its again when it is back."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.bring_up import bring_up
from e2e.cluster.errors import MachineLacks
from e2e.cluster.kubectl import Kubectl, KubectlFailed
from e2e.cluster.namespaces import entering_network
from e2e.cluster.places import SOURCE, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, take_down
from e2e.cluster.waiting import wait_for
from e2e.tests.admission.admitting import WebhookProcess
from sidemount.host.live_kinds import KINDS
from tests.webhook.admission import pod_with, review

_WAIT_S = 120.0


class _Webhook(WebhookProcess):
    """A webhook with the administrator's rights, and pods that ask it."""

    def admit(self, namespace: str) -> dict[str, Any]:
        """Return the response to a pod that asks for a directory."""
        status, text = self.call("/mutate?timeout=20s", review(pod_with(), namespace))
        assert status == 200, (status, text, self.told())
        response: dict[str, Any] = json.loads(text)["response"]
        return response


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """An API server of the module's own, with our type and a class."""
    places = places_of("e2e-facts")
    take_down(places)  # what an interrupted run has left
    try:
        running = bring_up(places, Progress(), api_only=True)
    except MachineLacks as fault:
        pytest.exit(f"e2e: {fault}", returncode=3)
    try:
        api = running.kubectl()
        api.apply(yaml.safe_load((SOURCE / "manifests/base/fuse-driver-class.yaml").read_text()))
        a_class = yaml.safe_load((SOURCE / "manifests/classes/directory.yaml").read_text())
        assert wait_for(lambda: _is_applied(api, a_class), _WAIT_S), "our type is not served"
        yield running
    finally:
        take_down(places)


@pytest.fixture
def webhook(cluster: RunningCluster, tmp_path: Path) -> Iterator[_Webhook]:
    """A webhook that is ready."""
    process = _Webhook(cluster, tmp_path, cluster.places.kubeconfig)
    try:
        process.start()
        yield process
    finally:
        process.end()


def _open(cluster: RunningCluster, name: str) -> None:
    labels = {"sidemount.io/injection": "enabled"}
    cluster.kubectl().create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )


def _is_applied(api: Kubectl, manifest: dict[str, Any]) -> bool:
    """A type is served a moment after it was made."""
    try:
        api.apply(manifest)
    except KubectlFailed:
        return False
    return True


def _is_back(cluster: RunningCluster) -> bool:
    try:
        return cluster.kubectl().run("get", "--raw=/readyz").strip() == "ok"
    except KubectlFailed:
        return False


def test_a_namespace_is_known_the_moment_it_is_there(cluster: RunningCluster, webhook: _Webhook) -> None:
    assert not webhook.admit("not-there")["allowed"]
    for number in range(5):
        _open(cluster, f"new-{number}")
        assert webhook.admit(f"new-{number}")["allowed"]


@pytest.mark.slow
def test_what_is_known_stays_while_the_api_server_is_away(cluster: RunningCluster, webhook: _Webhook) -> None:
    _open(cluster, "before")
    assert webhook.admit("before")["allowed"]
    cluster.stop("kube-apiserver")
    try:
        for _ in range(5):
            assert webhook.admit("before")["allowed"]
        assert webhook.call("/readyz")[0] == 200
    finally:
        cluster.start("kube-apiserver")
    assert wait_for(lambda: _is_back(cluster), _WAIT_S), "the API server is not back"
    _open(cluster, "after")
    assert webhook.admit("after")["allowed"]
    live = re.compile(r"^sidemount_webhook_facts_kind_live\{.*\} 1\.0$", re.MULTILINE)
    assert wait_for(lambda: len(live.findall(webhook.call("/metrics")[1])) == len(KINDS), _WAIT_S), (
        "not every kind is followed again"
    )


def _etcd(cluster: RunningCluster, call: str, asked: dict[str, Any]) -> dict[str, Any]:
    argv = (*entering_network(cluster.pid), "curl", "-sS", "-m", "30", "-d", json.dumps(asked))
    done = subprocess.run(
        [*argv, f"http://127.0.0.1:2379/v3/kv/{call}"], capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _lists(webhook: _Webhook, kind: str) -> float:
    found = re.search(
        rf'^sidemount_webhook_facts_kind_lists_total{{kind="{kind}"}} (.*)$',
        webhook.call("/metrics")[1],
        re.MULTILINE,
    )
    assert found is not None
    return float(found[1])


def test_history_that_is_gone_leads_to_a_new_list(cluster: RunningCluster, webhook: _Webhook) -> None:
    """410: what happened meanwhile is in no watch any more, a class that was deleted least of all."""
    api = cluster.kubectl()
    _open(cluster, "known")
    passing = yaml.safe_load((SOURCE / "manifests/classes/directory.yaml").read_text())
    passing["metadata"]["name"] = "passing"
    api.apply(passing)
    assert wait_for(lambda: "FuseDriverClass passing" in _known_classes(webhook), _WAIT_S)
    before = _lists(webhook, "FuseDriverClass")
    webhook.signal(signal.SIGSTOP)
    try:
        api.delete("fdc", "passing")
        _open(cluster, "meanwhile")
        revision = _etcd(cluster, "range", {"key": "AA=="})["header"]["revision"]
        _etcd(cluster, "compaction", {"revision": revision, "physical": True})
        cluster.stop("kube-apiserver")
        cluster.start("kube-apiserver")
        assert wait_for(lambda: _is_back(cluster), _WAIT_S), "the API server is not back"
    finally:
        webhook.signal(signal.SIGCONT)
    assert wait_for(lambda: _lists(webhook, "FuseDriverClass") > before, _WAIT_S), webhook.told()
    assert 'kind_errors_total{kind="FuseDriverClass",trouble="expired"}' in webhook.call("/metrics")[1]
    assert wait_for(lambda: "FuseDriverClass passing" not in _known_classes(webhook), _WAIT_S)
    assert webhook.admit("meanwhile")["allowed"]


def _known_classes(webhook: _Webhook) -> str:
    """Return what a pod is told that names a class which nobody has: the names of those that are there."""
    asking = pod_with({"volume.sidemount.io/train": "dir:///srv/x?class=nobody-s"})
    text = webhook.call("/mutate?timeout=20s", review(asking, "known"))[1]
    message: str = json.loads(text)["response"]["status"]["message"]
    return " ".join(
        f"FuseDriverClass {name}" for name in re.findall(r"[a-z-]+", message.rpartition("known:")[2])
    )


def test_more_objects_than_a_page_holds_are_all_known(cluster: RunningCluster, tmp_path: Path) -> None:
    _open(cluster, "many")
    claims = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"c{number}", "namespace": "many"},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "",
            },
        }
        for number in range(300)
    ]
    cluster.kubectl().apply(*claims)
    webhook = _Webhook(cluster, tmp_path, cluster.places.kubeconfig)
    try:
        webhook.start()
        counted = 'sidemount_webhook_facts_kind_objects{kind="PersistentVolumeClaim"} 300.0'
        assert counted in webhook.call("/metrics")[1]
    finally:
        webhook.end()
