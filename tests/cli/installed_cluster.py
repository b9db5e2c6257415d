"""A cluster with the manifests of this release on it, as an API server would list them; and the webhook's own answer to pods."""

import base64
import json
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import jsonpatch
import yaml

from certs.authority import create_authority
from certs.pem import render_certificate
from sidemount.commands.cluster.facts import facts_of
from sidemount.commands.pods import review_of
from tests.cli.fake_cluster import FakeCluster
from tests.manifests.files import MANIFESTS
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings

Json = dict[str, Any]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CLASSES = "/apis/sidemount.io/v1alpha1/fusedriverclasses"
MUTATING = f"{ADMISSION}/mutatingwebhookconfigurations"
VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
TYPES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACES, NODES = "/api/v1/namespaces", "/api/v1/nodes"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"
SERVICES = "/api/v1/namespaces/sidemount-system/services"
WEBHOOK_PODS = "/api/v1/namespaces/sidemount-system/pods"
TRIAL = "/api/v1/namespaces/ml/pods"


def install(cluster: FakeCluster, now: datetime) -> None:
    """Put everything there, in good health."""
    bundle = render_certificate(create_authority("test", now=now).certificate)
    for path, file in ((MUTATING, "mutating-webhook"), (VALIDATING, "validating-webhook")):
        cluster.objects[path] = _base(file)
        for entry in cluster.objects[path][0]["webhooks"]:
            entry["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
    for manifest in _base("admission-policy"):
        is_binding = manifest["kind"].endswith("Binding")
        cluster.objects.setdefault(BINDINGS if is_binding else POLICIES, []).append(manifest)
    cluster.objects[TYPES] = _base("fuse-driver-class")
    cluster.objects[TYPES][0]["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    cluster.objects[CLASSES] = _documents("classes/directory.yaml")
    cluster.objects[SERVICES] = _base("service")
    cluster.objects[WEBHOOK_PODS] = [webhook_pod("webhook-a"), webhook_pod("webhook-b")]
    for pod in ("webhook-a", "webhook-b"):
        path = f"{WEBHOOK_PODS}/https:{pod}:8443/proxy/metrics"
        cluster.answers[path] = (200, metrics(now + timedelta(days=80)))
    cluster.objects[NAMESPACES] = [
        namespace("default"),
        namespace("ml", **{"sidemount.io/injection": "enabled"}),
    ]
    cluster.objects[NODES] = [node("node-1", "6.12.9")]
    cluster.objects[DRIVERS] = []
    cluster.admit = lambda path, pod: injected(cluster, path.split("/")[4], pod)


def injected(cluster: FakeCluster, place: str, pod: Json) -> Json:
    """Return what the webhook makes of a pod, by the cluster's present objects."""
    facts = facts_of(
        {
            "classes": cluster.objects[CLASSES],
            "namespaces": cluster.objects[NAMESPACES],
            "nodes": cluster.objects[NODES],
        }
    )
    patch = mutate(review_of(pod, place), facts=facts, settings=InjectionSettings()).outcome.patch
    found: Json = jsonpatch.apply_patch(pod, json.loads(patch)) if patch else pod
    return found


def namespace(name: str, **labels: str) -> Json:
    """Return a namespace."""
    return {"metadata": {"name": name, "labels": labels}}


def node(name: str, kernel: str, **info: str) -> Json:
    """Return a node that is ready."""
    told = {
        "kernelVersion": kernel,
        "kubeletVersion": "v1.31.2",
        "containerRuntimeVersion": "containerd://2.1.4",
        "operatingSystem": "linux",
    }
    return {
        "metadata": {"name": name, "labels": {}},
        "status": {"nodeInfo": told | info, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def webhook_pod(name: str, ready: str = "True") -> Json:
    """Return a replica of the webhook."""
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "webhook", "ports": [{"name": "https", "containerPort": 8443}]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


def metrics(ends: datetime, age_s: float = 3.0) -> str:
    """Return what a replica tells of itself."""
    return (
        "# TYPE sidemount_webhook_ready gauge\nsidemount_webhook_ready 1.0\n"
        f"sidemount_webhook_certificate_not_after_seconds {ends.timestamp()}\n"
        f"sidemount_webhook_certificate_faulty 0.0\nsidemount_webhook_facts_age_seconds {age_s}\n"
        'sidemount_webhook_decisions_total{reason="x"} nonsense\n'
    )


def _base(name: str) -> list[Json]:
    return _documents(f"base/{name}.yaml")


def _documents(file: str) -> list[Json]:
    found: list[Json] = json.loads(_as_json(file))
    return found


@cache
def _as_json(file: str) -> str:
    return json.dumps(list(yaml.safe_load_all((MANIFESTS / file).read_text())))
