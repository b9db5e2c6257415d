"""What we add to a pod, field by field: rights, credentials, places."""

import json
from typing import Any

import pytest

from sidemount.host.limits import Limits
from sidemount.model.mountspec import decode_keeper_config
from sidemount.model.names import view_name
from tests.webhook.admission import TOKEN_PATH, Json, mutated, pod_with
from webhook.injection_settings import InjectionSettings

S3 = {"volume.sidemount.io/train": "s3://b/k?secret=bucket-keys"}


def container(pod: Json, name: str = "sidemount-train") -> Json:
    """Return one of our containers."""
    found: Json = next(c for c in pod["spec"]["initContainers"] if c["name"] == name)
    return found


def volume(pod: Json, name: str) -> Json:
    """Return a pod volume by name."""
    found: Json = next(v for v in pod["spec"]["volumes"] if v["name"] == name)
    return found


def after(annotations: Json | None = None, settings: InjectionSettings | None = None, **spec: Any) -> Json:
    """Return an injected pod."""
    reviewed = mutated(pod_with(annotations, **spec), settings=settings or InjectionSettings())
    assert reviewed.patch, reviewed.response
    patched: Json = reviewed.after
    return patched


def test_S3_11_only_the_keeper_is_privileged() -> None:
    pod = after()
    keeper = container(pod, "sidemount-keeper")["securityContext"]
    assert keeper == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsGroup": 0,
        "runAsNonRoot": False,
        "runAsUser": 0,
    }
    daemon = container(pod)["securityContext"]
    assert daemon["privileged"] is False
    assert daemon["allowPrivilegeEscalation"] is False
    assert daemon["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"]}
    assert "privileged" not in json.dumps(pod["spec"]["containers"])
    for field in ("hostPID", "hostNetwork", "hostIPC"):
        assert field not in pod["spec"]


def test_a_daemon_without_files_of_others_is_not_root() -> None:
    context = container(after(S3))["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsGroup": 65532,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_F2500_nothing_of_the_pods_security_context_is_inherited() -> None:
    inherited = {
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "Localhost", "localhostProfile": "x"},
        "appArmorProfile": {"type": "Localhost", "localhostProfile": "x"},
        "seLinuxOptions": {"type": "app_t", "level": "s0:c1,c2"},
    }
    pod = after(S3, securityContext=inherited)
    for name, selinux in (("sidemount-keeper", "spc_t"), ("sidemount-train", "container_t")):
        own = container(pod, name)["securityContext"]
        assert inherited.keys() <= own.keys(), name
        assert own["seLinuxOptions"] == {"type": selinux, "level": "s0:c1,c2"}
        same = {key for key in inherited if own[key] == inherited[key]}
        assert same == ({"runAsNonRoot"} if name == "sidemount-train" else set())
    assert pod["spec"]["securityContext"] == inherited


def test_the_mount_carries_the_pods_selinux_label() -> None:
    pod = after(S3, securityContext={"seLinuxOptions": {"level": "s0:c1,c2"}})
    config = decode_keeper_config(container(pod, "sidemount-keeper")["env"][0]["value"])
    assert config.mounts[0].spec.selinux_context == "system_u:object_r:container_file_t:s0:c1,c2"
    plain = decode_keeper_config(container(after(S3), "sidemount-keeper")["env"][0]["value"])
    assert plain.mounts[0].spec.selinux_context == ""


@pytest.mark.parametrize("level", ["s0 c1", 's0"', "s0\n", "${x}", "ü"])
def test_an_odd_selinux_level_is_refused(level: str) -> None:
    reviewed = mutated(pod_with(securityContext={"seLinuxOptions": {"level": level}}))
    assert reviewed.reason == "InvalidRequest"
    assert "seLinuxOptions.level" in reviewed.message


def test_S0_14_S0_22_app_containers_get_a_mount_and_nothing_else() -> None:
    before = pod_with(S3)
    pod = mutated(before).after
    [app], [was] = pod["spec"]["containers"], before["spec"]["containers"]
    assert {k: v for k, v in app.items() if k != "volumeMounts"} == {
        k: v for k, v in was.items() if k != "volumeMounts"
    }
    assert app["volumeMounts"] == [
        {
            "name": "sidemount",
            "mountPath": "/data",
            "subPath": "train",
            "mountPropagation": "HostToContainer",
        }
    ]
    assert "/dev/fuse" not in json.dumps(pod)


