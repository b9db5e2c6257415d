"""Whole admissions through a real server over TLS, by an API server that checks everything, among other people's webhooks."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhook import other_webhooks
from tests.webhook.fake_apiserver import (
    TOKEN_PATH,
    Admitted,
    CallFailed,
    FakeApiServer,
    InternalError,
    Manifest,
    Rejected,
    RemoteWebhook,
    Webhook,
)
from tests.webhook.reviews import make_pod
from tests.webhook.running import RunningServer, running_server

MUTATE, VALIDATE = "m.sidemount.io", "v.sidemount.io"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("rounds")) as started:
        yield started


@pytest.fixture
def ours(server: RunningServer) -> Iterator[Webhook]:
    remote = RemoteWebhook(server.port, "/mutate", server.files.bundle)
    yield Webhook(name=MUTATE, call=remote)
    remote.close()


@pytest.fixture
def validating(server: RunningServer) -> Iterator[Webhook]:
    remote = RemoteWebhook(server.port, "/validate", server.files.bundle)
    yield Webhook(name=VALIDATE, call=remote, operations=("CREATE", "UPDATE"))
    remote.close()


@pytest.fixture
def cluster(ours: Webhook, validating: Webhook) -> FakeApiServer:
    return FakeApiServer(mutating=[ours], validating=[validating])


def _init_names(pod: Manifest) -> list[str]:
    return [container["name"] for container in pod["spec"].get("initContainers") or ()]


def _container(pod: Manifest, name: str) -> Manifest:
    every = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    found: list[Manifest] = [container for container in every if container["name"] == name]
    assert len(found) == 1, f"{name} is there {len(found)} times"
    return found[0]


def _is_injected(admitted: Admitted) -> None:
    """Check what has to hold of an injected pod whoever else had a hand in it."""
    pod = admitted.pod
    for name in ("sidemount-keeper", "sidemount-train"):
        container = _container(pod, name)
        assert container["restartPolicy"] == "Always"
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]
        tokens = [mount for mount in container["volumeMounts"] if mount["mountPath"] == TOKEN_PATH]
        assert [mount["name"] for mount in tokens] == ["sidemount-no-token"]
    names = _init_names(pod)
    assert names.index("sidemount-keeper") < names.index("sidemount-train")
    for container in pod["spec"]["containers"]:
        for mount in container.get("volumeMounts") or ():
            assert mount["name"] != "train", "an app still mounts its empty directory"


def _with_others(ours: Webhook, validating: Webhook, *others: Webhook, first: bool = False) -> FakeApiServer:
    mutating = [*others, ours] if first else [ours, *others]
    return FakeApiServer(mutating=mutating, validating=[validating])


def _other(name: str, *, reinvoked: bool = True) -> Webhook:
    return Webhook(
        name=name, call=other_webhooks.patching(getattr(other_webhooks, name)), reinvoked=reinvoked
    )


def test_a_controllers_pod_without_name_and_namespace_is_injected(cluster: FakeApiServer) -> None:
    """istio#8636, topolvm#54, J#644, F#2453: names and namespaces come from the request."""
    admitted = cluster.create(make_pod(), namespace="ml")
    _is_injected(admitted)
    assert admitted.event(MUTATE).mutated
    assert admitted.event(MUTATE).annotations["decision"] == "SidecarPreferred"
    assert len(admitted.warnings) == 1
    assert len(admitted.warnings[0]) <= 120


def test_everything_of_the_users_stays(cluster: FakeApiServer) -> None:
    """G#20: containers[0] is still the user's; names, order and mounts too."""
    pod = make_pod()
    pod["spec"]["containers"].append({"name": "second", "image": "s:1", "volumeMounts": []})
    admitted = cluster.create(pod)
    containers = admitted.pod["spec"]["containers"]
    assert [container["name"] for container in containers] == ["app", "second"]
    (mount,) = [m for m in containers[0]["volumeMounts"] if m["mountPath"] == "/data"]
    assert mount["readOnly"] is True
    assert mount["mountPropagation"] == "HostToContainer"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"automountServiceAccountToken": False}, id="no-token"),
        pytest.param({"initContainers": None}, id="null-init-containers"),
        pytest.param({"initContainers": []}, id="no-init-containers"),
        pytest.param({"initContainers": [{"name": "i", "image": "i:1"}]}, id="init-container"),
        pytest.param({"securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}, id="non-root"),
        pytest.param({"hostNetwork": True}, id="host-network"),
    ],
)
def test_pods_of_every_shape_are_patched_without_a_missing_path(
    cluster: FakeApiServer, spec: Manifest
) -> None:
    """eks-pod-identity#17, network-resources-injector#140, vault-k8s#139, istio#58805."""
    _is_injected(cluster.create(make_pod(**spec)))


