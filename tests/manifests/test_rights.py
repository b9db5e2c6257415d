"""The service account may make exactly the calls that the code makes, and each rule says why."""

from collections.abc import Iterator
from itertools import pairwise

import pytest

from sidemount.host.live_kinds import KINDS
from tests.manifests.files import MANIFESTS, Json, csi_controller, deployment, documents, observer, pod_spec
from tests.manifests.files import objects as of_kind
from webhook.observer.observed_store import KINDS as OBSERVED

_BASE = MANIFESTS / "base/rbac.yaml"
_CERTS = MANIFESTS / "components/rotated-certificates/rbac.yaml"
_OBSERVER = MANIFESTS / "components/observer/rbac.yaml"
_NODE = MANIFESTS / "components/csi/node-rbac.yaml"
_CONTROLLER = MANIFESTS / "components/csi/controller-rbac.yaml"
_SNAPSHOTS = MANIFESTS / "components/snapshots/rbac.yaml"
_ALL = (_BASE, _CERTS, _OBSERVER, _NODE, _CONTROLLER, _SNAPSHOTS)
# Of which service account each role is.
_ACCOUNTS = {
    "observer": ("observer", "sidemount-system"),
    "sidemount-observer": ("observer", "sidemount-system"),
    "csi-node": ("node", "sidemount-csi"),
    "sidemount-csi-node": ("node", "sidemount-csi"),
    "csi-controller": ("controller", "sidemount-csi"),
    "sidemount-csi-controller": ("controller", "sidemount-csi"),
    "sidemount-csi-snapshots": ("controller", "sidemount-csi"),
}


def _rules(kind: str, name: str) -> list[Json]:
    (found,) = (each for each in of_kind(kind) if each["metadata"]["name"] == name)
    rules: list[Json] = found["rules"]
    return rules


def _granted(rules: list[Json]) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ("",))
    }


def test_the_webhook_reads_exactly_the_kinds_that_it_follows() -> None:
    """S2-14."""
    granted = {
        each
        for each in _granted(_rules("ClusterRole", "sidemount-webhook"))
        if each[2] in ("get", "list", "watch")
    }
    followed = {
        (kind.api_version.rpartition("/")[0] if "/" in kind.api_version else "", kind.plural, verb, "")
        for kind in KINDS
        for verb in ("get", "list", "watch")
    }
    assert granted == followed


def test_the_webhook_writes_nothing() -> None:
    """sideEffects: None."""
    verbs = {each[2] for each in _granted(_rules("ClusterRole", "sidemount-webhook"))}
    assert verbs == {"get", "list", "watch"}


def test_rotation_may_call_what_docs_certificates_lists() -> None:
    """By name wherever a name can limit it: a creation has none yet, and a list is of all."""
    assert _granted(_rules("Role", "webhook-certs")) == {
        ("", "secrets", "get", "webhook-certs"),
        ("", "secrets", "update", "webhook-certs"),
        ("", "secrets", "create", ""),
        ("coordination.k8s.io", "leases", "get", "webhook-certs"),
        ("coordination.k8s.io", "leases", "update", "webhook-certs"),
        ("coordination.k8s.io", "leases", "create", ""),
        ("discovery.k8s.io", "endpointslices", "list", ""),
    }
    assert _granted(_rules("ClusterRole", "sidemount-webhook-certs")) == {
        ("admissionregistration.k8s.io", f"{kind}webhookconfigurations", verb, "sidemount")
        for kind in ("mutating", "validating")
        for verb in ("get", "patch")
    }


def test_the_observer_may_find_pods_read_their_logs_and_tell_of_them() -> None:
    """It changes nothing that runs: no pod, no class but its status."""
    assert _granted(_rules("Role", "observer")) == {
        ("coordination.k8s.io", "leases", "get", "observer"),
        ("coordination.k8s.io", "leases", "update", "observer"),
        ("coordination.k8s.io", "leases", "create", ""),
    }
    followed = {
        (kind.api_version.rpartition("/")[0], kind.plural, verb, "")
        for kind in OBSERVED
        for verb in ("list", "watch")
    }
    assert _granted(_rules("ClusterRole", "sidemount-observer")) == followed | {
        ("", "pods/log", "get", ""),
        ("", "events", "get", ""),
        ("", "events", "create", ""),
        ("", "events", "patch", ""),
        ("sidemount.io", "fusedriverclasses/status", "patch", ""),
    }


def test_the_node_service_reads_classes_namespaces_and_pods_and_makes_mount_pods_alone() -> None:
    """S2-14. Besides Events it writes nowhere but in the namespaces of mount pods, and reads no Secret."""
    assert _granted(_rules("ClusterRole", "sidemount-csi-node")) == {
        ("sidemount.io", "fusedriverclasses", "list", ""),
        ("sidemount.io", "fusedriverclasses", "watch", ""),
        ("", "namespaces", "list", ""),
        ("", "namespaces", "watch", ""),
        ("", "pods", "list", ""),
        ("", "events", "get", ""),
        ("", "events", "create", ""),
        ("", "events", "patch", ""),
    }
    roles = [each for each in of_kind("Role") if each["metadata"]["name"] == "csi-node"]
    assert {each["metadata"]["namespace"] for each in roles} == {
        "sidemount-mounts",
        "sidemount-mounts-baseline",
    }
    for role in roles:
        assert _granted(role["rules"]) == {
            ("", "pods", verb, "") for verb in ("get", "list", "watch", "create", "delete")
        }


def test_no_rule_has_a_wildcard() -> None:
    for kind in ("Role", "ClusterRole"):
        for role in of_kind(kind):
            for rule in role["rules"]:
                assert not any(
                    "*" in part for part in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
                )


def test_every_binding_binds_a_role_that_is_there_to_the_account_that_runs() -> None:
    roles = {
        (each["kind"], each["metadata"]["name"]) for kind in ("Role", "ClusterRole") for each in of_kind(kind)
    }
    bound = set()
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(kind):
            role = binding["roleRef"]["name"]
            bound.add((binding["roleRef"]["kind"], role))
            account, namespace = _ACCOUNTS.get(role, ("webhook", "sidemount-system"))
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": account, "namespace": namespace}
            ]
    assert bound == roles
    workloads = (deployment(), observer(), *of_kind("DaemonSet"), csi_controller())
    accounts = {pod_spec(workload)["serviceAccountName"] for workload in workloads}
    assert accounts == {account["metadata"]["name"] for account in of_kind("ServiceAccount")}


def _lines() -> Iterator[tuple[str, str]]:
    for path in _ALL:
        lines = path.read_text().splitlines()
        for before, line in pairwise(lines):
            if line.startswith("- apiGroups"):
                yield before, line


def test_every_rule_says_why() -> None:
    found = list(_lines())
    assert len(found) == sum(
        len(document["rules"]) for path, document in documents() if path in _ALL and "rules" in document
    )
    for before, line in found:
        same_reason = before.startswith("  verbs")
        assert before.startswith("# ") or (same_reason and "coordination" in line), f"no reason before {line}"


@pytest.mark.parametrize("path", _ALL, ids=lambda path: path.parent.name)
def test_no_right_reaches_other_people_s_secrets(path: object) -> None:
    """S2-14."""
    for found, document in documents():
        if found == path and document["kind"] == "ClusterRole":
            assert all("secrets" not in rule["resources"] for rule in document["rules"])
