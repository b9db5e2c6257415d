"""Whom the API server asks the webhook about, and what becomes of the others while none runs."""

from e2e.cluster.kubectl import Json
from e2e.tests.admission.admitting import Admitting, claim, claiming, ours, pod, refusal, volume
from sidemount.model.names import OWN_NAMESPACE

_ASKS = {"volume.sidemount.io/train": "dir:///srv/books"}


def test_a_pod_that_asks_carries_its_volume_in_earnest_and_in_a_dry_run(
    admitting: Admitting, ml: str
) -> None:
    found, warnings = admitting.create(pod("reader", _ASKS, ml))
    assert ours(found) == ["sidemount-keeper", "sidemount-train"]
    assert "sidemount: volume train: sidecar, class directory (SidecarPreferred)" in warnings
    assert refusal(admitting.api, pod("again", _ASKS, ml), "--dry-run=server") == ""
    assert admitting.api.get("pod", "again", ml) is None


def test_while_no_webhook_runs_only_who_asks_waits(without_webhook: Admitting, ml: str) -> None:
    """Annotated pods: Fail. Pods with a claim of ours: Ignore, CSI serves them. All others are never asked about."""
    api = without_webhook.api
    told = without_webhook.refused(pod("asking", _ASKS, ml))
    assert 'failed calling webhook "pods.sidemount.io"' in told
    api.create(volume(ml, (ml, "data")))
    api.create(claim(ml, volume_name=ml))
    found, _ = without_webhook.create(claiming("claiming", ml))
    assert found["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}
    assert ours(found) == []
    without_webhook.create(pod("plain", {}, ml))
    without_webhook.create(pod("out", {**_ASKS, "sidemount.io/inject": "false"}, ml))
    api.run("label", f"--namespace={ml}", "pod/plain", "a=b")


def test_the_system_s_namespaces_and_static_pods_are_never_asked_about(
    without_webhook: Admitting, ml: str
) -> None:
    """And ours, whose pods must not wait for themselves. kube-image-keeper#560: a static pod takes no change."""
    for namespace in ("kube-system", OWN_NAMESPACE, "kube-public", "kube-node-lease"):
        assert (
            refusal(without_webhook.api, _restricted(pod("asking", _ASKS, namespace)), "--dry-run=server")
            == ""
        )
    for mark in ("kubernetes.io/config.mirror", "kubernetes.io/config.source"):
        static = pod("static", {**_ASKS, mark: "file"}, ml, nodeName="n")
        assert refusal(without_webhook.api, static, "--dry-run=server") == ""


def _restricted(found: Json) -> Json:
    """Return a pod as the strictest Pod Security, that of our namespace, wants it."""
    whole = {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}
    found["spec"]["securityContext"] = whole
    for container in found["spec"]["containers"]:
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return found


def test_two_rounds_are_one_answer(admitting: Admitting, ml: str) -> None:
    """What comes back from the API server, defaults filled in, is created again as it is."""
    found, _ = admitting.create(pod("first", _ASKS, ml))
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        found["metadata"].pop(field, None)
    found["metadata"]["name"] = "second"
    found.pop("status")
    again, _ = admitting.create(found)
    assert again["spec"] == found["spec"]