def test_S4_26_credentials_are_files_of_one_daemon() -> None:
    pod = after(
        {**S3, "volume.sidemount.io/b": "dir:///srv/b"},
        volumes=[{"name": n, "emptyDir": {}} for n in ("train", "b")],
    )
    secret = volume(pod, "sidemount-secret-train")["secret"]
    assert secret == {
        "secretName": "bucket-keys",
        "defaultMode": 0o444,
        "items": [{"key": key, "path": key} for key in ("access-key-id", "secret-access-key")],
    }
    mounting = [
        c["name"]
        for c in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
        if any(m["name"] == "sidemount-secret-train" for m in c.get("volumeMounts", []))
    ]
    assert mounting == ["sidemount-train"]
    assert container(pod)["args"] == [
        "--run-dir",
        "/run/sidemount",
        "--secrets",
        "/secrets",
        "--cache",
        "/cache",
    ]
    for name in ("sidemount-keeper", "sidemount-train", "sidemount-b"):
        assert "bucket-keys" not in json.dumps(container(pod, name))


def test_root_daemon_reads_its_secret_alone() -> None:
    pod = after({"volume.sidemount.io/train": "rclone://r/p?secret=s"})
    assert volume(pod, "sidemount-secret-train")["secret"]["defaultMode"] == 0o444
    assert container(pod)["securityContext"]["runAsUser"] == 65532


def test_every_container_of_ours_masks_the_service_account_token() -> None:
    for own in after(S3)["spec"]["initContainers"]:
        [mask] = [m for m in own["volumeMounts"] if m["mountPath"] == TOKEN_PATH]
        assert mask == {"name": "sidemount-no-token", "mountPath": TOKEN_PATH, "readOnly": True}


def test_mount_points_live_in_memory() -> None:
    pod = after()
    for name in ("sidemount", "sidemount-run", "sidemount-no-token"):
        assert volume(pod, name)["emptyDir"]["medium"] == "Memory"
        assert volume(pod, name)["emptyDir"]["sizeLimit"]


def test_keeper_and_daemon_share_one_directory_a_volume() -> None:
    pod = after()
    keeper = {m["name"]: m for m in container(pod, "sidemount-keeper")["volumeMounts"]}
    assert keeper["sidemount"]["mountPropagation"] == "Bidirectional"
    assert keeper["sidemount-run"] == {"name": "sidemount-run", "mountPath": "/run/sidemount"}
    daemon = {m["name"]: m for m in container(pod)["volumeMounts"]}
    assert daemon["sidemount-run"] == {
        "name": "sidemount-run",
        "mountPath": "/run/sidemount",
        "subPath": "train",
    }
    assert "sidemount" not in daemon


def test_S0_28_both_are_native_sidecars_and_only_the_daemon_holds_the_pod_back() -> None:
    pod = after()
    for name in ("sidemount-keeper", "sidemount-train"):
        assert container(pod, name)["restartPolicy"] == "Always"
        assert not {"readinessProbe", "lifecycle"} & container(pod, name).keys()
        assert container(pod, name)["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert not {"startupProbe", "livenessProbe"} & container(pod, "sidemount-keeper").keys()
    probe = container(pod)["startupProbe"]
    assert probe["exec"]["command"][:6] == ["python3", "-S", "-m", "sidecar", "probe", "--run-dir"]
    assert probe["periodSeconds"] == 1
    assert probe["failureThreshold"] >= 60


def test_S0_28_a_daemon_is_restarted_for_its_keeper_s_word_alone() -> None:
    """A machine that is slow to run the probe must not look like a daemon that hangs: its own deadline comes first by far."""
    probe = container(after())["livenessProbe"]
    assert probe["exec"]["command"][4:] == ["probe", "--run-dir", "/run/sidemount", "--ask", "hung"]
    assert probe["timeoutSeconds"] >= 60
    assert probe["failureThreshold"] >= 3
    assert probe["terminationGracePeriodSeconds"] == 1
    longest_s = (
        probe["periodSeconds"] * probe["failureThreshold"] + 2 * probe["terminationGracePeriodSeconds"]
    )
    assert longest_s < Limits().restart_s, "the keeper gives the container up before kubelet restarts it"


SOURCES: list[Any] = [
    pytest.param(
        "dir:///srv/d?readOnly=true",
        {"hostPath": {"path": "/srv/d", "type": "Directory"}},
        {"mountPath": "/source", "readOnly": True},
        id="dir-read-only",
    ),
    pytest.param(
        "dir:///srv/my data",
        {"hostPath": {"path": "/srv/my data", "type": "Directory"}},
        {"mountPath": "/source"},
        id="dir",
    ),
    pytest.param(
        "pvc://claim", {"persistentVolumeClaim": {"claimName": "claim"}}, {"mountPath": "/source"}, id="pvc"
    ),
    pytest.param(
        "pvc://claim/a/b?readOnly=true",
        {"persistentVolumeClaim": {"claimName": "claim", "readOnly": True}},
        {"mountPath": "/source", "readOnly": True, "subPath": "a/b"},
        id="pvc-sub-path",
    ),
    pytest.param(
        "nfs://filer.example/export/x",
        {"nfs": {"server": "filer.example", "path": "/export/x"}},
        {"mountPath": "/source"},
        id="nfs",
    ),
    pytest.param(
        "nfs://[2001:db8::1]:2049/x",
        {"nfs": {"server": "[2001:db8::1]", "path": "/x"}},
        {"mountPath": "/source"},
        id="nfs-at-its-standard-port",
    ),
]


def test_nfs_at_another_port_is_refused_as_kubernetes_has_no_place_for_it() -> None:
    reviewed = mutated(pod_with({"volume.sidemount.io/train": "nfs://h:2050/x"}))
    assert reviewed.reason == "Unsupported"
    assert "2050" in reviewed.message


@pytest.mark.parametrize(("source", "expected", "mount"), SOURCES)
def test_a_directory_is_mounted_in_its_daemon_alone(source: str, expected: Json, mount: Json) -> None:
    pod = after({"volume.sidemount.io/train": source})
    assert volume(pod, "sidemount-source-train") == {"name": "sidemount-source-train", **expected}
    [found] = [m for m in container(pod)["volumeMounts"] if m["name"] == "sidemount-source-train"]
    assert found == {"name": "sidemount-source-train", **mount}
    assert container(pod)["args"][-2:] == ["--source", "/source"]


def test_S0_25_images_come_from_class_and_settings_only_behind_one_prefix() -> None:
    settings = InjectionSettings(
        sidecar_image="sidecar:1",
        image_prefix="mirror.example/air/",
        image_pull_policy="IfNotPresent",
        image_pull_secrets=("mirror-login",),
    )
    pod = after({"volume.sidemount.io/train": "rclone://r/p?secret=s"}, settings)
    assert container(pod, "sidemount-keeper")["image"] == "mirror.example/air/sidecar:1"
    assert container(pod, "sidemount-keeper")["imagePullPolicy"] == "IfNotPresent"
    assert container(pod)["image"] == "mirror.example/air/registry.example/sidemount-rclone:1.75"
    assert container(pod)["imagePullPolicy"] == "Always"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "mirror-login"}, {"name": "registry-login"}]
    refused = mutated(pod_with({"volume.sidemount.io/train": "dir:///srv/d?image=evil"}))
    assert not refused.outcome.allowed
    assert "image" in refused.message


