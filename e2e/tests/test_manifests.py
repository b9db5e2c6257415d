"""`manifests/` on a real API server, without a node: what it takes, whom it would call, and what its policies refuse."""

import copy
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.bring_up import bring_up
from e2e.cluster.errors import MachineLacks
from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.places import SOURCE, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import take_down
from e2e.cluster.waiting import wait_for
from e2e.tests.rendered import (
    MANIFESTS,
    OVERLAYS,
    Answers,
    as_text,
    calling_nobody,
    render,
    stand_in,
    try_all,
)
from sidemount.model.names import OWN_NAMESPACE
from tests.manifests.class_cases import NOT_OF_OUR_TYPE, ONLY_THE_WEBHOOK, manifest, refused_specs
from tests.manifests.matching import called, refusals
from tests.webhook.admission import golden_facts, mutated, pod_with
from tests.webhook.test_golden import CASES, load

_EFFECT_S = 60.0
_MUTATING, _VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
_STAND_INS = (
    ("cert-manager.io", "Issuer", "issuers"),
    ("cert-manager.io", "Certificate", "certificates"),
    ("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
    ("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
)
# Objects that a pod names and that nobody makes here: a pod without them is the same to us.
_NAMES_OF_OTHERS = ("priorityClassName", "priority", "preemptionPolicy", "runtimeClassName", "overhead")
# What no API server takes as a creation: they are there for reviews that come by other ways.
_NEVER_CREATED = ("ephemeral-containers", "null-fields", "odd-annotation-keys")
# The API server's own Pod Security speaks first there.
_HARDENED = "hardened"


@pytest.fixture(scope="module")
def server() -> Iterator[Kubectl]:
    """An API server of the module's own, with the default overlay but for the webhook configurations."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names a cluster whose types and policies are not ours to replace")
    places = places_of("e2e-api")
    try:
        take_down(places)  # what an interrupted run has left
        cluster = bring_up(places, Progress(), api_only=True)
    except MachineLacks as fault:
        pytest.exit(f"e2e: {fault}", returncode=3)
    try:
        api = cluster.kubectl()
        objects = [
            each
            for each in render(api, MANIFESTS / "overlays/default")
            if each["kind"] not in (_MUTATING, _VALIDATING)
        ]
        _apply(api, *objects)
        _apply(api, *(stand_in(*each) for each in _STAND_INS))
        for name, labels in _namespaces().items():
            _apply(
                api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            )
            _apply(
                api,
                {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {"name": "default", "namespace": name},
                },
            )
        served = wait_for(lambda: _is_served(api), _EFFECT_S)
        assert served, cluster.log_tail("kube-apiserver")
        yield api
    finally:
        take_down(places)


def _apply(api: Kubectl, *objects: Json) -> None:
    """Apply as the server does it: nothing is kept in annotations, whose size is bounded."""
    text = as_text(objects)
    api.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=text)


def _is_served(api: Kubectl) -> bool:
    """Tell whether all types are served and the policies are in force."""
    kinds = api.run("api-resources", "-o", "name")
    if not all(f"{plural}.{group}" in kinds for group, _, plural in _STAND_INS):
        return False
    return "fusedriverclasses.sidemount.io" in kinds and bool(
        try_all(api, [_named(pod_with(), "ml", "canary")]).refusals
    )


@cache
def _namespaces() -> Mapping[str, Mapping[str, str]]:
    found = {}
    for name in {load(case)[1] for case in CASES}:
        facts = golden_facts().namespace(name)
        found[name] = dict(facts.labels) if facts is not None else {}
    return found


def _named(pod: Any, namespace: str, name: str) -> Json:
    """Return a pod under another name, without what refers to objects of others."""
    found: Json = copy.deepcopy(pod)
    metadata = {key: value for key, value in found["metadata"].items() if key != "generateName"}
    found["metadata"] = {**metadata, "name": name, "namespace": namespace}
    for key in _NAMES_OF_OTHERS:
        found["spec"].pop(key, None)
    found["spec"].update(serviceAccountName="default", serviceAccount="default")
    return found


@cache
def _golden(*, is_injected: bool) -> dict[str, Json]:
    """Return the golden pods that the webhook lets in, as they are written or as it leaves them."""
    found = {}
    for case in CASES:
        pod, namespace = load(case)
        reviewed = mutated(pod, namespace)
        if reviewed.outcome.allowed and case not in _NEVER_CREATED:
            found[case] = _named(reviewed.after if is_injected else pod, namespace, case)
    return found


def _labels(pod: Json) -> Mapping[str, str]:
    return _namespaces()[pod["metadata"]["namespace"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_accepted(server: Kubectl, overlay: str) -> None:
    """Server-side dry run, with every field known. What lies in a namespace needs that to be there."""
    objects = render(server, MANIFESTS / "overlays" / overlay)
    namespaces = [each for each in objects if each["kind"] == "Namespace"]
    server.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=as_text(namespaces))
    text = as_text(objects)
    printed = server.run(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        text=text,
    )
    assert len(printed.splitlines()) == len(objects)


def test_the_classes_to_begin_with_are_accepted(server: Kubectl) -> None:
    server.run("apply", "--dry-run=server", "--validate=strict", "-k", str(MANIFESTS / "classes"))


def test_the_overlay_of_the_page_on_installation_works(server: Kubectl, tmp_path: Path) -> None:
    """It is outside the tree here, so it names the overlay by its whole path; what runs and what is injected is one image."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (SOURCE / "docs/install.md").read_text(), re.DOTALL)
    overlay = yaml.safe_load(text)
    tree = tmp_path / "manifests"
    tree.symlink_to(MANIFESTS)
    (own := tmp_path / "own").mkdir()
    overlay["resources"] = ["../manifests/overlays/default"]
    (own / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    deployments = {
        each["metadata"]["name"]: each for each in render(server, own) if each["kind"] == "Deployment"
    }
    (observer,) = deployments["observer"]["spec"]["template"]["spec"]["containers"]
    spec = deployments["webhook"]["spec"]["template"]["spec"]
    images = [each["image"] for each in (*spec["initContainers"], *spec["containers"])]
    assert {image.rpartition(":")[0] for image in images} == {"registry.example/sidemount"}
    assert [each["value"] for each in spec["containers"][0]["env"]] == images[1:] == [observer["image"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_of_our_own_pass_the_strictest_pod_security(server: Kubectl, overlay: str) -> None:
    objects = render(server, MANIFESTS / "overlays" / overlay)
    templates = {
        each["metadata"]["name"]: each["spec"]["template"] for each in objects if each["kind"] == "Deployment"
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name, "namespace": OWN_NAMESPACE},
            "spec": template["spec"],
        }
        for name, template in templates.items()
    ]
    answers = try_all(server, pods)
    assert answers.accepted == {"webhook", "observer"}, answers.refusals


def test_classes_are_refused_by_their_type_as_far_as_it_can_say(server: Kubectl) -> None:
    cases = {name: spec for name, spec in refused_specs().items() if name not in NOT_OF_OUR_TYPE}
    numbered = {f"c{number}": name for number, name in enumerate(sorted(cases))}
    answers = try_all(
        server, (manifest(cases[case]["spec"], name) for name, case in numbered.items()), "--validate=strict"
    )
    assert {numbered[name] for name in answers.accepted} == ONLY_THE_WEBHOOK


def test_what_the_webhook_makes_passes_the_policy_and_is_valid(server: Kubectl) -> None:
    """Every golden pod, injected, is a pod that a real API server takes."""
    pods = {
        case: pod
        for case, pod in _golden(is_injected=True).items()
        if pod["metadata"]["namespace"] != _HARDENED
    }
    answers = try_all(server, pods.values(), "--validate=false")
    expected = {case for case, pod in pods.items() if not _refused(pod)}
    assert answers.accepted == expected, "\n".join(answers.refusals)


def _refused(pod: Json) -> bool:
    return bool(refusals("sidemount-pods", pod, pod["metadata"]["namespace"], _labels(pod)))


def test_what_was_not_injected_is_refused_by_the_policy(server: Kubectl) -> None:
    pods = {
        case: pod
        for case, pod in _golden(is_injected=False).items()
        if pod["metadata"]["namespace"] != _HARDENED
    }
    answers = try_all(server, pods.values(), "--validate=false")
    told = "\n".join(answers.refusals)
    refused = {
        case
        for case in pods
        if f"pods \"{case}\" is forbidden: ValidatingAdmissionPolicy 'sidemount-pods'" in told
    }
    assert refused == {case for case, pod in pods.items() if _refused(pod)}
    assert len(refused) > 30
    assert "(NotInjected)" in told


@pytest.fixture
def webhooks(server: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """The server with one webhook configuration, whose calls all fail, and without the policies."""
    objects = render(server, MANIFESTS / "overlays/default")
    (configuration,) = (each for each in objects if each["kind"] == request.param)
    bindings = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    for binding in bindings:
        server.delete(binding["kind"], binding["metadata"]["name"])
    canary = [_named(pod_with(), "ml", "canary")]
    try:
        assert wait_for(lambda: try_all(server, canary).accepted, _EFFECT_S)
        _apply(server, calling_nobody(configuration))
        assert wait_for(lambda: not try_all(server, canary).accepted, _EFFECT_S)
        yield server
    finally:
        server.delete(request.param, "sidemount")
        assert wait_for(lambda: try_all(server, canary).accepted, _EFFECT_S)
        _apply(server, *bindings)
        assert wait_for(lambda: not try_all(server, canary).accepted, _EFFECT_S)


def _failed_calls(answers: Answers, entry: str) -> int:
    return sum(f'failed calling webhook "{entry}"' in line for line in answers.refusals)


def _passed_over(api: Kubectl, entry: str) -> int:
    """Return how many pods were let in although a call for them failed."""
    lines = api.run("get", "--raw", "/metrics").splitlines()
    counts = [
        line
        for line in lines
        if line.startswith("apiserver_admission_webhook_fail_open_count") and f'"{entry}"' in line
    ]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)


@pytest.mark.parametrize("webhooks", [_MUTATING], indirect=True)
def test_only_pods_that_ask_wait_for_a_webhook_that_is_away(webhooks: Kubectl) -> None:
    """And those that use a claim are called for, and let in."""
    pods = _golden(is_injected=False)
    entries = {
        case: called(_MUTATING, pod, pod["metadata"]["namespace"], _labels(pod)) for case, pod in pods.items()
    }
    before = _passed_over(webhooks, "claims.sidemount.io")
    answers = try_all(webhooks, pods.values(), "--validate=false")
    waiting = {case for case, names in entries.items() if names == ["pods.sidemount.io"]}
    assert answers.accepted == pods.keys() - waiting, "\n".join(answers.refusals)
    assert _failed_calls(answers, "pods.sidemount.io") == len(waiting) > 30
    looked_at = sum(names == ["claims.sidemount.io"] for names in entries.values())
    assert _passed_over(webhooks, "claims.sidemount.io") - before == looked_at > 0


@pytest.mark.parametrize("webhooks", [_VALIDATING], indirect=True)
def test_whoever_asks_or_carries_is_validated(webhooks: Kubectl) -> None:
    pods = {
        case: pod
        for case, pod in _golden(is_injected=True).items()
        if pod["metadata"]["namespace"] != _HARDENED
    }
    waiting = {
        case
        for case, pod in pods.items()
        if called(_VALIDATING, pod, pod["metadata"]["namespace"], _labels(pod))
    }
    answers = try_all(webhooks, pods.values(), "--validate=false")
    assert answers.accepted == pods.keys() - waiting, "\n".join(answers.refusals)
    assert _failed_calls(answers, "pods.sidemount.io") == len(waiting) > 30


@pytest.mark.parametrize("webhooks", [_VALIDATING], indirect=True)
def test_an_update_is_validated_if_it_changes_what_a_pod_asks_for(webhooks: Kubectl) -> None:
    plain = _named(pod_with({}), "ml", f"plain-{secrets.token_hex(3)}")
    webhooks.create(plain)
    where = ("annotate", "--namespace=ml", f"pod/{plain['metadata']['name']}", "--dry-run=server")
    try:
        webhooks.run(*where, "example.com/note=x")
        with pytest.raises(KubectlFailed, match=r"failed calling webhook .updates\.sidemount\.io"):
            webhooks.run(*where, "volume.sidemount.io/train=dir:///srv")
    finally:
        webhooks.delete("pod", plain["metadata"]["name"], "ml", "--force", "--grace-period=0")


def test_a_debugging_container_may_not_reach_behind_our_volumes(server: Kubectl) -> None:
    """The mount points may be looked at, from the host's side and read-only."""
    injected = mutated(pod_with()).after
    pod = server.create(_named(injected, "ml", f"debugged-{secrets.token_hex(3)}"))
    look = {"name": "sidemount", "mountPath": "/m", "readOnly": True, "mountPropagation": "HostToContainer"}
    try:
        _debug(server, pod, "debugger", [look])
        for name, mounts in (
            ("debugger", [{**look, "readOnly": False}]),
            ("debugger", [{**look, "name": "sidemount-run"}]),
            ("sidemount-x", []),
        ):
            with pytest.raises(KubectlFailed, match=r"\(HandMade\)"):
                _debug(server, pod, name, mounts)
    finally:
        server.delete("pod", pod["metadata"]["name"], "ml", "--force", "--grace-period=0")


def _debug(api: Kubectl, pod: Json, name: str, mounts: list[Json]) -> None:
    container = {"name": name, "image": "i", "volumeMounts": mounts}
    changed = {**pod, "spec": {**pod["spec"], "ephemeralContainers": [container]}}
    path = f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}/ephemeralcontainers?dryRun=All"
    api.run("replace", "--raw", path, "-f", "-", text=json.dumps(changed))


@pytest.mark.parametrize(
    ("verb", "resource", "more", "is_allowed"),
    [
        ("list", "fusedriverclasses.sidemount.io", (), True),
        ("watch", "persistentvolumeclaims", ("--all-namespaces",), True),
        ("get", "secrets/webhook-certs", (f"--namespace={OWN_NAMESPACE}",), True),
        ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io/sidemount", (), True),
        ("get", "secrets/other", (f"--namespace={OWN_NAMESPACE}",), False),
        ("get", "secrets/webhook-certs", ("--namespace=ml",), False),
        ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io/other", (), False),
        ("list", "pods", ("--all-namespaces",), False),
        ("create", "pods", ("--namespace=ml",), False),
    ],
)  # fmt: skip
def test_the_service_account_may_do_its_work_and_no_more(
    server: Kubectl, verb: str, resource: str, more: tuple[str, ...], is_allowed: bool
) -> None:
    arguments = (
        "auth",
        "can-i",
        verb,
        resource,
        *more,
        f"--as=system:serviceaccount:{OWN_NAMESPACE}:webhook",
    )
    try:
        answer = server.run(*arguments)
    except KubectlFailed:  # exit status 1: no
        answer = "no"
    assert answer.strip() == ("yes" if is_allowed else "no")
