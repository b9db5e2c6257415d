"""The policies that the API server judges by itself: each rule lets one pod through and refuses another, while nobody else says a word."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.places import SOURCE
from e2e.tests.admission.admitting import MUTATING, VALIDATING, Admitting, pod, refusal, until_refused
from tests.webhook.admission import mutated

_ASKS = {"volume.sidemount.io/train": "dir:///srv/books"}
_POLICIES = SOURCE / "manifests/base/admission-policy.yaml"
_LOOK: Json = {
    "name": "sidemount",
    "mountPath": "/m",
    "readOnly": True,
    "mountPropagation": "HostToContainer",
}


@pytest.fixture(scope="module")
def alone(all_admitting: Admitting) -> Iterator[Admitting]:
    """The API server with its policies, and no webhook that it would call."""
    for kind in (MUTATING, VALIDATING):
        all_admitting.api.delete(kind, "sidemount")
    until_refused(
        all_admitting.api, pod("asking", _ASKS, "default"), lambda told: "ValidatingAdmissionPolicy" in told
    )
    yield all_admitting
    all_admitting.call_webhook()


def _injected(annotations: dict[str, str] | None = None) -> Json:
    """Return what the webhook makes of a pod."""
    after: Json = mutated(pod("p", annotations or _ASKS, "ml"), "ml").after
    return after


def _changed(change: Callable[[Json], Any]) -> Json:
    found = copy.deepcopy(_injected())
    change(found)
    return found


def _inits(found: Json) -> list[Json]:
    inits: list[Json] = found["spec"]["initContainers"]
    return inits


def _without(found: Json, name: str) -> None:
    found["spec"]["initContainers"] = [each for each in _inits(found) if each["name"] != name]


# The beginning of each rule's message → the pod that it refuses.
_PODS: dict[str, Json] = {
    "the pod asks for volumes (train) and does not carry all of them": _changed(lambda found: _without(found, "sidemount-train")),
    "the pod asks for volumes and does not carry them": pod("p", {"sidemount.io/volumes": '[{"name": "train", "source": "dir:///srv/b"}]'}, "ml"),
    "a container of Sidemount has lost restartPolicy: Always": _changed(lambda found: _inits(found)[1].pop("restartPolicy") and _inits(found)[1].pop("startupProbe") and _inits(found)[1].pop("livenessProbe")),
    "containers of Sidemount are there without sidemount-keeper": _changed(lambda found: _without(found, "sidemount-keeper")),
    "a container's name begins with sidemount-": pod("p", {}, "ml", containers=[{"name": "sidemount-x", "image": "i"}]),
    "containers of Sidemount are there, but the pod asks for no volume": _changed(lambda found: found["metadata"].pop("annotations")),
    "containers of Sidemount are there, but the namespace does not carry the label": _injected(),
}  # fmt: skip


def test_every_rule_for_new_pods_refuses_in_its_own_words(alone: Admitting, unique: str, ml: str) -> None:
    """And lets through what the webhook makes, and whoever asks for nothing."""
    closed = alone.namespace(f"{unique}-closed"[-60:].strip("-"), {})
    for begin, refused in _PODS.items():
        where = closed if "namespace" in begin else ml
        told = refusal(alone.api, _in(refused, where), "--dry-run=server")
        assert "ValidatingAdmissionPolicy 'sidemount-pods'" in told, (begin, told)
        assert begin in told, told
        assert re.search(r"\((NotInjected|HandMade|NamespaceNotEnabled)\)$", told), told
    listed = {"sidemount.io/volumes": '[{"name": "train", "source": "dir:///srv/b"}]'}
    for accepted in (
        _injected(),
        _injected(listed),
        pod("p", {}, "ml"),
        pod("p", {**_ASKS, "sidemount.io/inject": "false"}, "ml"),
        pod("p", {"volume.sidemount.io/train": "?optional=true"}, "ml"),
    ):
        assert refusal(alone.api, _in(accepted, ml), "--dry-run=server") == ""


def test_no_rule_is_without_a_case() -> None:
    cases = {
        "sidemount-pods": len(_PODS),
        "sidemount-ephemeral-containers": 2,
        "sidemount-images": 1,
        "sidemount-exec": 1,
    }
    found = [
        each
        for each in yaml.safe_load_all(_POLICIES.read_text())
        if each["kind"] == "ValidatingAdmissionPolicy"
    ]
    assert {each["metadata"]["name"]: len(each["spec"]["validations"]) for each in found} == cases


@pytest.fixture
def running(alone: Admitting, ml: str) -> Json:
    """A pod that was injected, as it is on the server."""
    return alone.create(_in(_injected(), ml))[0]


@pytest.mark.parametrize(
    ("container", "why"),
    [
        ({"name": "debugger", "volumeMounts": [_LOOK]}, ""),
        ({"name": "debugger"}, ""),
        ({"name": "sidemount-x"}, "an ephemeral container's name begins with sidemount-"),
        ({"name": "debugger", "volumeMounts": [{**_LOOK, "readOnly": False}]}, "mounts a volume of Sidemount's own"),
        ({"name": "debugger", "volumeMounts": [{**_LOOK, "mountPropagation": "None"}]}, "mounts a volume of Sidemount's own"),
        ({"name": "debugger", "volumeMounts": [{**_LOOK, "name": "sidemount-run"}]}, "mounts a volume of Sidemount's own"),
    ],
)  # fmt: skip
def test_a_debugging_container(alone: Admitting, running: Json, container: Json, why: str) -> None:
    changed = {**running, "spec": {**running["spec"], "ephemeralContainers": [{"image": "i", **container}]}}
    metadata = running["metadata"]
    path = (
        f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/ephemeralcontainers?dryRun=All"
    )
    try:
        alone.api.run("replace", "--raw", path, "-f", "-", text=json.dumps(changed))
        told = ""
    except KubectlFailed as fault:
        told = fault.reason
    assert (why in told) if why else not told, told


def test_what_is_privileged_keeps_its_image(alone: Admitting, running: Json) -> None:
    """A daemon's may be changed: that is its upgrade. Who may upgrade keepers changes a keeper's too, as the administrator may."""
    namespace, name = running["metadata"]["namespace"], running["metadata"]["name"]
    alone.api.apply(*_may_edit(namespace))
    change = ("set", "image", f"--namespace={namespace}", f"pod/{name}", "--dry-run=server")
    alone.api.run(*change, "sidemount-train=other", "--as=editor")
    with pytest.raises(KubectlFailed, match=r"privileged container of Sidemount cannot be changed by you"):
        alone.api.run(*change, "sidemount-keeper=other", "--as=editor")
    alone.api.run(*change, "sidemount-keeper=other")


@pytest.mark.parametrize("way", ["exec", "attach"])
@pytest.mark.parametrize("container", ["sidemount-keeper", "sidemount-train"])
def test_nobody_enters_a_container_of_ours(alone: Admitting, running: Json, way: str, container: str) -> None:
    """But who may upgrade keepers. Whoever is let in is told that no node runs the pod."""
    namespace, name = running["metadata"]["namespace"], running["metadata"]["name"]
    alone.api.apply(*_may_edit(namespace))
    own = running["spec"]["containers"][0]["name"]

    def enter(where: str, *who: str) -> str:
        command = ("--", "true") if way == "exec" else ()
        with pytest.raises(KubectlFailed) as failed:
            alone.api.run(way, f"--namespace={namespace}", name, "-c", where, *who, *command)
        return failed.value.reason

    assert "nobody enters a container of Sidemount" in enter(container, "--as=editor")
    for told in (enter(own, "--as=editor"), enter(container)):
        assert "does not have a host assigned" in told


def _may_edit(namespace: str) -> tuple[Json, Json]:
    """Return what lets somebody change pods, enter them, and nothing else. No controller is there who would fill in the usual roles."""
    api, metadata = "rbac.authorization.k8s.io", {"name": "editor", "namespace": namespace}
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["pods/exec", "pods/attach"], "verbs": ["create", "get"]},
    ]
    binding = {
        "roleRef": {"apiGroup": api, "kind": "Role", "name": "editor"},
        "subjects": [{"apiGroup": api, "kind": "User", "name": "editor"}],
    }
    return (
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": metadata, **binding},
    )


def _in(found: Json, namespace: str) -> Json:
    moved = copy.deepcopy(found)
    moved["metadata"] = {**moved["metadata"], "namespace": namespace}
    return moved
