"""Claims on the real cluster: the overlay csi with Kubernetes' own companions, as docs/csi.md installs it."""

from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import CSI, GONE_S, MOUNTS, WITHIN_S, World, claim, user_pod

_WRITER = "i=0; while true; do i=$((i+1)); echo $i >/data/n && sync /data/n || echo fault; sleep 0.05; done"
_WRITE = "dd if=/dev/zero of=/data/{} bs={}k count=1 conv=fsync"
_KIB, _MIB = 1024, 1024 * 1024


def test_a_claim_is_provisioned_limited_grown_while_mounted_and_deleted(world: World) -> None:
    """S4-36, S4-39, S4-42…45, S4-09: in a namespace that enforces `restricted`."""
    world.make(claim("data"), user_pod("app", {"data": "data"}))
    world.runs("app")
    assert _size_kib(world) == 1024
    assert "1+0 records out" in world.sh("app", _WRITE.format("a", 768))
    assert "Disk quota exceeded" in world.sh("app", _WRITE.format("b", 512))
    assert world.sh("app", "stat -c %g /data/a").strip() == "2000"
    _kubelet_counts(world, capacity_bytes=_MIB, used_bytes=768 * _KIB)
    world.grow("data", "4Mi")
    assert wait_for(lambda: _size_kib(world) == 4096, WITHIN_S), "the pod does not see the new size"
    assert "1+0 records out" in world.sh("app", _WRITE.format("b", 512))
    _kubelet_counts(world, capacity_bytes=4 * _MIB, used_bytes=1280 * _KIB)
    assert "VolumeResizeSuccessful" in world.events("data")
    volume = world.api.get("pv", world.bound("data"))
    assert volume is not None
    assert volume["spec"]["capacity"]["storage"] == "4Mi"
    world.gone("app")
    world.unclaim("data")
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()


def test_two_pods_of_different_users_see_the_same_bytes(world: World) -> None:
    """S4-37, S4-38; Immediate: the volume is there before any pod is."""
    world.make(claim("shared", "64Mi", "sidemount-immediate"))
    world.bound("shared")
    world.make(*(user_pod(name, {"data": "shared"}, uid=uid) for name, uid in (("one", 1000), ("two", 1001))))
    world.runs("one", "two")
    written = world.sh("one", "dd if=/dev/urandom of=/data/f bs=1M count=8 conv=fsync; md5sum </data/f")
    assert world.sh("two", "md5sum </data/f").split()[0] == written.splitlines()[-1].split()[0]
    world.gone("one", "two")
    world.unclaim("shared")


def test_writing_goes_on_while_the_plugin_s_pod_is_replaced(world_beside: World) -> None:
    """S0-08, S0-19, S3-07, S3-09: no error, and the same mount pod serves on."""
    world = world_beside
    world.make(claim("data"), user_pod("app", {"data": "data"}, _WRITER))
    world.runs("app")
    before = [each["metadata"]["uid"] for each in world.api.items("pods", MOUNTS)]
    chosen = ("--selector=app.kubernetes.io/name=csi-node", f"--namespace={CSI}")
    world.api.run("delete", "pod", *chosen, timeout_s=GONE_S)
    world.path.roll_out()
    reached = int(world.sh("app", "cat /data/n") or 0)
    assert wait_for(lambda: int(world.sh("app", "cat /data/n") or 0) > reached + 5, WITHIN_S)
    assert "fault" not in world.logs("app", "app")
    assert [each["metadata"]["uid"] for each in world.api.items("pods", MOUNTS)] == before
    world.gone("app")
    assert wait_for(lambda: not world.path.mount_pods(), GONE_S)


def _size_kib(world: World) -> int:
    return int(world.sh("app", "df -kP /data").splitlines()[-1].split()[1])


def _kubelet_counts(world: World, **expected: int) -> None:
    """Wait until kubelet's summary says this of the claim: it asks the plugin from time to time."""
    found: dict[str, int] = {}

    def is_so() -> bool:
        found.update(world.kubelet_stats("app", "data"))
        both = {"capacity_bytes": found.get("capacityBytes"), "used_bytes": found.get("usedBytes")}
        return both == expected and found["inodesUsed"] > 0

    assert wait_for(is_so, WITHIN_S), (found, expected)
