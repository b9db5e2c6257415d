"""A bucket by CSI, from unprivileged mount pods: inline for a pod that cannot have a sidecar, and by claims that are prefixes of it."""

import json
import secrets
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Json
from e2e.cluster.waiting import wait_for
from e2e.tests.csi_world import (
    BUCKET_POOL,
    CSI,
    GONE_S,
    MOUNTS_RESTRICTED,
    RESTRICTED,
    WITHIN_S,
    World,
    claim,
    user_pod,
)
from e2e.tests.object_store import BUCKET, ObjectStore, give_secret
from e2e.tests.pods import Namespace
from sidemount.model.names import CSI_DRIVER, INJECTION_ENABLED, INJECTION_LABEL, VOLUME_ANNOTATION_PREFIX


@pytest.fixture
def store(ml: Namespace) -> ObjectStore:
    """An S3 server that lets nobody in yet."""
    return ObjectStore(ml)


@pytest.fixture
def driver_class(store: ObjectStore, world: World) -> Iterator[str]:
    """A class for it that has no sidecar."""
    name = f"bucket-{secrets.token_hex(3)}"
    world.api.create(store.driver_class(name, ["csi"]))
    yield name
    world.api.delete("fusedriverclass", name)


@pytest.fixture
def storage_class(store: ObjectStore, world: World) -> Iterator[str]:
    """A StorageClass whose volumes are prefixes, with credentials of the test's namespace for controller and nodes."""
    name = f"claims-{secrets.token_hex(3)}"
    driver_class = store.driver_class(name, ["csi"])
    driver_class["spec"].update(sources=[BUCKET_POOL], provisions=True)
    calls = ("provisioner", "controller-expand", "node-publish")
    world.api.create(driver_class)
    world.api.create(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": CSI_DRIVER,
            "allowVolumeExpansion": True,
            "parameters": {
                "class": name,
                "source": BUCKET_POOL,
                **{f"csi.storage.k8s.io/{call}-secret-name": BUCKET for call in calls},
                **{f"csi.storage.k8s.io/{call}-secret-namespace": world.name for call in calls},
            },
        }
    )
    world.make(*_may_read(BUCKET))
    yield name
    world.api.delete("storageclass", name)
    world.api.delete("fusedriverclass", name)


def _may_read(secret: str) -> tuple[Json, Json]:
    """Return what lets the controller's companions read one Secret, as docs/provisioning.md says."""
    api = "rbac.authorization.k8s.io"
    metadata = {"name": "provisions"}
    rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": ["get"]}]
    role: Json = {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    binding: Json = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": api, "kind": "Role", "name": "provisions"},
        "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": CSI}],
    }
    return role, binding


def _kill_what_serves(world: World, name: str) -> None:
    where = f"--namespace={MOUNTS_RESTRICTED}"
    told = [
        json.loads(line) for line in world.api.run("logs", where, name).splitlines() if line.startswith("{")
    ]
    serving = next(int(each["pid"]) for each in reversed(told) if each.get("event") == "serving")
    world.api.run("exec", where, name, "--", "python3", "-S", "-c", f"import os; os.kill({serving}, 9)")


@pytest.mark.parametrize(
    "world", [{**RESTRICTED, INJECTION_LABEL: INJECTION_ENABLED}], indirect=True, ids=["restricted"]
)
def test_a_restricted_pod_writes_to_a_bucket_and_its_daemon_dies(
    world: World, store: ObjectStore, driver_class: str
) -> None:
    """S0-14: as its own user, with credentials that are nowhere in the pod; what was written is whole in the store."""
    secret = secrets.token_hex(16)
    store.let_in({"key": secret})
    give_secret(world, "key", secret)
    asked = user_pod("app", {"data": {"emptyDir": {}}})
    annotation = f"s3://{BUCKET}/run?class={driver_class}&secret={BUCKET}"
    asked["metadata"]["annotations"] = {f"{VOLUME_ANNOTATION_PREFIX}data": annotation}
    world.make(asked)
    world.runs("app")
    assert "uid=1000" in world.sh("app", "id")
    world.sh("app", "head -c 20000000 /dev/urandom >/dev/shm/x; cp /dev/shm/x /data/first")
    (mount_pod,) = world.path.mount_pods()
    assert mount_pod["metadata"]["namespace"] == MOUNTS_RESTRICTED
    world.sh(
        "app",
        "(cat /dev/shm/x /dev/shm/x /dev/shm/x >/data/second; echo $? >/dev/shm/done) >/dev/null 2>&1 &",
    )
    _kill_what_serves(world, mount_pod["metadata"]["name"])
    assert wait_for(lambda: world.sh("app", "cat /dev/shm/done").strip() == "0", WITHIN_S), world.path.told()
    world.sh("app", "cat /data/first >/dev/shm/y")
    digest = world.sh("app", "sha256sum </dev/shm/x").split()[0]
    assert world.sh("app", "sha256sum </dev/shm/y").split()[0] == digest == store.digest("run/first")
    assert (
        store.digest("run/second")
        == world.sh("app", "cat /dev/shm/x /dev/shm/x /dev/shm/x | sha256sum").split()[0]
    )
    told = world.api.run("get", "pods,volumeattachments,events", "--all-namespaces", "-o", "json")
    assert secret not in told
    world.gone("app")
    assert wait_for(world.path.is_idle, GONE_S), world.path.told()
    assert store.keys() == ["run/first", "run/second"]
    assert store.unfinished() == ""


def test_a_claim_is_a_prefix_of_a_bucket(world: World, store: ObjectStore, storage_class: str) -> None:
    """S4-10, S4-36, S4-42: what a pod writes lies beneath it alone; another claim sees nothing of it, and deleting it leaves nothing."""
    secret = secrets.token_hex(16)
    store.let_in({"key": secret})
    give_secret(world, "key", secret)
    world.make(
        *(claim(name, storage_class=storage_class) for name in ("first", "second")),
        user_pod("app", {"first": "first", "second": "second"}),
    )
    world.runs("app")
    world.sh("app", "mkdir /first/d && echo hello >/first/d/file")
    assert world.sh("app", "cat /first/d/file; ls -A /second").strip() == "hello"
    world.grow("first", "2Mi")
    volume = world.api.get("pv", world.bound("first"))
    assert volume is not None
    assert volume["spec"]["csi"]["volumeHandle"].startswith(f"{volume['metadata']['name']}.")
    held = f"claims/volumes/{volume['spec']['csi']['volumeHandle']}/d/file"
    assert held in store.keys(), store.keys()  # noqa: SIM118 - no mapping
    assert secret not in json.dumps(volume)
    assert wait_for(lambda: "VolumeResizeSuccessful" in world.events("first"), WITHIN_S), world.path.told()
    world.gone("app")
    world.unclaim("first", "second")
    assert wait_for(lambda: store.keys() == ["claims/.sidemount/pool"], GONE_S), store.keys()
    assert secret not in world.path.told()