def test_a_client_that_mounts_by_itself_is_privileged_and_said_to_be() -> None:
    reviewed = mutated(pod_with({"volume.sidemount.io/train": "legacy://h/s"}))
    own = container(reviewed.after)
    assert own["securityContext"]["privileged"] is True
    assert {"name": "sidemount", "mountPath": "/sidemount", "mountPropagation": "Bidirectional"} in own[
        "volumeMounts"
    ]
    assert any("privileged" in warning for warning in reviewed.response["warnings"])


@pytest.mark.parametrize(("limit", "is_warned"), [("40Mi", True), ("88Mi", False)])
def test_a_memory_limit_that_is_too_low_to_be_kept_is_told(limit: str, is_warned: bool) -> None:
    wanted = [{"name": "train", "source": "dir:///srv/d", "resources": {"limits": {"memory": limit}}}]
    reviewed = mutated(pod_with({"sidemount.io/volumes": json.dumps(wanted)}))
    assert reviewed.outcome.allowed, reviewed.message
    told = [warning for warning in reviewed.response["warnings"] if "memory limit" in warning]
    assert bool(told) == is_warned
    assert all("train" in warning and "40Mi" in warning and "88Mi" in warning for warning in told)


def test_S2_01_S2_07_S2_28_one_view_for_each_sub_path_and_writability() -> None:
    mounts = [
        {"name": "train", "mountPath": "/a", "subPath": "sessions/a"},
        {"name": "train", "mountPath": "/b", "subPath": "sessions/a"},
        {"name": "train", "mountPath": "/c", "subPath": "sessions/a", "readOnly": True},
        {"name": "train", "mountPath": "/d"},
    ]
    pod = after(containers=[{"name": "app", "image": "i", "volumeMounts": mounts}])
    [mount] = decode_keeper_config(container(pod, "sidemount-keeper")["env"][0]["value"]).mounts
    assert [(v.sub_path, v.read_only) for v in mount.views] == [
        ("", False),
        ("sessions/a", False),
        ("sessions/a", True),
    ]
    found = {m["mountPath"]: m for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert found["/a"]["subPath"] == found["/b"]["subPath"] == view_name("train", "sessions/a", False)
    assert found["/c"]["subPath"] == view_name("train", "sessions/a", True)
    assert found["/d"]["subPath"] == "train"


def test_S2_31_a_read_only_volume_is_read_only_in_both_layers() -> None:
    pod = after({"volume.sidemount.io/train": "dir:///srv/d?readOnly=true"})
    [mount] = decode_keeper_config(container(pod, "sidemount-keeper")["env"][0]["value"]).mounts
    assert mount.spec.read_only
    assert all(view.read_only for view in mount.views)
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] is True


