"""Beside other people's webhooks, on a real API server: every pod ends with its volume, or is refused with the reason."""

import base64
import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.authority import create_authority, issue_serving
from certs.hosts import parse_hosts
from certs.pem import render_certificate, render_key
from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.namespaces import entering_network
from e2e.cluster.places import SOURCE
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.images import busybox
from e2e.tests.peer import HABITS
from e2e.tests.replicas import CONFIGURATIONS, api_server, open_namespace, replicas_on

_ADDRESS, _PORT = "10.99.1.1", 9443
_EFFECT_S = 60.0
_LABEL = "peer.example.com/"
_ORDERS = ("before", "after")
_POLICIES = ("Never", "IfNeeded")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """An API server with one replica of ours, and the others before and after it."""
    with (
        api_server("e2e-peers") as cluster,
        replicas_on(cluster, tmp_path_factory.mktemp("replicas")) as ours,
    ):
        ours.trust_static()
        ours.service.route([ours.started()])
        with _peers(cluster, tmp_path_factory.mktemp("peers")):
            yield cluster


@contextmanager
def _peers(cluster: RunningCluster, directory: Path) -> Iterator[None]:
    now = datetime.now(UTC)
    authority = create_authority("peers", now=now)
    serving = issue_serving(authority, parse_hosts((_ADDRESS,)), now=now)
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(render_certificate(serving.certificate))
    key.write_bytes(render_key(serving.key))
    within = entering_network(cluster.pid)
    subprocess.run([*within, "ip", "address", "add", f"{_ADDRESS}/32", "dev", "lo"], check=True, timeout=30)
    argv = [
        *within, sys.executable, "-m", "e2e.tests.peer", _ADDRESS, str(_PORT), str(certificate), str(key),
    ]  # fmt: skip
    process = subprocess.Popen(argv, cwd=SOURCE)
    try:
        bundle = base64.b64encode(render_certificate(authority.certificate)).decode()
        cluster.kubectl().apply(*(_configuration(order, bundle) for order in _ORDERS))
        for order in _ORDERS:
            assert wait_for(lambda order=order: _is_called(cluster, order), _EFFECT_S)  # type: ignore[misc]
        yield
    finally:
        process.kill()
        process.wait()


