"""Pools in buckets of real servers: what a volume rests on are conditions that the server itself enforces."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from grpc import StatusCode

from csi.bucket_access import BucketAccess
from csi.bucket_identity import BucketIdentity
from csi.bucket_pool import BucketPool
from csi.proto import csi_pb2
from csi.provision_request import CapacityRange
from csi.volume_state import Kind
from e2e.servers.fault_proxy import FaultProxy
from e2e.servers.faults import Answer, Delay, LoseAnswer
from e2e.servers.versity import Versity
from sidemount.stores.store import ObjectStore
from tests.csi.bucket_plugin import InBucket
from tests.csi.bucket_world import POOL, facts_of, plan_for
from tests.csi.controlled import MIB
from tests.csi.plugin import Refused
from tests.host.mount_node import MountNode
from tests.stores.kinds import KINDS, kind_of

pytestmark = pytest.mark.timeout(120, func_only=True)
CANARY = "c4naryOfThePool"


@pytest.fixture(params=[name for name in KINDS if name != "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """A store with nothing in it."""
    made = kind_of(request.param, request, tmp_path).open()
    yield made
    made.close()


def _pool(store: ObjectStore) -> BucketPool:
    access = BucketAccess(POOL, facts_of, opening=lambda source, settings, secrets: store)
    return BucketPool(POOL, access, BucketIdentity(POOL))


def _keys(store: ObjectStore) -> list[str]:
    found = store.list_page("", delimiter=False).objects
    return sorted(info.key for info in found if info.key != ".sidemount/pool")


def test_the_life_of_a_volume(store: ObjectStore) -> None:
    """Made once by many at once; grown; removed with all that is in it, unfinished uploads too, and nothing else."""
    made: list[str] = []

    def make() -> None:
        made.append(_pool(store).make_volume(plan_for("v", 10)).id)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 6
    assert len(set(made)) == 1
    id_ = made[0]
    pool = _pool(store)
    for number in range(30):
        store.put(f"volumes/{id_}/d/{number:02d}", [b"x"])
    for key in (f"volumes/{id_}x", "volumes/other/x", "elsewhere"):
        store.put(key, [b"x"])
    upload = store.begin_upload(f"volumes/{id_}/big")
    store.put_part(f"volumes/{id_}/big", upload, 1, [b"x" * (5 << 20)])
    assert pool.expand(id_, CapacityRange(20)).capacity_bytes == 20
    assert pool.states(Kind.VOLUME, pool.ids(Kind.VOLUME)).keys() == {"v"}
    assert pool.remove(Kind.VOLUME, id_)
    assert _keys(store) == sorted([f"volumes/{id_}x", "volumes/other/x", "elsewhere"])
    assert store.uploads(f"volumes/{id_}/") == []
    assert (pool.named("v"), pool.unfinished(), pool.remove(Kind.VOLUME, id_)) == (None, [], False)
    again = pool.make_volume(plan_for("v", 10))
    assert again.id != id_
    assert pool.remove(Kind.VOLUME, again.id)


def test_controllers_that_make_and_remove_at_once(store: ObjectStore) -> None:
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        pool = _pool(store)
        try:
            for number in range(6):
                made = pool.make_volume(plan_for("v"))
                if (seed + number) % 2:
                    pool.remove(Kind.VOLUME, made.id)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert faults == []
    pool = _pool(store)
    pool.remove(Kind.VOLUME, pool.make_volume(plan_for("v")).id)
    for name in pool.unfinished():
        pool.settle(name)
    assert _keys(store) == []


# The process, with credentials -----------------------------------------------------------------------


@contextmanager
def _running(
    node: MountNode, versity: Versity, prefix: str, *flags: str
) -> Iterator[tuple[InBucket, FaultProxy]]:
    place = versity.place
    with FaultProxy(int(place.endpoint.rpartition(":")[2])) as proxy:
        endpoint = f"http://127.0.0.1:{proxy.port}"
        more = f"""credentials: {{secretKeys: [access_key_id, secret_access_key], required: true}}
  options: {{endpoint: {{type: enum, values: ["{endpoint}"], default: "{endpoint}"}}}}"""
        controller = InBucket(node, flags, source=f"s3://{place.bucket}/{prefix}", more=more)
        try:
            controller.start()
            yield controller, proxy
        finally:
            controller.end()


@pytest.mark.root
def test_credentials_of_the_call(node: MountNode, versity_server: Versity) -> None:
    """S4-26: the StorageClass's Secret; without it, and with another, the reason is told and nothing is made."""
    versity = versity_server
    with _running(node, versity, "by-call") as (controller, _):
        create = controller.create_request("v", MIB)
        with pytest.raises(Refused, match="no credentials for it") as refused:
            controller.ask("CreateVolume", create)
        assert refused.value.code is StatusCode.FAILED_PRECONDITION
        create.secrets.update(access_key_id=versity.place.access_key, secret_access_key=CANARY)
        with pytest.raises(Refused) as refused:
            controller.ask("CreateVolume", create)
        assert refused.value.code is StatusCode.FAILED_PRECONDITION
        assert CANARY not in refused.value.message
        create.secrets["secret_access_key"] = versity.place.secret_key
        made = controller.ask("CreateVolume", create).volume
        controller.kill()
        controller.start()
        assert controller.ask("CreateVolume", create).volume == made
        grow = csi_pb2.ControllerExpandVolumeRequest(volume_id=made.volume_id, secrets=create.secrets)
        grow.capacity_range.required_bytes = 2 * MIB
        assert controller.ask("ControllerExpandVolume", grow).capacity_bytes == 2 * MIB
        with pytest.raises(Refused, match="no credentials for it"):
            controller.delete(made.volume_id)
        delete = csi_pb2.DeleteVolumeRequest(volume_id=made.volume_id, secrets=create.secrets)
        for _ in range(2):
            controller.ask("DeleteVolume", delete)
        log = controller.log.read_text()
        assert CANARY not in log
        assert versity.place.secret_key not in log
        environment = Path(f"/proc/{controller.process.pid}/environ").read_bytes()
        assert versity.place.secret_key.encode() not in environment


