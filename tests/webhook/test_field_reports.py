"""What broke other injectors in the field, by kind of fault. Each name or id cites project and thread."""

import copy
import json
import time
from typing import Any

import pytest

from sidemount.model.amounts import amount
from sidemount.model.driver_class_manifest import parse_driver_class
from sidemount.model.facts import ClusterFacts
from tests.webhook.admission import (
    GOLDEN,
    Json,
    assert_only_ours_changed,
    golden_facts,
    mutated,
    pod_with,
    validated,
)
from tests.webhook.test_golden import CASES, load
from webhook.injection_settings import InjectionSettings
from webhook.review import PATCH_TYPE

# A. Lost fields, typed round trips ------------------------------------------------------------------------------


def _at(pod: Json, pointer: str) -> Any:
    """Return what a JSON Pointer leads to, None if it leads nowhere."""
    node: Any = pod
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


@pytest.mark.parametrize("case", CASES)
def test_pod_identity175_no_operation_replaces_a_list_or_object_of_the_users(case: str) -> None:
    pod, namespace = load(case)
    volumes = {f"/spec/volumes/{index}" for index, _ in enumerate(pod["spec"].get("volumes") or [])}
    for operation in mutated(pod, namespace).patch:
        there = _at(pod, operation["path"])
        is_item = operation["op"] == "add" and operation["path"].rpartition("/")[2].isdigit()
        # A volume that CSI delivers gets another source; its other fields are written back as they were.
        if not is_item and operation["path"] not in volumes:
            assert not isinstance(there, dict | list) or not there, operation["path"]