def test_pods_that_ask_for_nothing_are_left_alone(cluster: FakeApiServer) -> None:
    admitted = cluster.create(make_pod(source=None))
    assert not admitted.event(MUTATE).mutated
    assert admitted.warnings == []
    assert _init_names(admitted.pod) == []


def test_a_refusal_reaches_the_client_with_reason_and_code(cluster: FakeApiServer) -> None:
    with pytest.raises(
        Rejected, match=r'admission webhook "m\.sidemount\.io" denied the request: '
    ) as raised:
        cluster.create(make_pod("gopher://nowhere"))
    assert 400 <= raised.value.code < 500
    with pytest.raises(Rejected, match="NamespaceNotEnabled"):
        cluster.create(make_pod(), namespace="plain")


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", "sidemount-system"])
def test_system_namespaces_are_never_touched(cluster: FakeApiServer, namespace: str) -> None:
    cluster.validating = []
    assert not cluster.create(make_pod(), namespace=namespace).event(MUTATE).mutated


@pytest.mark.parametrize("key", ["kubernetes.io/config.mirror", "kubernetes.io/config.source"])
def test_mirror_pods_are_never_touched(cluster: FakeApiServer, key: str) -> None:
    """kube-image-keeper#560, k/k#105844."""
    pod = make_pod()
    pod["metadata"]["annotations"][key] = "file" if key.endswith("source") else "abc"
    assert not cluster.create(pod).event(MUTATE).mutated


def test_a_dry_run_is_answered_the_same(cluster: FakeApiServer) -> None:
    """gatekeeper#1353, istio#23485."""
    _is_injected(cluster.create(make_pod(), dry_run=True))


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize", "binding", "eviction", "status"])
def test_subresources_are_allowed_without_a_patch(
    cluster: FakeApiServer, ours: Webhook, subresource: str
) -> None:
    """k/k#92557, windows-gmsa#187: whoever matches pods/* must not break kubectl debug."""
    pod = cluster.create(make_pod()).pod
    ours.subresources, ours.operations = True, ("CREATE", "UPDATE", "CONNECT")
    for operation in ours.operations:
        admitted = cluster.review(operation, pod, old=pod, subresource=subresource)
        assert not admitted.event(MUTATE).mutated


def test_updates_and_deletions_get_no_patch(cluster: FakeApiServer, ours: Webhook) -> None:
    pod = cluster.create(make_pod()).pod
    ours.operations = ("UPDATE", "DELETE")
    assert not cluster.review("UPDATE", pod, old=pod).event(MUTATE).mutated
    cluster.review("DELETE", None, old=pod)


def test_annotations_cannot_be_changed_after_creation(cluster: FakeApiServer) -> None:
    """S2-05."""
    pod = cluster.create(make_pod()).pod
    changed = {**pod, "metadata": {**pod["metadata"], "annotations": dict(pod["metadata"]["annotations"])}}
    changed["metadata"]["annotations"]["volume.sidemount.io/train"] = "dir:///srv/other"
    with pytest.raises(Rejected, match="Immutable"):
        cluster.review("UPDATE", changed, old=pod)
    labelled = {**pod, "metadata": {**pod["metadata"], "labels": {"new": "label"}}}
    cluster.review("UPDATE", labelled, old=pod)


@pytest.mark.parametrize("first", [False, True], ids=["after-us", "before-us"])
@pytest.mark.parametrize("name", ["insist_on_first", "add_container", "resize_ours", "nothing"])
def test_other_webhooks_and_ours_converge(ours: Webhook, validating: Webhook, name: str, first: bool) -> None:
    """istio#53920, kuma#13791, GCSF#313, otel#3349, kyverno#17282, autoscaler#7641: both are satisfied in the end."""
    cluster = _with_others(ours, validating, _other(name), first=first)
    admitted = cluster.create(make_pod())
    _is_injected(admitted)
    again = cluster.review("CREATE", admitted.pod)
    assert not any(event.mutated for event in again.events), "a further round changes something"


def test_a_stripped_restart_policy_is_repaired_in_the_second_round(
    ours: Webhook, validating: Webhook
) -> None:
    """GCSF#322, eks-pod-identity-webhook#208, kops#16802."""
    cluster = _with_others(ours, validating, _other("strip_restart_policy", reinvoked=False))
    admitted = cluster.create(make_pod())
    _is_injected(admitted)
    assert admitted.event(MUTATE, 1).mutated
    paths = [operation["path"] for operation in admitted.event(MUTATE, 1).patch]
    assert paths
    assert all(path.endswith("/restartPolicy") for path in paths)


