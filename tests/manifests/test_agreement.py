"""The files of `manifests/` agree with each other and with the programs that they start."""

import argparse
import os
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from certs.rotate_settings import add_rotate_arguments, parse_rotate_settings
from e2e.cluster.service_images import service_reference
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL, OWN_NAMESPACE, SYSTEM_NAMESPACES
from tests.manifests.files import (
    MANIFESTS,
    ROOT,
    Json,
    deployment,
    documents,
    objects,
    observer,
    of_base,
    pod_spec,
    sidecar,
)
from webhook.injection_settings import InjectionSettings
from webhook.observer.settings import parse_settings as parse_observer_settings
from webhook.settings import Settings, parse_settings

_LABELS = {"app.kubernetes.io/name": "webhook"}
_OF_OBSERVER = {"app.kubernetes.io/name": "observer"}
_WORKLOADS = (deployment(), sidecar(), observer())


def _containers() -> Iterator[Json]:
    for workload in _WORKLOADS:
        yield from pod_spec(workload).get("initContainers", ())
        yield from pod_spec(workload).get("containers", ())


def _webhook() -> Json:
    (found,) = pod_spec(deployment())["containers"]
    return dict(found)


def _webhook_settings() -> Settings:
    container = _webhook()
    program, *arguments = container["args"]
    assert program == "webhook"
    return parse_settings(arguments, {each["name"]: each["value"] for each in container["env"]})


def _rotate_arguments() -> argparse.Namespace:
    (container,) = pod_spec(sidecar())["initContainers"]
    program, command, *arguments = container["args"]
    assert (program, command) == ("certs", "rotate")
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_rotate_arguments(parser)
    return parser.parse_args(arguments)


def test_every_document_has_a_kind_and_every_file_is_used() -> None:
    """A file that no kustomization names would be a rule that nobody applies."""
    used = set()
    for path, document in documents():
        assert {"apiVersion", "kind"} <= document.keys(), path
        if path.name == "kustomization.yaml":
            used.add(path)
            named = [*document.get("resources", ()), *document.get("components", ())]
            named += [each["path"] for each in document.get("patches", ()) if "path" in each]
            for generator in document.get("configMapGenerator", ()):
                named += [each.partition("=")[2] for each in generator["files"]]
            for name in named:
                assert (path.parent / name).exists(), f"{path} names {name}"
                used.add((path.parent / name).resolve())
    # What a person gives to Kubernetes' own tests is no object.
    used.add(MANIFESTS / "csi/test-driver.yaml")
    assert {path for path in MANIFESTS.rglob("*") if path.is_file()} <= used


def test_every_flag_and_variable_is_one_that_the_programs_take() -> None:
    settings = _webhook_settings()
    assert settings.port == 8443
    rotate = parse_rotate_settings(_rotate_arguments(), identity="x")
    assert (rotate.listen, rotate.probe) == (("0.0.0.0", 8081), ("127.0.0.1", 8443))
    assert rotate.directory == settings.tls_cert.parent == settings.tls_key.parent


def test_the_certificate_is_for_the_service_that_api_servers_call() -> None:
    rotate = parse_rotate_settings(_rotate_arguments(), identity="x")
    service = of_base("Service", rotate.policy.service.name)
    assert rotate.policy.service.namespace == service["metadata"]["namespace"] == OWN_NAMESPACE
    (port,) = service["spec"]["ports"]
    (listening,) = _webhook()["ports"]
    assert (port["targetPort"], listening["name"], listening["containerPort"]) == ("https", "https", 8443)
    configurations = [*objects("MutatingWebhookConfiguration"), *objects("ValidatingWebhookConfiguration")]
    assert {each["metadata"]["name"] for each in configurations} == set(rotate.configurations)
    for configuration in configurations:
        path = "/mutate" if configuration["kind"].startswith("Mutating") else "/validate"
        for entry in configuration["webhooks"]:
            assert entry["clientConfig"]["service"] == {
                "namespace": OWN_NAMESPACE,
                "name": service["metadata"]["name"],
                "path": path,
                "port": port["port"],
            }
    (certificate,) = (each for each in objects("Certificate") if not each["spec"].get("isCA"))
    assert certificate["spec"]["dnsNames"] == [rotate.policy.service.host]
    assert certificate["spec"]["secretName"] == rotate.secret