def _unknown_everywhere(value: Any) -> Any:
    if isinstance(value, dict):
        return {**{key: _unknown_everywhere(item) for key, item in value.items()}, "x-unknown": {"kept": [1]}}
    return [_unknown_everywhere(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", [case for case in CASES if (GOLDEN / case / "patch.json").exists()])
def test_kruise1334_unknown_fields_at_every_level_survive(case: str) -> None:
    pod, namespace = load(case)
    annotations = pod["metadata"].get("annotations")
    claims = [v.get("persistentVolumeClaim") for v in pod["spec"].get("volumes") or []]
    pod = _unknown_everywhere(pod)
    pod["metadata"].pop("labels", None)
    if annotations is not None:
        pod["metadata"]["annotations"] = annotations
    for volume, claim in zip(pod["spec"].get("volumes") or [], claims, strict=True):
        if claim:
            volume["persistentVolumeClaim"] = claim
        elif volume.keys() == {"name", "x-unknown"}:
            # A field that nobody knows beside no source could be a source.
            volume["emptyDir"] = {}
    pod["spec"].pop("nodeSelector", None)
    reviewed = mutated(pod, namespace)
    assert reviewed.patch, reviewed.response
    assert_only_ours_changed(pod, reviewed.after)


def test_istio54562_containers_of_earlier_webhooks_stay_where_they_are() -> None:
    pod = pod_with(
        initContainers=[{"name": "added-first", "image": "a"}, {"name": "users", "image": "u"}],
        containers=[{"name": "added", "image": "a"}, {"name": "app", "image": "i"}],
    )
    after = mutated(pod).after["spec"]
    assert [c["name"] for c in after["containers"]] == ["added", "app"]
    assert [c["name"] for c in after["initContainers"]][-2:] == ["added-first", "users"]


LIMITS: list[Any] = [
    None,
    {},
    {"limits": None},
    {"limits": {}},
    {"limits": {"cpu": "1"}},
    {"limits": {"cpu": 0}},
    {"limits": {"cpu": "0"}, "requests": {"cpu": None}},
    {"limits": {"cpu": ""}},
    {"limits": {"cpu": 2}},
    {"limits": {"cpu": 0.5}},
]


@pytest.mark.parametrize("resources", LIMITS, ids=str)
@pytest.mark.parametrize(
    "pod_resources", [None, {"limits": {"cpu": 4, "memory": "4Gi"}}], ids=["plain", "bounded"]
)
def test_istio58805_init_containers_with_odd_resources(resources: Any, pod_resources: Any) -> None:
    init = {"name": "init", "image": "i", "resources": resources}
    pod = pod_with(initContainers=[init], resources=pod_resources)
    reviewed = mutated(pod)
    assert reviewed.patch, reviewed.response
    assert reviewed.after["spec"]["initContainers"][-1] == init


# B. JSON patch mechanics -------------------------------------------------------------------------------------------

LISTED = {"sidemount.io/volumes": '[{"name": "train", "source": "dir:///srv/d", "mountPath": "/mnt"}]'}
BARE: list[Any] = [
    pytest.param({"volumes": None}, id="volumes-null"),
    pytest.param({"volumes": []}, id="volumes-empty"),
    pytest.param({"initContainers": None}, id="init-null"),
    pytest.param({"initContainers": []}, id="init-empty"),
    pytest.param({"imagePullSecrets": None}, id="secrets-null"),
    pytest.param({"imagePullSecrets": []}, id="secrets-empty"),
    pytest.param({"securityContext": None}, id="security-null"),
    pytest.param({"automountServiceAccountToken": False}, id="no-token"),
]


@pytest.mark.parametrize("spec", BARE)
@pytest.mark.parametrize("mounts", ["absent", None, []], ids=["mounts-absent", "mounts-null", "mounts-empty"])
def test_pod_identity17_pods_without_parents(spec: Json, mounts: Any) -> None:
    container: Json = {"name": "app", "image": "i"}
    if mounts != "absent":
        container["volumeMounts"] = mounts
    pod = pod_with(LISTED, **{"containers": [container], **spec})
    if "volumes" not in spec:
        del pod["spec"]["volumes"]
    after = mutated(pod).after
    assert [m["mountPath"] for m in after["spec"]["containers"][0]["volumeMounts"]] == ["/mnt"]
    assert {v["name"] for v in after["spec"]["volumes"]} >= {"sidemount", "sidemount-run"}
    assert mutated(after).patch == []


@pytest.mark.parametrize(
    "metadata", ["absent", None, {}, {"annotations": None}, {"annotations": {}}], ids=str
)
def test_pod_identity17_pods_without_annotations_get_them(metadata: Any) -> None:
    pod: Json = {
        "spec": {
            "containers": [{"name": "app", "image": "i", "volumeMounts": [{"name": "m", "mountPath": "/m"}]}],
            "volumes": [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}],
        }
    }
    if metadata != "absent":
        pod["metadata"] = metadata
    after = mutated(pod).after
    assert "sidemount.io/status" in after["metadata"]["annotations"]
    assert mutated(after).patch == []


def test_expedia42_several_volumes_onto_an_empty_list() -> None:
    listed = [{"name": f"v{n}", "source": f"dir:///srv/{n}", "mountPath": f"/v{n}"} for n in range(3)]
    pod = pod_with(
        {"sidemount.io/volumes": json.dumps(listed)}, volumes=[], containers=[{"name": "app", "image": "i"}]
    )
    after = mutated(pod).after["spec"]
    assert len(after["volumes"]) == 6
    assert len(after["containers"][0]["volumeMounts"]) == 3


def test_kk122755_the_patch_type_is_the_only_one_that_is_known() -> None:
    assert PATCH_TYPE == "JSONPatch"


OTHER_VOLUMES: list[Any] = [
    {"hostPath": {"path": "/"}},
    {"configMap": {"name": "c"}},
    {"secret": {"secretName": "s"}},
    {"projected": {"sources": []}},
    {"persistentVolumeClaim": {"claimName": "block"}},
    {"csi": {"driver": "other.example"}},
    {"ephemeral": {"volumeClaimTemplate": {}}},
    {"nfs": {"server": "s", "path": "/"}},
    {"image": {"reference": "r"}},
    {"sourceOfTheFuture": {}},
]


@pytest.mark.parametrize("source", OTHER_VOLUMES, ids=lambda source: next(iter(source)))
def test_kk67134_a_volume_of_another_type_is_not_turned_into_ours(source: Json) -> None:
    reviewed = mutated(pod_with(volumes=[{"name": "train", **source}]))
    assert reviewed.reason == "NameCollision"
    assert next(iter(source)) in reviewed.message
    assert "emptyDir" in reviewed.message


# C. Shapes of requests, cost ------------------------------------------------------------------------------------------


def test_istio34799_five_thousand_variables_cost_no_more_than_a_small_pod() -> None:
    pod = pod_with()
    pod["spec"]["containers"][0]["env"] = [{"name": f"V{n}", "value": f"value {n}"} for n in range(5000)]
    began = time.thread_time()
    reviewed = mutated(pod)
    elapsed_s = time.thread_time() - began
    assert reviewed.patch
    # Encoding, decoding and applying in this test are most of it.
    assert elapsed_s < 1.0
    assert len(reviewed.patch) == len(mutated(pod_with()).patch)


def test_vault139_no_assumption_about_a_token_volume() -> None:
    for spec in ({"serviceAccountName": ""}, {"automountServiceAccountToken": False}):
        assert mutated(pod_with(**spec)).patch


# D. Order and coexistence ---------------------------------------------------------------------------------------------


def test_keptn2937_no_scheduling_gate_is_ever_added() -> None:
    after = mutated(pod_with(schedulingGates=[{"name": "x"}])).after
    assert after["spec"]["schedulingGates"] == [{"name": "x"}]
    assert "schedulingGates" not in mutated(pod_with()).after["spec"]


class OldCluster:
    """Facts of a cluster without native sidecars."""

    def __init__(self, *, csi: bool) -> None:
        self._csi = frozenset({"csi.sidemount.io"}) if csi else frozenset()

    def __getattr__(self, name: str) -> Any:
        return getattr(golden_facts(), name)

    def cluster(self) -> ClusterFacts:
        return ClusterFacts(server_version=(1, 28), csi_drivers=self._csi, csi_inline_drivers=self._csi)


def test_istio52245_before_native_sidecars_nothing_is_injected_that_cannot_run() -> None:
    s3 = {"volume.sidemount.io/train": "s3://b/k"}
    refused = mutated(pod_with(s3), facts=OldCluster(csi=False))
    assert not refused.outcome.allowed
    assert "1.29" in refused.message
    fallen_back = mutated(pod_with(s3), facts=OldCluster(csi=True))
    assert fallen_back.outcome.volumes[0].delivery == "csi"
    assert "initContainers" not in fallen_back.after["spec"]


# FUSE volumes in pods ------------------------------------------------------------------------------------------------


def test_J1372_init_containers_and_containers_are_both_converted() -> None:
    mount = {"name": "train", "mountPath": "/data"}
    after = mutated(pod_with(initContainers=[{"name": "init", "image": "i", "volumeMounts": [mount]}])).after
    for container in (after["spec"]["initContainers"][-1], after["spec"]["containers"][0]):
        assert container["volumeMounts"][0]["name"] == "sidemount"


@pytest.mark.parametrize(
    "name",
    ["keeper", "sidemount", "sidemount-run", "sidemount-keeper", "sidemount-no-token", "sidemount-source-x"],
)
def test_F2150_a_volume_may_not_have_a_name_of_ours(name: str) -> None:
    asked = mutated(
        pod_with({f"volume.sidemount.io/{name}": "dir:///srv/d"}, volumes=[{"name": name, "emptyDir": {}}])
    )
    assert not asked.outcome.allowed
    assert name in asked.message
    if name != "keeper":
        beside = pod_with()
        beside["spec"]["volumes"].append({"name": name, "emptyDir": {}})
        assert mutated(beside).reason == "NameCollision"


def test_F2150_names_of_ours_never_collide_with_each_other() -> None:
    long = "x" * 63
    names = ["run", "no-token", "source-a", "a", "secret-a", "cache-a", long, long[:-1] + "y"]
    annotations = {f"volume.sidemount.io/{name}": "s3://b/k?secret=s" for name in names}
    annotations["volume.sidemount.io/a"] = "dir:///srv/a"
    pod = pod_with(
        annotations,
        volumes=[{"name": name, "emptyDir": {}} for name in names],
        containers=[{"name": "app", "image": "i"}],
    )
    spec = mutated(pod).after["spec"]
    for section in ("volumes", "initContainers"):
        found = [item["name"] for item in spec[section]]
        assert len(set(found)) == len(found)
        assert all(len(name) <= 63 for name in found)


def test_J1553_gatekeeper1353_admission_has_no_side_effect() -> None:
    facts = golden_facts()
    before = (facts.generation(), dict(facts.driver_classes()))
    answers = [mutated(pod_with(), dry_run=dry_run).response for dry_run in (True, False) for _ in range(50)]
    assert all(answer == answers[0] for answer in answers)
    assert (facts.generation(), dict(facts.driver_classes())) == before


def test_G28_defaults_are_schedulable_on_a_small_node() -> None:
    after = mutated(pod_with()).after
    containers = after["spec"]["initContainers"]
    for name, most in (("cpu", "100m"), ("memory", "128Mi")):
        assert sum(amount(c["resources"]["requests"][name]) for c in containers) <= amount(most)
    assert not any("ephemeral-storage" in c["resources"]["requests"] for c in containers)


@pytest.mark.parametrize(
    "spec",
    [
        {"priorityClassName": "batch", "preemptionPolicy": "Never", "priority": 1},
        {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
        {"overhead": {"cpu": "250m"}, "runtimeClassName": "nvidia"},
        {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"gpu": "h200"}},
        {"activeDeadlineSeconds": 5, "restartPolicy": "Never"},
    ],
    ids=["J677-priority", "G428-hostNetwork", "overhead", "placement", "deadline"],
)
def test_what_does_not_concern_us_is_untouched(spec: Json) -> None:
    after = mutated(pod_with(**spec)).after["spec"]
    assert {key: after[key] for key in spec} == spec


def test_S0_01_a_driver_that_is_not_ours_leaves_the_pod_as_it_is() -> None:
    pod = pod_with(
        {},
        volumes=[
            {"name": "a", "persistentVolumeClaim": {"claimName": "block"}},
            {"name": "b", "nfs": {"server": "s", "path": "/"}},
            {"name": "c", "hostPath": {"path": "/srv"}},
            {"name": "d", "csi": {"driver": "secrets-store.csi.k8s.io", "volumeAttributes": {}}},
        ],
    )
    before = copy.deepcopy(pod)
    assert mutated(pod).patch == []
    assert mutated(pod).after == before
    assert validated(pod).outcome.allowed


def test_S0_02_the_same_input_takes_the_same_path_and_a_reload_takes_effect() -> None:
    class Reloaded(OldCluster):
        def cluster(self) -> ClusterFacts:
            return golden_facts().cluster()

        def driver_class(self, name: str) -> Any:
            manifest = {
                "apiVersion": "sidemount.io/v1alpha1",
                "kind": "FuseDriverClass",
                "metadata": {"name": "s3"},
                "spec": {
                    "deliveries": ["csi"],
                    "sources": ["s3://**"],
                    "namespaces": {},
                    "filesystem": "objects",
                },
            }
            return parse_driver_class(manifest)

        def driver_classes(self) -> Any:
            return {"s3": self.driver_class("s3")}

    pod = pod_with({"volume.sidemount.io/train": "s3://b/k"})
    assert [mutated(pod).outcome.volumes[0].delivery for _ in range(3)] == ["sidecar"] * 3
    assert mutated(pod, facts=Reloaded(csi=True)).outcome.volumes[0].delivery == "csi"
    assert mutated(pod).outcome.volumes[0].delivery == "sidecar"


def test_S2_03_S2_09_a_reference_to_an_undeclared_volume_is_refused() -> None:
    reviewed = mutated(pod_with({"volume.sidemount.io/other": "dir:///srv/d"}))
    assert reviewed.reason == "UnknownVolume"
    assert "other" in reviewed.message


@pytest.mark.parametrize(
    "sub_path", ["/abs", "..", "a/../b", "a//b", "./a", "a/.", "a/", "a\u0000b", "a\nb", "x" * 4097]
)
def test_S2_08_a_mounts_sub_path_is_checked_before_any_mount(sub_path: str) -> None:
    mounts = [{"name": "train", "mountPath": "/data", "subPath": sub_path}]
    reviewed = mutated(pod_with(containers=[{"name": "app", "image": "i", "volumeMounts": mounts}]))
    assert not reviewed.outcome.allowed
    assert "subPath" in reviewed.message


@pytest.mark.parametrize(
    ("mount", "told"),
    [
        ({"mountPropagation": "Bidirectional"}, "Bidirectional"),
        ({"recursiveReadOnly": "Enabled", "readOnly": True}, "recursiveReadOnly"),
        ({"recursiveReadOnly": "IfPossible", "readOnly": True}, "recursiveReadOnly"),
    ],
)
@pytest.mark.parametrize("source", ["dir:///srv/d", "cache://b/x"], ids=["sidecar", "csi"])
def test_S2_31_mounts_that_cannot_be_are_refused_with_the_reason(mount: Json, told: str, source: str) -> None:
    mounts = [{"name": "train", "mountPath": "/data", **mount}]
    pod = pod_with(
        {"volume.sidemount.io/train": source},
        containers=[{"name": "a", "image": "i", "volumeMounts": mounts}],
    )
    reviewed = mutated(pod)
    assert reviewed.reason == "Unsupported"
    assert told in reviewed.message


def test_a_volume_is_no_block_device() -> None:
    devices = [{"name": "train", "devicePath": "/dev/x"}]
    reviewed = mutated(pod_with(containers=[{"name": "app", "image": "i", "volumeDevices": devices}]))
    assert reviewed.reason == "Unsupported"
    assert "volumeDevices" in reviewed.message


def test_S2_16_S2_39_an_unsupplied_volume_leaves_the_pod_byte_for_byte() -> None:
    pod = pod_with({"sidemount.io/volumes": '[{"name": "train", "optional": true, "mountPath": "/x"}]'})
    reviewed = mutated(pod)
    assert reviewed.reason == "NothingSupplied"
    assert reviewed.patch == []
    assert mutated(pod, "plain").outcome.allowed


def test_S2_34_existing_volumes_can_be_switched_off() -> None:
    listed = '[{"name": "train", "existing": {"driver": "csi.sidemount.io", "handle": "models", "accessMode": "READ_ONLY_MANY"}}]'
    pod = pod_with({"sidemount.io/volumes": listed})
    assert mutated(pod).patch
    off = mutated(pod, settings=InjectionSettings(existing_enabled=False))
    assert off.reason == "ExistingDisabled"
    assert "disabled" in off.message
