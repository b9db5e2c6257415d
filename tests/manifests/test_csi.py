"""What the CSI manifests have to say, whatever else they say: read as files."""

from typing import Any

import pytest
import yaml

from csi.settings import parse_settings
from sidemount.host.facts_manifests import parse_fact
from sidemount.model.driver_class import DriverClass
from sidemount.model.names import CSI_DRIVER
from tests.manifests.files import MANIFESTS, Json, csi_controller, csi_node, objects, pod_spec

_KUBELET = "/var/lib/kubelet"
# k8s.io/kubernetes/test/e2e/storage/framework/testdriver.go, v1.37: any other is passed over in silence.
_CAPABILITIES = {
    *(
        "persistence",
        "block",
        "fsGroup",
        "volumeMountGroup",
        "exec",
        "snapshotDataSource",
        "snapshotMetadata",
    ),
    *("groupSnapshot", "pvcDataSource", "multipods", "RWX", "controllerExpansion", "nodeExpansion"),
    *("offlineExpansion", "onlineExpansion", "volumeLimits", "singleNodeVolume", "topology", "capacity"),
    *(
        "FSResizeFromSourceNotSupported",
        "readWriteOncePod",
        "multiplePVsSameID",
        "capReadOnlyMany",
        "seLinuxMount",
    ),
}


def _container(workload: Json, name: str) -> Json:
    (found,) = (each for each in pod_spec(workload)["containers"] if each["name"] == name)
    return dict(found)


def _settings(workload: Json, name: str) -> Any:
    service, *arguments = _container(workload, name)["args"]
    assert service == "csi"
    variables = {each["name"]: each.get("value", "n1") for each in _container(workload, name).get("env", ())}
    return parse_settings(arguments, variables)


def test_the_driver_is_not_attached_and_files_get_the_group_of_the_pod() -> None:
    """S4-06."""
    (driver,) = objects("CSIDriver")
    assert driver["metadata"]["name"] == CSI_DRIVER
    assert driver["metadata"]["labels"]["security.kubernetes.io/csi-ephemeral-volume-profile"] == "restricted"
    spec = driver["spec"]
    assert (spec["attachRequired"], spec["fsGroupPolicy"]) == (False, "File")
    assert (spec["podInfoOnMount"], spec["requiresRepublish"]) == (True, True)
    assert set(spec["volumeLifecycleModes"]) == {"Persistent", "Ephemeral"}
    assert "tokenRequests" not in spec


def test_every_target_root_is_mounted_where_mounts_reach_the_node() -> None:
    """S0-03, S4-09."""
    settings = _settings(csi_node(), "node")
    mounts = _container(csi_node(), "node")["volumeMounts"]
    for root in (*settings.target_roots, settings.kubelet_dir):
        around = [each for each in mounts if f"{root}/".startswith(f"{each['mountPath']}/")]
        assert [each.get("mountPropagation") for each in around] == ["Bidirectional"], root
    volumes = {each["name"]: each["hostPath"]["path"] for each in pod_spec(csi_node())["volumes"]}
    # kubelet, its pods and we mean the same by a path.
    assert all(volumes[each["name"]] == each["mountPath"] for each in mounts)
    assert _container(csi_node(), "node")["securityContext"]["privileged"] is True
    assert settings.registration_dir == f"{_KUBELET}/plugins_registry"
    assert settings.endpoint == f"{_KUBELET}/plugins/{CSI_DRIVER}/csi.sock"
    assert not settings.state_dir.startswith(_KUBELET)


