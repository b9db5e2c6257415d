"""Annotated pods that cannot have a sidecar: their namespace enforces `restricted`, and the volume comes by CSI, inline."""

from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import (
    GONE_S,
    MOUNTS,
    MOUNTS_RESTRICTED,
    RESTRICTED,
    SHOWN,
    CsiPath,
    World,
    claim,
    user_pod,
)
from sidemount.model.names import (
    CSI_DRIVER,
    INJECTION_ENABLED,
    INJECTION_LABEL,
    VOLUME_ANNOTATION_PREFIX,
)

# One daemon acts for every owner of files, as root with four capabilities; the other is a user with none.
_OWNERS, _PLAIN = f"{SHOWN}/owners", f"{SHOWN}/plain"
_CLASSES: dict[str, Json] = {
    "e2e-owners": {"sources": [f"dir://{_OWNERS}"]},
    "e2e-plain": {"sources": [f"dir://{_PLAIN}"], "uid": 65532, "capabilities": []},
}

restricted = pytest.mark.parametrize(
    "world", [{**RESTRICTED, INJECTION_LABEL: INJECTION_ENABLED}], indirect=True, ids=["restricted"]
)


@pytest.fixture(scope="module")
def classes(csi: CsiPath) -> Iterator[None]:
    """Two classes for directories of the node, and the directories."""
    made = [_class(name, spec) for name, spec in _CLASSES.items()]
    csi.cluster.on_node("sh", "-c", f"mkdir -p {_OWNERS}/part {_PLAIN} && chmod 777 {_OWNERS} {_PLAIN}")
    csi.cluster.on_node("sh", "-c", f"echo of the node >{_OWNERS}/part/found")
    try:
        for each in made:
            csi.api.create(each)
        yield
    finally:
        for name in _CLASSES:
            csi.api.delete("fusedriverclass", name)
        csi.cluster.on_node("rm", "-r", _OWNERS, _PLAIN)


@restricted
def test_an_annotated_pod_of_a_restricted_namespace_has_its_volumes(world: World, classes: None) -> None:
    """S0-14, S0-18, S0-20, S2-16: it reads and writes as its own user, with no container added; then nothing is left."""
    world.make(
        _asking("app", owners=f"dir://{_OWNERS}?class=e2e-owners", plain=f"dir://{_PLAIN}?class=e2e-plain")
    )
    world.runs("app")
    made = world.pod("app")
    assert made is not None
    spec = made["spec"]
    assert len(spec["containers"]) == 1
    assert not spec.get("initContainers")
    inline = {each["name"]: each["csi"]["driver"] for each in spec["volumes"] if "csi" in each}
    assert set(inline.values()) == {CSI_DRIVER}
    assert {"owners", "plain"} < set(inline), "the part that is shown read-only is a volume of its own"
    assert "uid=1000" in world.sh("app", "id")
    world.sh("app", "echo written >/owners/new && mv /owners/new /owners/kept; echo written >/plain/kept")
    assert [world.sh("app", f"cat /{each}/kept").strip() for each in ("owners", "plain")] == ["written"] * 2
    assert world.sh("app", "stat -c %u:%g /owners/kept").strip() == "1000:2000"
    assert world.sh("app", "cat /part/found").strip() == "of the node"
    assert "Read-only file system" in world.sh("app", "echo x >/part/refused")
    namespaces = sorted(pod["metadata"]["namespace"] for pod in world.path.mount_pods())
    assert namespaces == sorted([MOUNTS, MOUNTS, MOUNTS_RESTRICTED])
    world.gone("app")
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()
    on_node = world.path.cluster.on_node("sh", "-c", f"cd {SHOWN} && find . -type f | sort")
    assert on_node.split() == ["./owners/kept", "./owners/part/found", "./plain/kept"]


@restricted
def test_a_claim_that_waits_for_its_pod_is_mounted_so_that_it_may_be_mounted_anew(world: World) -> None:
    """When the pod is created nothing but the claim's StorageClass tells whose volume it will have."""
    world.make(claim("data"), user_pod("user", {"data": "data"}))
    world.runs("user")
    made = world.pod("user")
    assert made is not None
    (mount,) = (each for each in made["spec"]["containers"][0]["volumeMounts"] if each["name"] == "data")
    assert mount["mountPropagation"] == "HostToContainer"
    assert [each for each in made["spec"]["volumes"] if each["name"] == "data"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    ]
    world.gone("user")
    world.unclaim("data")
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


def _class(name: str, spec: Json) -> Json:
    whole = {"deliveries": ["sidecar", "csi"], "filesystem": "directory", "namespaces": {}, **spec}
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": name},
        "spec": whole,
    }


def _asking(name: str, **sources: str) -> Json:
    """Return a pod that asks for volumes by annotation, and shows a part of the first one read-only."""
    made = user_pod(name, {each: {"emptyDir": {}} for each in sources})
    made["metadata"]["annotations"] = {
        f"{VOLUME_ANNOTATION_PREFIX}{each}": source for each, source in sources.items()
    }
    part = {"name": next(iter(sources)), "mountPath": "/part", "subPath": "part", "readOnly": True}
    made["spec"]["containers"][0]["volumeMounts"].append(part)
    return made
