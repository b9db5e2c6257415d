"""What the webhook's tests share: reviews, the golden facts, and what an API server does to a pod between two rounds."""

import base64
import copy
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonpatch

from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.facts import Facts
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings
from webhook.outcome import Outcome
from webhook.validate import validate

GOLDEN = Path(__file__).parent.parent / "golden"
SETTINGS = InjectionSettings()
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"

Json = dict[str, Any]


@lru_cache(maxsize=1)
def golden_facts() -> Facts:
    """Return the facts that golden pods are judged by."""
    facts = FactsDirectory(GOLDEN / "facts").facts()
    assert not facts.faults()
    return facts


def review(
    pod: Any,
    namespace: str | None = "ml",
    operation: str = "CREATE",
    *,
    old: Any = None,
    sub_resource: str = "",
    dry_run: bool = False,
    kind: str = "Pod",
    resource: str = "pods",
    group: str = "",
) -> bytes:
    """Return an AdmissionReview as the API server writes it."""
    gvk = {"group": group, "version": "v1", "kind": kind}
    gvr = {"group": group, "version": "v1", "resource": resource}
    request: Json = {
        "uid": UID,
        "kind": gvk,
        "resource": gvr,
        "requestKind": gvk,
        "requestResource": gvr,
        "operation": operation,
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["g"]},
        "object": pod,
        "oldObject": old,
        "dryRun": dry_run,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    if sub_resource:
        request["subResource"] = sub_resource
    if namespace is not None:
        request["namespace"] = namespace
    return json.dumps(
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request},
        separators=(",", ":"),
    ).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """An answer, checked against the wire rules. `after` is the pod as the API server would go on with it."""

    outcome: Outcome
    response: Json
    patch: list[Json]
    after: Any

    @property
    def message(self) -> str:
        """The denial's message."""
        return str(self.response["status"]["message"])

    @property
    def reason(self) -> str:
        """The reason code."""
        return self.outcome.reason.value


def mutated(
    pod: Any,
    namespace: str | None = "ml",
    *,
    facts: Facts | None = None,
    settings: InjectionSettings = SETTINGS,
    **fields: Any,
) -> Reviewed:
    """Send a pod to the mutating webhook."""
    body = review(pod, namespace, **fields)
    answer = mutate(body, facts=facts or golden_facts(), settings=settings)
    return read_answer(answer.body, answer.outcome, pod)


def validated(
    pod: Any,
    namespace: str | None = "ml",
    *,
    facts: Facts | None = None,
    settings: InjectionSettings = SETTINGS,
    **fields: Any,
) -> Reviewed:
    """Send an object to the validating webhook."""
    body = review(pod, namespace, **fields)
    answer = validate(body, facts=facts or golden_facts(), settings=settings)
    reviewed = read_answer(answer.body, answer.outcome, pod)
    assert not reviewed.patch
    return reviewed


def read_answer(body: bytes, outcome: Outcome, pod: Any) -> Reviewed:
    """Read an answer as the API server does, refusing what it refuses."""
    answer = json.loads(body)
    assert answer.keys() == {"apiVersion", "kind", "response"}
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert response["uid"] == UID
    assert type(response["allowed"]) is bool
    assert ("patch" in response) == ("patchType" in response)
    for warning in response.get("warnings", ()):
        assert 0 < len(warning) <= 120
        assert warning.isprintable()
    assert sum(map(len, response.get("warnings", ()))) <= 4096
    for key, value in response.get("auditAnnotations", {}).items():
        assert key.isalpha()
        assert isinstance(value, str)
    patch: list[Json] = []
    after = copy.deepcopy(pod)
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        assert response["allowed"] is True
        patch = json.loads(base64.b64decode(response["patch"], validate=True))
        assert patch
        assert pod is not None
        after = jsonpatch.apply_patch(after, patch)
    if not response["allowed"]:
        status = response["status"]
        assert status["status"] == "Failure"
        assert 400 <= status["code"] <= 599
        assert status["reason"] == outcome.reason.value
        assert status["message"]
        assert status["message"].isprintable()
    else:
        assert "status" not in response
    assert json.loads(outcome.patch or b"[]") == patch
    return Reviewed(outcome=outcome, response=response, patch=patch, after=after)