def test_what_strips_after_our_last_round_is_refused_not_run(ours: Webhook, validating: Webhook) -> None:
    """GCSF#322: the pod would start without its volumes."""
    cluster = _with_others(ours, validating, _other("strip_restart_policy"), first=True)
    with pytest.raises(Rejected, match="NotInjected"):
        cluster.create(make_pod())


def test_resources_that_another_webhook_set_are_kept(ours: Webhook, validating: Webhook) -> None:
    """autoscaler#7641: no eviction loop between two opinions."""
    admitted = _with_others(ours, validating, _other("resize_ours")).create(make_pod())
    assert _container(admitted.pod, "sidemount-train")["resources"]["requests"]["memory"] == "96Mi"


def test_a_container_that_came_later_gets_its_mount_and_nothing_else_changes(
    ours: Webhook, validating: Webhook
) -> None:
    """otel#3349, gatekeeper#1550."""
    admitted = _with_others(ours, validating, _other("add_container")).create(make_pod())
    late = [
        mount for mount in _container(admitted.pod, "late")["volumeMounts"] if mount["mountPath"] == "/late"
    ]
    assert late[0]["name"] == "sidemount"
    touched = {operation["path"].split("/")[2] for operation in admitted.event(MUTATE, 1).patch}
    assert touched <= {"containers", "annotations"}


def test_no_token_and_no_foreign_defaults_break_the_second_round(ours: Webhook, validating: Webhook) -> None:
    """linkerd#2750, istio#58805: LimitRange and ServiceAccount run again after us; our containers already have everything."""
    cluster = _with_others(ours, validating, _other("add_container"))
    cluster.container_defaults = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "5m"}}
    admitted = cluster.create(make_pod())
    _is_injected(admitted)
    keeper = _container(admitted.pod, "sidemount-keeper")
    assert keeper["resources"]["limits"]["memory"] != "1Gi"


def test_unknown_fields_survive_at_every_level(server: RunningServer) -> None:
    """kruise#1334, rollouts#165: a patch of single operations, never a re-serialised pod."""
    remote = RemoteWebhook(server.port, "/mutate", server.files.bundle)
    pod = make_pod()
    pod["spec"]["topologySpreadConstraints"] = [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
    ]
    admitted = FakeApiServer(mutating=[Webhook(name=MUTATE, call=remote)]).create(pod)
    remote.close()
    assert admitted.pod["spec"]["topologySpreadConstraints"][0]["minDomains"] == 2
    for operation in admitted.event(MUTATE).patch:
        assert operation["op"] in ("add", "replace", "test")
        assert operation["path"] not in ("/spec", "/spec/containers", "/spec/volumes", "/metadata")


def test_a_privileged_keeper_is_refused_where_pod_security_forbids_it(cluster: FakeApiServer) -> None:
    """SREGym#887: Pod Security judges after us; the namespace's label would have told us."""
    cluster.pod_security = "restricted"
    with pytest.raises(Rejected, match="PodSecurity"):
        cluster.create(make_pod())


def test_a_burst_of_pods_is_admitted_without_a_failure(cluster: FakeApiServer) -> None:
    """J#1553: 300 pods at once; nothing is written, so nothing conflicts."""
    for number in range(300):
        pod = make_pod()
        pod["metadata"]["name"] = f"trainer-{number}"
        assert cluster.create(pod).event(MUTATE).mutated


@pytest.mark.parametrize("name", ["webhook.sidemount-system.svc", "localhost"])
def test_the_certificate_holds_the_services_name(server: RunningServer, name: str) -> None:
    remote = RemoteWebhook(server.port, "/mutate", server.files.bundle, name=name)
    FakeApiServer(mutating=[Webhook(name=MUTATE, call=remote)]).create(make_pod())
    remote.close()
    wrong = RemoteWebhook(server.port, "/mutate", server.files.bundle, name="other.default.svc")
    with pytest.raises(CallFailed, match="certificate"):
        FakeApiServer(mutating=[Webhook(name=MUTATE, call=wrong)]).create(make_pod())


