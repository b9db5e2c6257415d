"""Volumes as a kubelet's plugins make them."""

import base64
from pathlib import Path

import pytest

from e2e.podlet.client import Podlet
from sidemount.model.names import TOKEN_PATH
from tests.podlet.conftest import MakeNode
from tests.podlet.pods import container, mount, pod, sidecar, task

pytestmark = pytest.mark.root


def test_secret_config_map_downward_and_projected_files_are_read_only_links(make_node: MakeNode) -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "ns"},
        "data": {"k": base64.b64encode(b"\xff").decode()},
    }
    config = {
        "kind": "ConfigMap",
        "metadata": {"name": "m", "namespace": "ns"},
        "data": {"a.txt": "A", "b": "B"},
    }
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    memory = {"path": "mem", "resourceFieldRef": {"containerName": "app", "resource": "limits.memory"}}
    volumes = [
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "config", "configMap": {"name": "m", "items": [{"key": "b", "path": "deep/b"}]}},
        {"name": "downward", "downwardAPI": {"items": [labels, memory]}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "m"}}]}},
        {"name": "none", "secret": {"secretName": "none", "optional": True}},
    ]
    mounts = [mount(volume["name"], f"/{volume['name']}") for volume in volumes]  # type: ignore[arg-type]  # names are texts
    running = make_node(objects=[secret, config]).run(
        pod(container("app", volumeMounts=mounts, resources={"limits": {"memory": "64Mi"}}), volumes=volumes)
    )
    running.wait_ready(20)
    script = "cd /; cat config/deep/b downward/labels downward/mem all/a.txt; stat -Lc %a secret/k config/deep/b; ls all none; readlink secret/k"
    assert running.exec("app", ["sh", "-c", script]).stdout.split() == [
        'Bapp="x"67108864A400', "644", "all:", "a.txt", "b", "k", "none:", "..data/k",
    ]  # fmt: skip
    assert running.exec("app", ["od", "-An", "-tx1", "/secret/k"]).stdout.strip() == "ff"
    assert "Read-only" in running.exec("app", ["touch", "/config/x"]).stderr
    tmpfs = {m.mount_point.rpartition("/")[2] for m in running.mounts() if m.fstype == "tmpfs"}
    assert tmpfs == {"secret", "downward", "all", "none"}
    running.delete()


def test_the_service_account_token_is_in_every_container_that_covers_nothing(node: Podlet) -> None:
    """S2: a token lands in injected containers unless something is mounted at its path."""
    empty = {"name": "empty", "emptyDir": {"medium": "Memory"}}
    covered = sidecar("covered", volumeMounts=[mount("empty", TOKEN_PATH, readOnly=True)])
    running = node.run(
        pod(
            container("app"),
            inits=[sidecar("open"), covered],
            volumes=[empty],
            automountServiceAccountToken=True,
        )
    )
    running.wait_ready(20)
    for name, files in (
        ("app", ["ca.crt", "namespace", "token"]),
        ("open", ["ca.crt", "namespace", "token"]),
        ("covered", []),
    ):
        assert running.exec(name, ["ls", TOKEN_PATH]).stdout.split() == files
    assert running.exec("app", ["cat", f"{TOKEN_PATH}/namespace"]).stdout == "ns"
    running.delete()


def test_a_volume_that_cannot_be_set_up_holds_the_whole_pod(make_node: MakeNode, tmp_path: Path) -> None:
    place = tmp_path / "place"
    volume = {"name": "v", "hostPath": {"path": str(place), "type": "Directory"}}
    node = make_node()
    running = node.run(pod(container("app", volumeMounts=[mount("v", "/v")]), volumes=[volume]))
    status = running.wait_for(lambda s: bool(s.containers["app"].message), 20, "waiting")
    assert status.containers["app"].reason == "ContainerCreating"
    assert f"hostPath type check failed: {place} is not a directory" in status.containers["app"].message
    place.mkdir()
    running.wait_ready(20)
    running.delete()
    assert place.is_dir()


def test_a_pod_waiting_for_a_volume_can_be_deleted(node: Podlet) -> None:
    running = node.run(
        pod(
            container("app", volumeMounts=[mount("v", "/v")]),
            volumes=[{"name": "v", "secret": {"secretName": "none"}}],
        )
    )
    status = running.wait_for(lambda s: bool(s.containers["app"].message), 20, "waiting")
    assert 'secret "none" not found' in status.containers["app"].message
    running.delete()


def test_a_volume_that_no_container_mounts_is_passed_over(make_node: MakeNode) -> None:
    volumes = [{"name": "c", "persistentVolumeClaim": {"claimName": "served-by-others"}}]
    running = make_node().run(pod(container("app"), volumes=volumes))
    running.wait_ready(20)
    running.delete()


def test_host_path_types_and_claims(make_node: MakeNode, tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir()
    (tmp_path / "claim" / "f").write_text("claimed")
    (tmp_path / "file").write_text("file")
    volumes = [
        {"name": "file", "hostPath": {"path": str(tmp_path / "file"), "type": "File"}},
        {"name": "made", "hostPath": {"path": str(tmp_path / "made"), "type": "DirectoryOrCreate"}},
        {"name": "any", "hostPath": {"path": str(tmp_path / "any")}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
    ]
    mounts = [mount("file", "/file"), mount("made", "/made"), mount("any", "/any"), mount("claim", "/claim")]
    running = make_node(claims={"c": tmp_path / "claim"}).run(
        pod(container("app", volumeMounts=mounts), volumes=volumes)
    )
    running.wait_ready(20)
    assert running.exec("app", ["cat", "/file", "/claim/f"]).stdout == "fileclaimed"
    assert "Read-only" in running.exec("app", ["touch", "/claim/x"]).stderr
    assert running.exec("app", ["touch", "/made/x", "/any/x"]).exit_code == 0
    running.delete()
    assert (tmp_path / "made" / "x").exists()
    assert (tmp_path / "any" / "x").exists(), "containerd makes what a hostPath without a type lacks"


def test_sub_paths_are_made_with_the_volumes_mode_and_never_leave_it(node: Podlet) -> None:
    script = "ln -s / /v/out; ln -s sub /v/in; mkdir /v/sub; echo s > /v/sub/f"
    evil = container("evil", volumeMounts=[mount("v", "/x", subPath="out/etc")])
    good = container(
        "good",
        volumeMounts=[mount("v", "/new", subPath="a/b"), mount("v", "/in", subPath="in"), mount("v", "/f", subPath="sub/f"),
                      mount("v", "/mine", subPathExpr="$(WHO)")],
        env=[{"name": "WHO", "value": "me"}],
    )  # fmt: skip
    init = task("init", script, volumeMounts=[mount("v", "/v")])
    running = node.run(pod(good, evil, inits=[init], volumes=[{"name": "v", "emptyDir": {}}]))
    status = running.wait_for(
        lambda s: s.containers["good"].ready and s.containers["evil"].reason == "CreateContainerConfigError",
        20,
        "judged",
    )
    assert "outside of allowed base" in status.containers["evil"].message
    assert running.exec("good", ["cat", "/in/f", "/f"]).stdout == "s\ns\n"
    assert running.exec("good", ["stat", "-c", "%a", "/new", "/mine"]).stdout == "777\n777\n"
    binds = {m.mount_point.partition("/volume-subpaths/")[2] for m in running.mounts()} - {""}
    assert binds == {"v/good/0", "v/good/1", "v/good/2", "v/good/3"}
    running.delete()
