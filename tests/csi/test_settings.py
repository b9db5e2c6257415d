"""Settings by flag and by variable; what is wrong is said before anything is begun."""

import subprocess
import sys
from pathlib import Path

import pytest

from csi.settings import Settings, parse_settings
from sidemount.model.errors import InvalidRequest


def _flags(tmp_path: Path, **changes: str) -> list[str]:
    given = {
        "endpoint": "unix:///run/p/csi.sock",
        "node-id": "n",
        "state-dir": "/run/state",
        "target-root": "/var/lib/kubelet",
        "facts": str(tmp_path),
        **changes,
    }
    return ["node", *(part for flag, value in given.items() if value for part in (f"--{flag}", value))]


def test_flags_and_variables_say_the_same(tmp_path: Path) -> None:
    by_flag = parse_settings([*_flags(tmp_path), "--target-root", "/srv/t"], {})
    variables = {
        "CSI_ENDPOINT": "unix:///run/p/csi.sock",
        "SIDEMOUNT_CSI_NODE_ID": "n",
        "SIDEMOUNT_CSI_STATE_DIR": "/run/state",
        "SIDEMOUNT_CSI_TARGET_ROOT": "/var/lib/kubelet,/srv/t",
        "SIDEMOUNT_CSI_FACTS": str(tmp_path),
        "SIDEMOUNT_CSI_LAUNCHER": "process",
        "SIDEMOUNT_CSI_SERVICE_HOST": "10.0.0.1",
        "UNRELATED": "x",
    }
    assert parse_settings(["node"], variables) == by_flag
    assert by_flag.target_roots == ("/var/lib/kubelet", "/srv/t")
    assert isinstance(by_flag, Settings)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"endpoint": "tcp://0.0.0.0:1"}, "--endpoint"),
        ({"endpoint": ""}, "CSI_ENDPOINT"),
        ({"node-id": ""}, "--node-id is missing"),
        ({"node-id": "n" * 257}, "256 bytes"),
        ({"state-dir": "relative"}, "absolute"),
        ({"state-dir": "/"}, "root directory"),
        ({"state-dir": "/run/p"}, "beside the socket"),
        ({"state-dir": "/run/p/state"}, "beside the socket"),
        ({"state-dir": "/run"}, "beside the socket"),
        ({"state-dir": "/var/lib/kubelet/state"}, "target root"),
        ({"target-root": "/run/state/t"}, "target root"),
        ({"target-root": "/a/../b"}, "plain absolute path"),
        ({"target-root": "/"}, "root directory"),
        ({"launcher": "pod2"}, "is none of"),
        ({"secrets-dir": "credentials"}, "absolute"),
        ({"secrets-dir": "/run/p/credentials"}, "--secrets-dir .* beside the socket"),
        ({"secrets-dir": "/var/lib/kubelet/credentials"}, "--secrets-dir .* in the target root"),
        ({"secrets-dir": "/run/state"}, "--secrets-dir .* in the state directory"),
        ({"facts": "/nowhere/at/all"}, "is no directory"),
        ({"facts": ""}, "--facts is missing"),
        ({"facts-from": "cluster"}, "come from the cluster"),
        ({"facts-from": "etcd"}, "is none of"),
        ({"registration-dir": "registry"}, "absolute"),
        ({"mount-timeout-seconds": "0"}, "above 0"),
        ({"metrics-address": "8080"}, "--metrics-address: .* is not HOST:PORT"),
        ({"metrics-address": ":8080"}, "is not HOST:PORT"),
        ({"metrics-address": "h:99999"}, "is not HOST:PORT"),
        ({"metrics-address": "h:٣"}, "is not HOST:PORT"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parse_settings(_flags(tmp_path, **changes), {})


def test_the_facts_of_the_cluster_and_registration_are_asked_for(tmp_path: Path) -> None:
    asked = {"facts": "", "facts-from": "cluster", "registration-dir": "/var/lib/kubelet/plugins_registry"}
    settings = parse_settings(_flags(tmp_path, **asked), {})
    assert settings.facts is None
    assert settings.registration_dir == "/var/lib/kubelet/plugins_registry"
    assert parse_settings(_flags(tmp_path), {}).registration_dir == ""


def test_credentials_of_the_node_need_not_be_there_yet(tmp_path: Path) -> None:
    """Who brings his own is served meanwhile."""
    by_flag = parse_settings(_flags(tmp_path, **{"secrets-dir": "/etc/sidemount/credentials"}), {})
    variables = {"SIDEMOUNT_CSI_SECRETS_DIR": "/etc/sidemount/credentials"}
    assert parse_settings(_flags(tmp_path), variables) == by_flag
    assert by_flag.secrets_dir == "/etc/sidemount/credentials"
    assert parse_settings(_flags(tmp_path), {}).secrets_dir == ""


def test_an_unknown_variable_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="SIDEMOUNT_CSI_NODEID"):
        parse_settings(_flags(tmp_path), {"SIDEMOUNT_CSI_NODEID": "n"})


def test_a_wrong_setting_ends_the_process_in_one_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "csi", *_flags(tmp_path, endpoint="nonsense")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "nonsense" in done.stderr


def test_mount_pods_need_an_image(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--image is missing"):
        parse_settings(_flags(tmp_path, launcher="pod"), {})
    by_flag = parse_settings(_flags(tmp_path, launcher="pod", image="i:1", **{"mount-namespace": "m"}), {})
    variables = {
        "SIDEMOUNT_CSI_LAUNCHER": "pod",
        "SIDEMOUNT_CSI_IMAGE": "i:1",
        "SIDEMOUNT_CSI_MOUNT_NAMESPACE": "m",
    }
    assert parse_settings(_flags(tmp_path), variables) == by_flag
    assert (by_flag.kubelet_dir, by_flag.mount_namespace_baseline) == (
        "/var/lib/kubelet",
        "sidemount-mounts-baseline",
    )


@pytest.mark.parametrize(
    ("text", "address"), [("", None), ("[::]:8080", ("::", 8080)), ("0.0.0.0:0", ("0.0.0.0", 0))]
)
def test_where_metrics_are_served(tmp_path: Path, text: str, address: tuple[str, int] | None) -> None:
    given = {"SIDEMOUNT_CSI_METRICS_ADDRESS": text}
    assert parse_settings(_flags(tmp_path), given).metrics_address == address


@pytest.mark.parametrize("flag", ["mount-namespace", "mount-namespace-baseline", "mount-priority-class"])
def test_a_name_that_no_object_can_have_is_refused(tmp_path: Path, flag: str) -> None:
    with pytest.raises(InvalidRequest, match=flag):
        parse_settings(_flags(tmp_path, launcher="pod", image="i:1", **{flag: "Not_a_name"}), {})