def _answering(**response: object) -> Webhook:
    def call(review: bytes, timeout_s: int) -> bytes:
        uid = json.loads(review)["request"]["uid"]
        given = {"uid": uid, "allowed": True, **response}
        return json.dumps(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": given}
        ).encode()

    return Webhook(name="bad.example", call=call)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        pytest.param({"uid": "other"}, CallFailed, id="uid"),
        pytest.param({"patch": "W10="}, CallFailed, id="patch-without-type"),
        pytest.param({"patchType": "JSONPatch"}, CallFailed, id="type-without-patch"),
        pytest.param({"patch": "W10=", "patchType": "application/json-patch+json"}, CallFailed, id="wrong-type"),
        pytest.param({"patch": "e30=", "patchType": "JSONPatch"}, CallFailed, id="no-list"),
        pytest.param(
            {"patch": "W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL25vIn1d", "patchType": "JSONPatch"}, InternalError, id="missing-path"
        ),
        pytest.param(
            {"patch": "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3NwZWMiLCJ2YWx1ZSI6NX1d", "patchType": "JSONPatch"}, InternalError, id="wrong-kind"
        ),
        pytest.param({"allowed": False}, Rejected, id="denied"),
        pytest.param({"auditAnnotations": {"a/b": "c"}}, AssertionError, id="audit-key"),
        pytest.param({"warnings": ["a\nb"]}, AssertionError, id="warning"),
    ],
)  # fmt: skip
def test_the_fake_api_server_refuses_what_the_real_one_refuses(
    response: Manifest, error: type[Exception]
) -> None:
    """k/k#122755, rancher/webhook#158: a fake that accepts everything proves nothing."""
    with pytest.raises(error):
        FakeApiServer(mutating=[_answering(**response)]).create(make_pod())


def test_volumes_are_there_before_the_users_init_containers(cluster: FakeApiServer) -> None:
    """vault-k8s#53, J#1372: what starts before the user's first container is first in the list, and mounts are rewritten."""
    mount = {"name": "train", "mountPath": "/seed"}
    admitted = cluster.create(
        make_pod(initContainers=[{"name": "seed", "image": "s:1", "volumeMounts": [mount]}])
    )
    assert _init_names(admitted.pod) == ["sidemount-keeper", "sidemount-train", "seed"]
    seeded = [m for m in _container(admitted.pod, "seed")["volumeMounts"] if m["mountPath"] == "/seed"]
    assert seeded[0]["name"] == "sidemount"


def test_our_containers_are_found_wherever_another_webhook_put_them(
    ours: Webhook, validating: Webhook
) -> None:
    """GCSF#313: by name, not at index 0."""
    cluster = _with_others(ours, validating, _other("insist_on_first"), _other("add_container"))
    admitted = cluster.create(make_pod())
    _is_injected(admitted)
    assert _init_names(admitted.pod) == ["istio-proxy", "sidemount-keeper", "sidemount-train"]


@pytest.mark.parametrize("given", [None, "second"])
def test_kubectl_goes_to_the_users_container(cluster: FakeApiServer, given: str | None) -> None:
    """k/k#96986, linkerd#7497, istio#55152."""
    pod = make_pod()
    pod["spec"]["containers"].append({"name": "second", "image": "s:1"})
    key = "kubectl.kubernetes.io/default-container"
    if given is not None:
        pod["metadata"]["annotations"][key] = given
    assert cluster.create(pod).pod["metadata"]["annotations"][key] == (given or "app")


@pytest.mark.parametrize(
    "spec", [{"os": {"name": "windows"}}, {"nodeSelector": {"kubernetes.io/os": "windows"}}]
)
def test_a_windows_pod_is_refused_with_the_reason(cluster: FakeApiServer, spec: Manifest) -> None:
    """dapr#842, dapr#2982, osm#3861."""
    with pytest.raises(Rejected, match="Windows"):
        cluster.create(make_pod(**spec))


def test_a_volume_of_ours_that_the_user_has_too_is_refused_not_merged(cluster: FakeApiServer) -> None:
    """k/k#67134: replacing a volume's source would give it two."""
    pod = make_pod()
    pod["spec"]["volumes"].append({"name": "sidemount", "configMap": {"name": "mine"}})
    with pytest.raises(Rejected, match=r"NameCollision|HandMade"):
        cluster.create(pod)


def test_images_that_a_mirror_serves_already_are_left_alone_by_a_webhook_that_rewrites_them(
    tmp_path: Path,
) -> None:
    """imageswap#11, kops#16802: with the mirror's prefix set here, both webhooks want the same image."""
    with running_server(tmp_path, ["--image-prefix", "mirror.example/"]) as server:
        remotes = [RemoteWebhook(server.port, path, server.files.bundle) for path in ("/mutate", "/validate")]
        cluster = _with_others(
            Webhook(name=MUTATE, call=remotes[0]),
            Webhook(name=VALIDATE, call=remotes[1]),
            _other("swap_images"),
        )
        admitted = cluster.create(make_pod())
        for remote in remotes:
            remote.close()
    _is_injected(admitted)
    assert _container(admitted.pod, "sidemount-keeper")["image"].startswith("mirror.example/")
    assert "mirror.example/mirror.example/" not in str(admitted.pod)