def test_a_dollar_is_never_left_for_kubernetes_to_expand() -> None:
    mounts = [{"name": "train", "mountPath": "/a", "subPath": "$(HOME)/$x"}]
    pod = after(containers=[{"name": "app", "image": "i", "volumeMounts": mounts}])
    text = container(pod, "sidemount-keeper")["env"][0]["value"]
    assert "$" not in text
    assert decode_keeper_config(text).mounts[0].views[0].sub_path == "$(HOME)/$x"


@pytest.mark.parametrize(("grace", "expected"), [(0, 10), (1, 10), (10, 10), (30, 30), (None, None)], ids=str)
def test_grace_period_is_floored(grace: int | None, expected: int | None) -> None:
    spec: Json = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    pod = after(None, None, **spec)
    assert pod["spec"].get("terminationGracePeriodSeconds") == expected


SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
OURS = "sidemount,sidemount-run,sidemount-no-token,train"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, OURS, id="none"),
        pytest.param({SAFE: ""}, OURS, id="empty"),
        pytest.param({SAFE: "tmp"}, f"tmp,{OURS}", id="kept-first"),
        pytest.param(
            {SAFE: "train, sidemount-run"}, "train, sidemount-run,sidemount,sidemount-no-token", id="some"
        ),
        pytest.param({SAFE: OURS}, OURS, id="all"),
        pytest.param({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, OURS, id="safe-anyway"),
        pytest.param({"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, None, id="never"),
        pytest.param(
            {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", SAFE: "x"}, "x", id="never-kept"
        ),
    ],
)
def test_our_volumes_do_not_hold_a_node_back(annotations: Json, expected: str | None) -> None:
    pod = after({"volume.sidemount.io/train": "dir:///srv/d", **annotations})
    assert pod["metadata"]["annotations"].get(SAFE) == expected


DEFAULT = "kubectl.kubernetes.io/default-container"


@pytest.mark.parametrize(
    ("annotations", "names", "expected"),
    [
        pytest.param({}, ["app", "b"], "app", id="first"),
        pytest.param({DEFAULT: "b"}, ["app", "b"], "b", id="G20-kept"),
        pytest.param({}, ["istio-proxy", "app"], "app", id="kk96986-not-the-proxy"),
        pytest.param({}, ["istio-proxy"], "istio-proxy", id="nothing-else"),
        pytest.param(
            {"kubectl.kubernetes.io/default-logs-container": "b"}, ["app", "b"], "b", id="older-annotation"
        ),
        pytest.param(
            {"kubectl.kubernetes.io/default-logs-container": "gone"}, ["app"], "app", id="older-stale"
        ),
    ],
)
def test_kubectl_goes_to_the_users_container(annotations: Json, names: list[str], expected: str) -> None:
    containers = [{"name": name, "image": "i"} for name in names]
    pod = after({"volume.sidemount.io/train": "dir:///srv/d", **annotations}, containers=containers)
    assert pod["metadata"]["annotations"][DEFAULT] == expected
    assert [c["name"] for c in pod["spec"]["containers"]] == names


def test_status_names_class_delivery_and_reason_of_every_volume() -> None:
    pod = after(S3)
    assert json.loads(pod["metadata"]["annotations"]["sidemount.io/status"]) == {
        "version": 1,
        "volumes": {"train": {"class": "s3", "delivery": "sidecar", "reason": "SidecarPreferred"}},
    }


def test_a_client_that_mounts_by_itself_is_who_the_keeper_expects() -> None:
    pod = after({"volume.sidemount.io/train": "legacy://h/s"})
    [mount] = decode_keeper_config(container(pod, "sidemount-keeper")["env"][0]["value"]).mounts
    assert mount.spec.uid == container(pod)["securityContext"]["runAsUser"] == 0


@pytest.mark.parametrize("source", ["dir:///srv/d", "s3://b/k", "rclone://r/p?secret=s", "legacy://h/s"])
def test_the_daemon_runs_as_the_uid_that_its_keeper_lets_in(source: str) -> None:
    pod = after({"volume.sidemount.io/train": source})
    [mount] = decode_keeper_config(container(pod, "sidemount-keeper")["env"][0]["value"]).mounts
    assert mount.spec.uid == container(pod)["securityContext"]["runAsUser"]


def test_the_keeper_requests_all_of_its_memory_so_that_the_kernel_kills_it_last() -> None:
    resources = container(after(), "sidemount-keeper")["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
