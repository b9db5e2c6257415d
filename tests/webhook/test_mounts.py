"""Mounts that requests add, and how many there may be."""

import json
from typing import Any

import pytest

from tests.webhook.admission import Json, mutated, pod_with, validated


def listed(*entries: Json) -> Json:
    """Return the list form of requests; `source` defaults to a directory."""
    requests = [{"source": f"dir:///srv/{entry['name']}", **entry} for entry in entries]
    return {"sidemount.io/volumes": json.dumps(requests)}


def paths(pod: Json) -> dict[str, list[str]]:
    """Return the mount paths of every container of the user's."""
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    return {
        c["name"]: [m["mountPath"] for m in c.get("volumeMounts") or []]
        for c in containers
        if not c["name"].startswith("sidemount-")
    }


TWO: Json = {
    "volumes": [],
    "initContainers": [{"name": "init"}, {"name": "istio-proxy", "restartPolicy": "Always"}],
    "containers": [{"name": "a"}, {"name": "b"}],
}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param(None, {"init", "a", "b"}, id="all-but-other-injectors"),
        pytest.param(["a"], {"a"}, id="one"),
        pytest.param(["a", "init"], {"a", "init"}, id="two"),
        pytest.param(["istio-proxy"], {"istio-proxy"}, id="another-injectors-by-name"),
    ],
)
def test_a_mount_path_is_added_to_the_containers_meant(containers: Any, expected: set[str]) -> None:
    entry = {"name": "out", "mountPath": "/out"}
    pod = pod_with(listed(entry if containers is None else {**entry, "containers": containers}), **TWO)
    after = mutated(pod).after
    assert {name for name, found in paths(after).items() if found == ["/out"]} == expected
    assert mutated(after).patch == []


def test_an_unknown_container_is_refused_naming_those_there_are() -> None:
    pod = pod_with(listed({"name": "out", "mountPath": "/out", "containers": ["ghost", "a"]}), **TWO)
    reviewed = mutated(pod)
    assert reviewed.reason == "UnknownVolume"
    assert "ghost" in reviewed.message
    assert "init, istio-proxy, a, b" in reviewed.message


@pytest.mark.parametrize("path", ["/data", "/data/", "//data", "/./data", "/x/../data"])
def test_a_path_that_is_taken_is_refused_however_it_is_written(path: str) -> None:
    mounts = [{"name": "tmp", "mountPath": path}]
    pod = pod_with(
        listed({"name": "out", "mountPath": "/data"}), containers=[{"name": "a", "volumeMounts": mounts}]
    )
    assert mutated(pod).reason == "MountPathCollision"


def test_two_requests_for_one_path_collide_but_not_in_different_containers() -> None:
    both = [{"name": "x", "mountPath": "/d"}, {"name": "y", "mountPath": "/d"}]
    assert mutated(pod_with(listed(*both), **TWO)).reason == "MountPathCollision"
    apart = [{**both[0], "containers": ["a"]}, {**both[1], "containers": ["b"]}]
    assert mutated(pod_with(listed(*apart), **TWO)).patch


def test_nested_paths_of_two_volumes_are_fine() -> None:
    pod = pod_with(listed({"name": "x", "mountPath": "/d"}, {"name": "y", "mountPath": "/d/y"}), **TWO)
    assert paths(mutated(pod).after)["a"] == ["/d", "/d/y"]


def test_a_mount_that_is_there_already_is_not_added_again() -> None:
    mounts = [{"name": "x", "mountPath": "/d"}]
    pod = pod_with(
        listed({"name": "x", "mountPath": "/d"}),
        volumes=[{"name": "x", "emptyDir": {}}],
        containers=[{"name": "a", "volumeMounts": mounts}],
    )
    assert paths(mutated(pod).after)["a"] == ["/d"]


def test_csi_delivery_adds_volume_and_mounts_too() -> None:
    pod = pod_with(listed({"name": "x", "source": "cache://b/x", "mountPath": "/d", "readOnly": True}), **TWO)
    after = mutated(pod).after
    [volume] = after["spec"]["volumes"]
    assert volume["csi"]["readOnly"] is True
    assert after["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "x", "mountPath": "/d", "mountPropagation": "HostToContainer", "readOnly": True}
    ]
    assert mutated(after).patch == []


def test_a_pod_may_have_a_thousand_mounts_and_not_more() -> None:
    def pod(count: int) -> Json:
        mounts = [{"name": "train", "mountPath": f"/m{number}"} for number in range(count)]
        return pod_with(containers=[{"name": "a", "volumeMounts": mounts}])

    assert mutated(pod(1024)).patch
    refused = mutated(pod(1025))
    assert refused.reason == "Unsupported"
    assert "1025" in refused.message


def test_a_keeper_configuration_must_fit_into_one_variable() -> None:
    mounts = [
        {"name": "train", "mountPath": f"/m{number}", "subPath": f"{number}/{'x' * 200}"}
        for number in range(600)
    ]
    refused = mutated(pod_with(containers=[{"name": "a", "volumeMounts": mounts}]))
    assert refused.reason == "Unsupported"
    assert "sub-paths" in refused.message


def test_what_the_keeper_would_refuse_is_refused_at_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidemount.model.mountspec.SPEC_MAX", 100)
    # A source of its own: what was decided is kept, and must not answer other tests.
    refused = mutated(pod_with({"volume.sidemount.io/train": "dir:///srv/datasets/too-long"}))
    assert refused.reason == "Unsupported"
    assert "at most 100 can be given to a daemon" in refused.message


def test_a_volume_that_nobody_mounts_is_served_and_told() -> None:
    reviewed = mutated(pod_with(containers=[{"name": "a"}]))
    assert reviewed.patch
    assert "sidemount: volume train is mounted by no container" in reviewed.response["warnings"]


@pytest.mark.parametrize("spec", [None, {}, {"containers": []}, {"containers": None}])
def test_a_pod_without_containers_has_nowhere_to_mount(spec: Any) -> None:
    pod = {"metadata": {"annotations": listed({"name": "x", "mountPath": "/d"})}, "spec": spec}
    reviewed = mutated(pod)
    assert not reviewed.outcome.allowed
    assert reviewed.response["status"]["code"] == 400
    assert "spec.containers" in reviewed.message


@pytest.mark.parametrize("section", ["containers", "initContainers"])
def test_a_container_may_be_called_just_sidemount(section: str) -> None:
    container = {"name": "sidemount", "image": "i", "volumeMounts": [{"name": "train", "mountPath": "/data"}]}
    pod = pod_with()
    pod["spec"][section] = [container]
    pod["spec"].setdefault("containers", [container])
    reviewed = mutated(pod)
    assert reviewed.patch, reviewed.message
    found = next(c for c in reviewed.after["spec"][section] if c["name"] == "sidemount")
    assert found["volumeMounts"][0]["name"] == "sidemount"
    assert mutated(reviewed.after).patch == []
    assert validated(reviewed.after).outcome.allowed