@pytest.mark.root
def test_credentials_of_the_controller_and_a_server_that_fails(
    node: MountNode, versity_server: Versity
) -> None:
    """ADR 46's directory; the controller looks by itself then. What is away is UNAVAILABLE in time, and comes back."""
    secrets = node.work / "credentials" / "pooled"
    secrets.mkdir(parents=True)
    (secrets / "access_key_id").write_text(versity_server.place.access_key)
    (secrets / "secret_access_key").write_text(versity_server.place.secret_key)
    flags = ("--secrets-dir", str(secrets.parent), "--pool-timeout-seconds", "1")
    with _running(node, versity_server, "by-file", *flags) as (controller, proxy):
        made = [controller.create(f"v{number}").volume_id for number in range(3)]
        assert sorted(entry.volume.volume_id for entry in controller.volumes().entries) == sorted(made)
        proxy.refuse()
        calls = (controller.volumes, partial(controller.create, "w"), partial(controller.delete, made[0]))
        for call in calls:
            with pytest.raises(Refused, match="s3://bucket/by-file") as refused:
                call()
            assert refused.value.code is StatusCode.UNAVAILABLE
        proxy.accept()
        with proxy.doing(Delay(4)):
            with pytest.raises(Refused, match="does not answer within 1 s") as refused:
                controller.volumes()
            assert refused.value.code is StatusCode.UNAVAILABLE
        denied = Answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
        with proxy.doing(denied, "PUT"), pytest.raises(Refused, match="AccessDenied") as refused:
            controller.create("w")
        assert refused.value.code is StatusCode.PERMISSION_DENIED
        for number in range(4):  # carried out, and the answer lost: each of the calls in turn
            proxy.add(LoseAnswer(), skip=number)
            made.append(controller.create(f"lost-{number}").volume_id)
            proxy.clear()
        assert sorted(entry.volume.volume_id for entry in controller.volumes().entries) == sorted(made)
        for id_ in made:
            proxy.add(LoseAnswer(), "DELETE")
            controller.delete(id_)
            controller.delete(id_)
            proxy.clear()
        assert list(controller.volumes().entries) == []
        with proxy.doing(Delay(30)):
            with pytest.raises(Refused):
                controller.create("hanging")
            assert controller.stop() == 0  # a store that hangs holds no end up