def pod_with(annotations: Json | None = None, **spec: Any) -> Json:
    """Return a pod of one container `app` that mounts the emptyDir `train` at /data; `spec` replaces fields."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "ml",
            "annotations": {"volume.sidemount.io/train": "dir:///srv/datasets"}
            if annotations is None
            else annotations,
        },
        "spec": {
            "volumes": [{"name": "train", "emptyDir": {}}],
            "containers": [
                {"name": "app", "image": "i", "volumeMounts": [{"name": "train", "mountPath": "/data"}]}
            ],
            **spec,
        },
    }


def between_rounds(pod: Json) -> Json:
    """Return a pod as it comes back in a second round: fields defaulted, tokens mounted, limits applied.

    Source: pkg/apis/core/v1/defaults.go, plugin/pkg/admission/{serviceaccount,limitranger}.
    """
    served = copy.deepcopy(pod)
    spec = served["spec"]
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    for volume in spec.get("volumes") or []:
        _default_volume(volume)
    spec.setdefault("volumes", []).append(
        {"name": "kube-api-access-9k2xd", "projected": {"defaultMode": 420, "sources": []}}
    )
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _default_container(container)
    return served


def _default_volume(volume: Json) -> None:
    if not any(value is not None for key, value in volume.items() if key != "name"):
        volume["emptyDir"] = {}
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    if isinstance(volume.get("secret"), dict):
        volume["secret"].setdefault("defaultMode", 420)


def _default_container(container: Json) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container["imagePullPolicy"] = "Always"  # AlwaysPullImages
    resources = container.get("resources") or {}
    container["resources"] = resources
    limits = resources.get("limits") or {}
    resources["limits"] = {"cpu": "3", "memory": "777Mi", **limits}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if container.get(probe):
            container[probe].setdefault("timeoutSeconds", 1)
            container[probe].setdefault("periodSeconds", 10)
            container[probe].setdefault("successThreshold", 1)
            container[probe].setdefault("failureThreshold", 3)
    for entry in container.get("env") or []:
        if "fieldRef" in (entry.get("valueFrom") or {}):
            entry["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    mounts = container.get("volumeMounts") or []
    container["volumeMounts"] = mounts
    for mount in mounts:
        if mount.get("readOnly"):
            mount.setdefault("recursiveReadOnly", "Disabled")
    if not any(mount.get("mountPath") == TOKEN_PATH for mount in mounts):
        mounts.append({"name": "kube-api-access-9k2xd", "mountPath": TOKEN_PATH, "readOnly": True})


def assert_only_ours_changed(before: Json, after: Json) -> None:
    """Check that a patched pod differs only by what is ours, whatever else it holds. Knows nothing of plans or proofs."""
    if after == before:
        return
    _same(before, after, {"metadata", "spec"})
    old, new = before.get("metadata") or {}, after["metadata"]
    _same(old, new, {"annotations", "labels"})
    _labels(old.get("labels") or {}, new["labels"])
    _annotations(old.get("annotations") or {}, new["annotations"])
    was, now = before["spec"], after["spec"]
    _same(was, now, {"volumes", "initContainers", "containers", "imagePullSecrets", GRACE})
    secrets = was.get("imagePullSecrets") or []
    assert (now.get("imagePullSecrets") or [])[: len(secrets)] == secrets
    if was.get(GRACE) != now.get(GRACE):
        assert now[GRACE] > was.get(GRACE, 30)
    _volumes(was.get("volumes") or [], now.get("volumes") or [])
    for section in ("initContainers", "containers"):
        users = [c for c in now.get(section) or [] if not str(c["name"]).startswith("sidemount-")]
        assert section == "initContainers" or len(users) == len(now.get(section) or [])
        for one, other in zip(was.get(section) or [], users, strict=True):
            _container(one, other)


GRACE = "terminationGracePeriodSeconds"
_MARKS = {
    "sidemount.io/status",
    "kubectl.kubernetes.io/default-container",
    "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes",
}


def _same(old: Json, new: Json, except_for: set[str]) -> None:
    assert old.keys() - except_for == new.keys() - except_for
    for key in old.keys() - except_for:
        # As text: True is not 1 there, and 1.0 not 1.
        assert json.dumps(old[key]) == json.dumps(new[key]), key


def _labels(old: Json, new: Json) -> None:
    assert new == {**old, "sidemount.io/injected": "true"}


def _annotations(old: Json, new: Json) -> None:
    for key, value in old.items():
        if key in _MARKS and key.endswith("volumes"):
            assert new[key].startswith(value)
        elif key != "sidemount.io/status":
            assert new[key] == value
    assert new.keys() - old.keys() <= _MARKS


def _volumes(old: list[Json], new: list[Json]) -> None:
    for one, other in zip(old, new, strict=False):
        _same(one, other, {"emptyDir", "persistentVolumeClaim", "csi"})
    for added in new[len(old) :]:
        assert added["name"].startswith("sidemount") or set(added) == {"name", "csi"}
    names = [volume["name"] for volume in new]
    assert len(set(names)) == len(names)


def _container(old: Json, new: Json) -> None:
    _same(old, new, {"volumeMounts"})
    mounts, found = old.get("volumeMounts") or [], new.get("volumeMounts") or []
    for one, other in zip(mounts, found, strict=False):
        _same(one, other, {"name", "subPath", "readOnly", "mountPropagation"})
        if one != other:
            assert other["mountPropagation"] == "HostToContainer"
            assert other.get("readOnly") or not one.get("readOnly")
            assert other["name"] in ("sidemount", one["name"]) or other["name"].startswith("sidemount-view-")
    assert len(found) >= len(mounts)
    for added in found[len(mounts) :]:
        assert added["mountPropagation"] == "HostToContainer"
        assert added.keys() <= {"name", "mountPath", "mountPropagation", "subPath", "readOnly"}