def test_one_image_of_the_release_for_everything() -> None:
    """What is injected is what injects: keeper, daemon and webhook are of one release."""
    images = {container["image"] for container in _containers()}
    assert images == {service_reference()} == {_webhook_settings().injection.sidecar_image}
    assert InjectionSettings().sidecar_image == service_reference(), (
        "the command line says what the cluster does"
    )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert service_reference().endswith(f":{version}")


def test_selectors_select_the_webhook_s_pods() -> None:
    template = deployment()["spec"]["template"]
    assert template["metadata"]["labels"] == _LABELS
    selectors = [
        deployment()["spec"]["selector"]["matchLabels"],
        of_base("PodDisruptionBudget", "webhook")["spec"]["selector"]["matchLabels"],
        of_base("NetworkPolicy", "webhook")["spec"]["podSelector"]["matchLabels"],
        *(
            service["spec"]["selector"]
            for service in objects("Service")
            if not _is_of_observer(service) and service["metadata"]["namespace"] == OWN_NAMESPACE
        ),
    ]
    for workload in objects("Deployment"):
        spreads = pod_spec(workload).get("topologySpreadConstraints", ())
        selectors += [spread["labelSelector"]["matchLabels"] for spread in spreads]
    assert all(selector == _LABELS for selector in selectors)


def test_selectors_select_the_observer_s_pods() -> None:
    template = observer()["spec"]["template"]
    assert template["metadata"]["labels"].items() >= _OF_OBSERVER.items()
    (policy,) = (each for each in objects("NetworkPolicy") if _is_of_observer(each))
    (service,) = (each for each in objects("Service") if _is_of_observer(each))
    selectors = [observer()["spec"]["selector"], policy["spec"]["podSelector"]]
    assert all(selector == {"matchLabels": _OF_OBSERVER} for selector in selectors)
    assert service["spec"]["selector"] == _OF_OBSERVER


def _is_of_observer(each: Json) -> bool:
    return str(each["metadata"]["name"]).startswith("observer")


def test_the_observer_is_started_with_flags_that_it_takes() -> None:
    (container,) = pod_spec(observer())["containers"]
    program, *arguments = container["args"]
    assert program == "webhook.observer"
    settings = parse_observer_settings(arguments)
    assert (settings.port, settings.namespace) == (container["ports"][0]["containerPort"], OWN_NAMESPACE)
    (lease,) = (
        name
        for role in objects("Role")
        if role["metadata"]["name"] == "observer"
        for rule in role["rules"]
        for name in rule.get("resourceNames", ())
    )
    assert settings.lease == lease