def _configuration(order: str, bundle: str) -> Json:
    """Return a configuration that is called before or after ours, which are sorted by name; by a pod's labels it chooses its habit."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": {"before": "a-peer", "after": "z-peer"}[order]},
        "webhooks": [
            {
                "name": f"{habit}.{policy.lower()}.peer.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 30,
                "reinvocationPolicy": policy,
                "clientConfig": {"url": f"https://{_ADDRESS}:{_PORT}/{habit}", "caBundle": bundle},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["pods"],
                        "operations": ["CREATE"],
                    }
                ],
                "objectSelector": {
                    "matchLabels": {
                        f"{_LABEL}habit": habit,
                        f"{_LABEL}order": order,
                        f"{_LABEL}policy": policy,
                    }
                },
            }
            for habit in HABITS
            for policy in _POLICIES
        ],
    }


def _is_called(cluster: RunningCluster, order: str) -> bool:
    pod = _pod("default", "mark", order, "Never")
    pod["metadata"]["annotations"] = {}
    try:
        created = _create(cluster, pod)
    except KubectlFailed:
        return False
    return "peer.example.com/was-here" in created["metadata"].get("annotations", {})


@pytest.fixture(scope="module")
def ml(server: RunningCluster) -> str:
    """A namespace that is open to injection."""
    return open_namespace(server)


def _pod(namespace: str, habit: str, order: str, policy: str) -> Json:
    mount = {"name": "books", "mountPath": "/data"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "reader",
            "namespace": namespace,
            "annotations": {"volume.sidemount.io/books": "dir:///srv/books?readOnly=true"},
            "labels": {f"{_LABEL}habit": habit, f"{_LABEL}order": order, f"{_LABEL}policy": policy},
        },
        "spec": {
            "initContainers": [{"name": "prepare", "image": busybox(), "volumeMounts": [mount]}],
            "containers": [{"name": "app", "image": busybox(), "volumeMounts": [mount]}],
            "volumes": [{"name": "books", "emptyDir": {}}],
        },
    }


def _create(cluster: RunningCluster, pod: Json) -> Json:
    """Create a pod, in a dry run of the server's, and return it. Raises KubectlFailed."""
    text = cluster.kubectl().run("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(pod))
    found: Json = json.loads(text)
    return found


def _faults(pod: Json) -> list[str]:
    """Return what would keep a pod from having its volume. Knows nothing of our code: only what a kubelet would do with it."""
    init = pod["spec"]["initContainers"]
    names = [container["name"] for container in init]
    ours = ["sidemount-keeper", "sidemount-books"]
    if not set(ours) <= set(names):
        return [f"only {names}"]
    faults = []
    keeper, daemon = (init[names.index(name)] for name in ours)
    faults += [
        f"{name} is no sidecar" for name in ours if init[names.index(name)].get("restartPolicy") != "Always"
    ]
    if not keeper["securityContext"].get("privileged"):
        faults.append("the keeper has no rights")
    shared = [mount for mount in keeper["volumeMounts"] if mount.get("mountPropagation") == "Bidirectional"]
    if len(shared) != 1:
        return [*faults, "the keeper shares nothing"]
    if not {mount["name"] for mount in daemon["volumeMounts"]} >= {"sidemount-run", "sidemount-source-books"}:
        faults.append("the daemon lacks a mount")
    if "startupProbe" not in daemon:
        faults.append("nobody waits for the daemon")
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    shows = 0
    for container in (*init, *pod["spec"]["containers"]):
        if container["name"] in ours:
            continue
        mounts = container.get("volumeMounts", ())
        views = [mount for mount in mounts if mount["name"] == shared[0]["name"]]
        shows += bool(views)
        for mount in views:
            if mount.get("mountPropagation") != "HostToContainer" or not mount.get("subPath", "").startswith(
                "books."
            ):
                faults.append(f"{container['name']} would not see the mount: {mount}")
        if views and container in init and init.index(container) < names.index("sidemount-books"):
            faults.append(f"{container['name']} starts too early")
        faults += [
            f"{container['name']} sees an empty directory"
            for m in mounts
            if m["name"] in ("books", "library")
        ]
        faults += [f"there is no volume {m['name']}" for m in mounts if m["name"] not in volumes]
    if shows < 2:
        faults.append(f"{shows} containers show the volume")
    return faults


_CARRIES, _DOES_NOT_ASK = "carries its volume", "asks for nothing"
_NO_SIDECAR = "may not be set for init containers without restartPolicy=Always"
_NOT_OURS = "HandMade: .* is not the one that we would add"
_UNDONE = "NotInjected: .* another webhook took them away"
_NOT_ASKED = "the pod asks for no volume"
_ALWAYS = (_CARRIES,) * 4
# Called once before ours, before ours and again if others change something, once after ours, after ours and again.
_ENDS = {
    # The API server's own rules speak first: nobody of ours is asked any more.
    "old-type": (_CARRIES, _CARRIES, _CARRIES, _NO_SIDECAR),
    "strip-volumes": (_CARRIES, _NOT_OURS, _NOT_OURS, _NOT_OURS),
    "strip-propagation": (_CARRIES, _NOT_OURS, _NOT_OURS, _NOT_OURS),
    "strip-sidecars": (_CARRIES, _UNDONE, _UNDONE, _UNDONE),
    # What was taken away before anybody of ours saw it was never asked for.
    "strip-annotations": (_DOES_NOT_ASK, _DOES_NOT_ASK, _NOT_ASKED, _NOT_ASKED),
    "strip-privileges": (_CARRIES, _NOT_OURS, _NOT_OURS, _NOT_OURS),
    "rename-volume": ("UnknownVolume",) * 4,
    "first": _ALWAYS,
    "sidecar": _ALWAYS,
    "move-mounts": _ALWAYS,
    "add-mounts": _ALWAYS,
    "mesh": _ALWAYS,
    "resize": _ALWAYS,
    "mark": _ALWAYS,
}


@pytest.mark.parametrize("habit", HABITS)
def test_beside_others_a_pod_has_its_volume_or_is_refused_with_the_reason(
    server: RunningCluster, ml: str, habit: str
) -> None:
    """GCSF#322, istio#54562, istio#53920, kuma#13791, otel#3349, autoscaler#7641: never silently wrong."""
    cases = [(order, policy) for order in _ORDERS for policy in _POLICIES]
    for (order, policy), expected in zip(cases, _ENDS[habit], strict=True):
        came_of_it = _came_of(server, _pod(ml, habit, order, policy))
        assert re.search(expected, came_of_it), (order, policy, came_of_it)


def _came_of(server: RunningCluster, pod: Json) -> str:
    """Return what was said when the pod was refused, or what the pod is like that was created."""
    try:
        created = _create(server, pod)
    except KubectlFailed as fault:
        return fault.reason
    names = [container["name"] for container in created["spec"]["initContainers"]]
    if names == ["prepare"] and "volume.sidemount.io/books" not in created["metadata"].get("annotations", {}):
        return _DOES_NOT_ASK
    faults = _faults(created)
    return f"silently wrong: {faults}" if faults else _CARRIES


@pytest.mark.parametrize("habit", ["strip-sidecars", "none"])
def test_where_our_webhooks_have_no_say_the_policy_has(server: RunningCluster, ml: str, habit: str) -> None:
    """Nobody looks again after the other one, or ours are not called at all: the API server refuses by itself."""
    api = server.kubectl()
    kept = [_without_status(api.get(kind, "sidemount") or {}) for kind in CONFIGURATIONS]
    first = copy.deepcopy(kept[0])
    for entry in first["webhooks"]:
        entry["reinvocationPolicy"] = "Never"
    api.delete(CONFIGURATIONS[1], "sidemount")
    if habit == "none":
        api.delete(CONFIGURATIONS[0], "sidemount")
    else:
        api.apply(first)
    try:
        refused = "ValidatingAdmissionPolicy 'sidemount-pods' .*NotInjected"
        assert wait_for(
            lambda: re.search(refused, _came_of(server, _pod(ml, habit, "after", "Never"))), _EFFECT_S
        ), _came_of(server, _pod(ml, habit, "after", "Never"))
    finally:
        api.apply(*kept)
        back = wait_for(lambda: _came_of(server, _pod(ml, "none", "after", "Never")) == _CARRIES, _EFFECT_S)
    assert back


def _without_status(found: Json) -> Json:
    """Return an object as it can be applied anew."""
    for name in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
        found["metadata"].pop(name, None)
    return found