def test_the_node_service_runs_everywhere_and_is_rolled_in_parts() -> None:
    """S4-34: every daemon is in a mount pod of its own, so no mount is lost when the plugin is replaced."""
    assert _settings(csi_node(), "node").launcher == "pod"
    assert csi_node()["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    spec = pod_spec(csi_node())
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "system-node-critical"
    assert not spec.get("hostNetwork", False)
    assert not spec.get("hostPID", False)


def test_the_controller_has_the_companions_and_each_elects_a_leader() -> None:
    """S4-07. None of them is privileged, and all speak to one socket."""
    spec = pod_spec(csi_controller())
    images = {each["name"]: each["image"] for each in spec["containers"]}
    assert images["provisioner"] == "registry.k8s.io/sig-storage/csi-provisioner:v6.4.0"
    assert images["resizer"] == "registry.k8s.io/sig-storage/csi-resizer:v2.3.0"
    settings = _settings(csi_controller(), "controller")
    for each in spec["containers"]:
        assert not each["securityContext"].get("privileged", False)
        assert each["securityContext"]["capabilities"]["drop"] == ["ALL"]
        if each["name"] != "controller":
            assert f"--csi-address={settings.endpoint}" in each["args"]
            assert "--leader-election" in each["args"]
    mounted = {each["mountPath"] for each in _container(csi_controller(), "controller")["volumeMounts"]}
    assert set(settings.pools) <= mounted
    # The node service opens them for the daemons, which see nothing of the node.
    assert set(settings.pools) <= {
        each["mountPath"] for each in _container(csi_node(), "node")["volumeMounts"]
    }


def test_metrics_are_served_to_who_is_labelled_to_read_them() -> None:
    (policy,) = (
        each
        for each in objects("NetworkPolicy")
        if each["metadata"]["namespace"] == "sidemount-csi" and each["metadata"]["name"] == "csi"
    )
    (ingress,) = policy["spec"]["ingress"]
    for workload, name in ((csi_node(), "node"), (csi_controller(), "controller")):
        address = _settings(workload, name).metrics_address
        assert address is not None
        assert [each["containerPort"] for each in _container(workload, name)["ports"]] == [address[1]]
        assert [each["port"] for each in ingress["ports"]] == [address[1]]
    labels = {"sidemount.io/metrics": "allowed"}
    assert ingress["from"] == [{"namespaceSelector": {"matchLabels": labels}}]


def test_who_scrapes_finds_the_pods_by_their_labels() -> None:
    services = {
        each["metadata"]["labels"]["app.kubernetes.io/name"]: each
        for each in objects("Service")
        if each["metadata"]["namespace"] == "sidemount-csi"
    }
    monitored = {
        each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        for each in objects("ServiceMonitor")
        if each["metadata"]["namespace"] == "sidemount-csi"
    }
    assert monitored == services.keys() == {"csi-node-metrics", "csi-controller-metrics"}
    for workload, name in ((csi_node(), "csi-node-metrics"), (csi_controller(), "csi-controller-metrics")):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert services[name]["spec"]["selector"].items() <= labels.items()


def test_snapshots_are_a_switch_of_their_own() -> None:
    """S4-05."""
    without = (MANIFESTS / "components/csi").glob("*.yaml")
    assert all("snapshot" not in path.read_text() for path in without)
    assert (MANIFESTS / "components/snapshots/kustomization.yaml").exists()


@pytest.mark.parametrize("name", ["sidemount", "sidemount-immediate"])
def test_storage_classes_grow_and_name_a_pool_of_a_class_and_of_the_controller(name: str) -> None:
    """S4-07."""
    (found,) = (each for each in objects("StorageClass") if each["metadata"]["name"] == name)
    assert (found["provisioner"], found["allowVolumeExpansion"]) == (CSI_DRIVER, True)
    (pooled,) = (each for each in objects("FuseDriverClass") if each["metadata"]["name"] == "pooled")
    fact = parse_fact(pooled)
    assert isinstance(fact, DriverClass)
    assert fact.name == found["parameters"]["class"]
    assert found["parameters"]["source"] in pooled["spec"]["sources"]
    pool = found["parameters"]["source"].removeprefix("dir://")
    assert pool in _settings(csi_controller(), "controller").pools


def test_mount_pods_are_where_their_level_is_enforced() -> None:
    settings = _settings(csi_node(), "node")
    levels = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in objects("Namespace")
    }
    assert levels[settings.mount_namespace] == "restricted"
    assert levels[settings.mount_namespace_baseline] == "baseline"


def test_the_driver_description_is_of_our_classes() -> None:
    told = yaml.safe_load((MANIFESTS / "csi/test-driver.yaml").read_text())
    claims = told["DriverInfo"]["Capabilities"]
    (driver,) = objects("CSIDriver")
    used = _named("StorageClass", told["StorageClass"]["FromExistingClassName"])
    cut = _named("VolumeSnapshotClass", told["SnapshotClass"]["FromExistingClassName"])
    assert {told["DriverInfo"]["Name"], used["provisioner"], cut["driver"]} == {CSI_DRIVER}
    assert claims["controllerExpansion"] == used["allowVolumeExpansion"]
    assert claims["seLinuxMount"] == driver["spec"]["seLinuxMount"]
    assert claims["capacity"] == driver["spec"]["storageCapacity"]
    assert claims["fsGroup"] == (driver["spec"]["fsGroupPolicy"] == "File")
    assert set(claims) == _CAPABILITIES


def _named(kind: str, name: str) -> Json:
    (found,) = (each for each in objects(kind) if each["metadata"]["name"] == name)
    return found