def test_ports_that_are_named_exist() -> None:
    ports = {
        port["name"]: port["containerPort"] for container in _containers() for port in container["ports"]
    }
    assert ports == {"https": 8443, "certs": 8081, "metrics": 8080}
    # A sidecar's port goes by its number: not every release looks for names there.
    reachable = {"https", ports["certs"], "metrics", ports["metrics"]}
    for container in _containers():
        own = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in own
    for policy in objects("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= reachable
    for service in objects("Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= reachable
    for monitor in objects("ServiceMonitor"):
        (scraped,) = (
            each
            for each in objects("Service")
            if each["metadata"]["labels"] == monitor["spec"]["selector"]["matchLabels"]
        )
        assert [each["port"] for each in monitor["spec"]["endpoints"]] == [
            port["name"] for port in scraped["spec"]["ports"]
        ]


def test_every_object_of_a_namespace_is_in_ours() -> None:
    outside = {
        "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "FuseDriverClass", "MutatingWebhookConfiguration", "Namespace",
        "PriorityClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
        "CSIDriver", "StorageClass", "VolumeSnapshotClass",
    }  # fmt: skip
    # Where node service and controller are, and mount pods.
    of_csi = {"sidemount-csi", "sidemount-mounts", "sidemount-mounts-baseline"}
    for path, document in documents():
        if path.name != "kustomization.yaml" and document["kind"] not in outside:
            ours = of_csi if path.parent.name in ("csi", "csi-monitoring", "snapshots") else {OWN_NAMESPACE}
            assert document["metadata"]["namespace"] in ours, (path, document["kind"])


def test_our_namespace_allows_nothing_privileged() -> None:
    namespace = of_base("Namespace", OWN_NAMESPACE)
    labels = namespace["metadata"]["labels"]
    assert set(labels.values()) == {"restricted"}
    assert {f"pod-security.kubernetes.io/{mode}" for mode in ("enforce", "audit", "warn")} == set(labels)


@pytest.mark.parametrize("container", list(_containers()), ids=lambda container: str(container["name"]))
def test_every_container_is_confined_bounded_and_probed(container: Json) -> None:
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for amounts in (container["resources"]["requests"], container["resources"]["limits"]):
        assert amounts.keys() == {"cpu", "memory"}
    assert container["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize("workload", [deployment(), observer()], ids=["webhook", "observer"])
def test_the_pod_runs_as_nobody_in_particular(workload: Json) -> None:
    security = pod_spec(workload)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert 0 not in (security["runAsUser"], security["runAsGroup"], security.get("fsGroup"))


def test_a_rollout_and_an_end_lose_nothing() -> None:
    """The webhook itself takes calls after SIGTERM until API servers know; kubelet must not cut that short."""
    spec, settings = deployment()["spec"], _webhook_settings()
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    assert spec["replicas"] == 2
    resigning_s = 3
    assert pod_spec(deployment())["terminationGracePeriodSeconds"] >= settings.grace_s + resigning_s + 5
    assert settings.lame_duck_s >= 5
    budget = of_base("PodDisruptionBudget", "webhook")["spec"]
    assert budget["maxUnavailable"] < spec["replicas"]


def test_probes_ask_what_the_programs_answer() -> None:
    paths = {
        container["name"]: {
            probe: container[probe]["httpGet"]["path"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
        }
        for container in _containers()
    }
    assert paths == {
        "certs": {"startupProbe": "/startz", "readinessProbe": "/readyz", "livenessProbe": "/livez"},
        "webhook": {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"},
        "observer": {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"},
    }
    (native,) = pod_spec(sidecar())["initContainers"]
    assert native["restartPolicy"] == "Always"


def test_the_key_is_on_no_disk() -> None:
    (volume,) = pod_spec(sidecar())["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    mounts = {
        container["name"]: mount
        for container in _containers()
        for mount in container.get("volumeMounts", ())
        if mount["name"] == volume["name"]
    }
    assert mounts["webhook"]["readOnly"] is True
    assert "readOnly" not in mounts["certs"]


def test_every_selector_of_namespaces_leaves_out_the_system_s_and_ours() -> None:
    system = {OWN_NAMESPACE, *SYSTEM_NAMESPACES}
    selectors = [
        entry["namespaceSelector"]
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for entry in of_base(kind, "sidemount")["webhooks"]
        if entry["rules"][0]["scope"] == "Namespaced"
    ]
    selectors += [
        policy["spec"]["matchConstraints"]["namespaceSelector"]
        for policy in objects("ValidatingAdmissionPolicy")
    ]
    for selector in selectors:
        first, *more = selector["matchExpressions"]
        assert (first["key"], first["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        assert set(first["values"]) == system
        assert more in ([], [{"key": INJECTION_LABEL, "operator": "In", "values": [INJECTION_ENABLED]}])


def test_every_policy_is_bound_and_refuses() -> None:
    bound = {each["spec"]["policyName"]: each["spec"]["validationActions"] for each in objects("ValidatingAdmissionPolicyBinding")}  # fmt: skip
    assert bound == {each["metadata"]["name"]: ["Deny"] for each in objects("ValidatingAdmissionPolicy")}


def test_no_secret_is_in_the_manifests() -> None:
    assert objects("Secret") == []
    for _, document in documents():
        text: Any = yaml.safe_dump(document)
        assert "BEGIN " not in text
        assert "password" not in text.lower()


def test_the_page_on_installation_names_every_overlay() -> None:
    page = (ROOT / "docs/install.md").read_text()
    for name in os.listdir(MANIFESTS / "overlays"):
        assert f"manifests/overlays/{name}" in page or f"`{name}`" in page
