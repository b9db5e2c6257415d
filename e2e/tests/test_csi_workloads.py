"""What pods do with claims, on the real cluster: the behaviours that Kubernetes' own suite for external storage looks at."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import GONE_S, WITHIN_S, World, claim, from_claim, user_pod
from e2e.tests.pods import controller, is_ready
from sidemount.model.names import CSI_DRIVER

_READ_ONLY = "Read-only file system"
_OWNER = "stat -c %g /data; stat -c '%g %a' /data/d/f"


@pytest.fixture
def second_volume(world: World) -> Iterator[str]:
    """The name of a PersistentVolume that a test makes."""
    name = f"{world.name}-same"
    yield name
    world.api.delete("pv", name)


def test_pods_use_one_volume_in_every_way(world: World, second_volume: str) -> None:
    """S4-01, S4-03, S2-16: whole, in part, read-only, through another PersistentVolume, as a clone; and several at once."""
    world.make(claim("tree", "16Mi"), user_pod("writer", {"tree": "tree"}))
    world.runs("writer")
    world.sh("writer", "mkdir -p /tree/d/sub && echo found >/tree/d/sub/f && echo apart >/tree/single")
    _make_second_volume(world, "tree", "same", second_volume)
    world.make(
        claim("copy", "16Mi", modes=["ReadOnlyMany"], dataSource=from_claim("tree")),
        claim("same", "16Mi", "", modes=["ReadOnlyMany"], volumeName=second_volume),
        claim("other", "8Mi"),
        *(user_pod(name, {"tree": _claimed(name, readOnly=True)}, uid=1001) for name in ("same", "copy")),
        user_pod("reader", {"tree": _claimed("tree", readOnly=True)}, uid=1001),
        user_pod("part", {"tree": "tree"}, mount={"subPath": "d/sub"}),
        user_pod("file", {"tree": "tree"}, mount={"subPath": "single", "readOnly": True}),
        user_pod("made", {"tree": "tree"}, mount={"subPath": "not/there/yet"}),
        user_pod("several", {"tree": "tree", "other": "other", "scratch": _generic("1Mi")}),
    )
    world.runs("reader", "same", "copy", "part", "file", "made", "several")
    for each in ("reader", "same", "copy"):
        assert world.sh(each, "cat /tree/d/sub/f").strip() == "found"
        assert _READ_ONLY in world.sh(each, "echo x >/tree/refused")
    world.sh("part", "echo of the part >/tree/g")
    assert world.sh("same", "cat /tree/d/sub/g").strip() == "of the part"
    assert world.sh("file", "cat /tree").strip() == "apart"
    assert _READ_ONLY in world.sh("file", "echo x >/tree")
    world.sh("made", "echo made >/tree/h")
    assert world.sh("writer", "cat /tree/not/there/yet/h").strip() == "made"
    world.sh("several", "cp /bin/busybox /other/busybox; echo kept >/scratch/f; mv /scratch/f /tree/moved")
    assert world.sh("several", "/other/busybox cat /tree/moved").strip() == "kept"
    _all_goes(world, second_volume)


def _all_goes(world: World, second_volume: str) -> None:
    """Delete the pods: the ephemeral claim goes with its own, the volumes with their claims, all else at once."""
    ephemeral = world.bound("several-scratch")
    world.gone("several")
    assert wait_for(lambda: world.api.get("pv", ephemeral) is None, GONE_S), "the ephemeral volume stays"
    # A pod and its claim at once: the claim waits for the pod.
    everything = ("pods,pvc", "--all", f"--namespace={world.name}")
    world.api.run("delete", *everything, timeout_s=GONE_S)
    world.api.run("delete", "pv", second_volume, timeout_s=GONE_S)
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


def test_who_may_not_have_a_claim_is_told_why(world: World) -> None:
    """S4-03, S4-04: ReadWriteOncePod, at the scheduler and at the node; volumes of blocks, which there are none of."""
    world.make(claim("alone", modes=["ReadWriteOncePod"]), user_pod("first", {"data": "alone"}))
    world.runs("first")
    world.sh("first", "echo kept >/data/f")
    found = world.pod("first")
    assert found is not None
    device = user_pod("device", {"data": "alone"})
    (container,) = device["spec"]["containers"]
    container["volumeDevices"] = [{"name": "data", "devicePath": "/dev/data"}]
    del container["volumeMounts"]
    world.make(
        user_pod("second", {"data": "alone"}),
        # Past the scheduler.
        user_pod("third", {"data": "alone"}, nodeName=found["spec"]["nodeName"]),
        claim("blocks", "1Mi", "sidemount-immediate", volumeMode="Block"),
        {**device, "spec": {**device["spec"], "nodeName": found["spec"]["nodeName"]}},
    )
    _told(world, "second", "FailedScheduling", "ReadWriteOncePod")
    _told(world, "third", "FailedMount", "ReadWriteOncePod")
    _told(world, "blocks", "ProvisioningFailed", "InvalidArgument", "block")
    _told(world, "device", "volumeDevices")
    world.api.run("delete", "pvc", "blocks", f"--namespace={world.name}", timeout_s=GONE_S)
    world.gone("third", "device", "first")
    world.runs("second")
    assert world.sh("second", "cat /data/f").strip() == "kept"
    world.gone("second")
    world.unclaim("alone")
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


def test_each_replica_keeps_its_own_volume(world: World) -> None:
    """A StatefulSet; a volume that is grown while nobody has it."""
    template = user_pod("set", {})
    template["metadata"]["labels"] = {"app": "set"}
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    world.make(
        controller(
            "apps/v1",
            "StatefulSet",
            "set",
            template,
            replicas=2,
            serviceName="set",
            podManagementPolicy="Parallel",
            persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete", "whenScaled": "Retain"},
            volumeClaimTemplates=[claim("data", modes=["ReadWriteOnce"])],
        )
    )
    world.until_object("statefulset", "set", lambda found: _replicas(found) == 2, "ready")
    for name in ("set-0", "set-1"):
        world.sh(name, "hostname >/data/who")
    before = world.pod("set-0")
    assert before is not None
    world.gone("set-0")
    world.until(
        "set-0", lambda pod: is_ready(pod) and pod["metadata"]["uid"] != before["metadata"]["uid"], "ready"
    )
    assert [world.sh(name, "cat /data/who").strip() for name in ("set-0", "set-1")] == ["set-0", "set-1"]
    world.api.run("scale", "statefulset/set", "--replicas=1", f"--namespace={world.name}")
    assert wait_for(lambda: world.pod("set-1") is None, GONE_S)
    world.grow("data-set-1", "2Mi")
    world.until_object(
        "pvc", "data-set-1", lambda pvc: pvc["status"]["capacity"]["storage"] == "2Mi", "grown"
    )
    world.api.run("scale", "statefulset/set", "--replicas=2", f"--namespace={world.name}")
    world.until_object("statefulset", "set", lambda found: _replicas(found) == 2, "ready")
    assert world.sh("set-1", "cat /data/who; df -kP /data | tail -1").split()[:3:2] == ["set-1", "2048"]
    world.api.run("delete", "statefulset", "set", f"--namespace={world.name}", timeout_s=GONE_S)
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


def test_the_group_of_files_is_what_the_pod_says(world: World) -> None:
    """S4-39: `fsGroup` with either policy of when it changes what is there.

    kubelet publishes again while a pod runs, and applies the pod's group again: one pod at a time.
    """
    security = {"supplementalGroups": [3000], "fsGroupChangePolicy": "OnRootMismatch"}
    world.make(claim("data"), user_pod("first", {"data": "data"}, security=security))
    world.runs("first")
    world.sh("first", "mkdir /data/d; echo x >/data/d/f; chgrp 3000 /data/d/f; chmod 600 /data/d/f")
    assert world.sh("first", _OWNER).split() == ["2000", "3000", "600"]
    world.gone("first")
    for name, group, policy, expected in (
        ("kept", 2000, "OnRootMismatch", ["2000", "3000", "600"]),
        ("all", 2000, "Always", ["2000", "2000", "660"]),
        ("other", 2001, "OnRootMismatch", ["2001", "2001", "660"]),
    ):
        world.make(
            user_pod(name, {"data": "data"}, security={"fsGroup": group, "fsGroupChangePolicy": policy})
        )
        world.runs(name)
        assert world.sh(name, _OWNER).split() == expected, name
        world.gone(name)
    world.unclaim("data")


def _told(world: World, name: str, *words: str) -> None:
    """Wait until the events of an object have all of these words."""

    def is_told() -> bool:
        events = world.events(name)
        return all(word in events for word in words)

    assert wait_for(is_told, WITHIN_S), (words, world.events(name), world.path.told())


def _replicas(found: Json) -> int:
    return int(found["status"].get("readyReplicas", 0))


def _claimed(name: str, **fields: Any) -> Json:
    return {"persistentVolumeClaim": {"claimName": name, **fields}}


def _generic(size: str) -> Json:
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim("", size, modes=["ReadWriteOnce"])["spec"]}}}


def _make_second_volume(world: World, of_claim: str, for_claim: str, name: str) -> None:
    """Make another PersistentVolume, to read, of the volume that a claim has."""
    first = world.api.get("pv", world.bound(of_claim))
    assert first is not None
    csi = first["spec"]["csi"]
    spec = {
        "capacity": first["spec"]["capacity"],
        "accessModes": ["ReadOnlyMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": world.name, "name": for_claim},
        "csi": {"driver": CSI_DRIVER, "volumeHandle": csi["volumeHandle"], "volumeAttributes": csi["volumeAttributes"]},
    }  # fmt: skip
    world.api.create(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    )
