"""Several pools in one controller: what one does not answer, or has, is no matter of the others."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from csi.controller_pools import Pools
from csi.faults import PoolClosed
from csi.provision_request import CreateRequest
from csi.volume_ids import id_of_name, is_id
from csi.volume_pool import DirectoryPool
from csi.volume_state import Kind
from csi.volume_store import VolumeStore
from sidemount.model.errors import NotReady
from sidemount.stores.faults import fault
from sidemount.stores.store import FaultKind
from tests.csi.bucket_world import Bucket, bucket_class, facts_of, request_of


def _away(number: int, name: str) -> None:
    raise fault(FaultKind.SERVER, "away")


def _request(name: str, driver_class: str) -> CreateRequest:
    return replace(request_of(name), parameters={"class": driver_class})


@pytest.mark.parametrize("is_first", [True, False])
def test_deleting_needs_no_pool_but_the_volumes_own(tmp_path: Path, is_first: bool) -> None:
    """A directory that is not mounted, and a bucket that is away, hold up nothing that is in another one."""
    bucket, other = Bucket(), Bucket(source="memory://bucket/other")
    held = bucket.pool()
    made = held.make_volume(bucket.plan("v"))
    others: list[VolumeStore] = [DirectoryPool(str(tmp_path / "missing")), other.pool(_away)]

    async def main() -> None:
        stores = [*others, held] if is_first else [held, *others]
        pools = Pools(stores, lambda: bucket.facts, wait_s=5, answer_s=5)
        await pools.delete(Kind.VOLUME, made.id)
        assert bucket.held() == []
        with pytest.raises((NotReady, PoolClosed)):  # it may be in one of the others
            await pools.delete(Kind.VOLUME, made.id)

    asyncio.run(main())


def test_a_bucket_that_hangs_holds_up_no_removal_in_another() -> None:
    source = "memory://bucket/other"
    bucket, other = Bucket(), Bucket(bucket_class(source=source), source=source)
    held = bucket.pool()
    made = held.make_volume(bucket.plan("v"))
    is_back = threading.Event()

    def wait(number: int, name: str) -> None:
        is_back.wait(60)

    async def main() -> None:
        hanging = other.pool(wait)
        pools = Pools([hanging, held], lambda: bucket.facts, wait_s=30, answer_s=30)
        async with asyncio.timeout(20):
            await pools.delete(Kind.VOLUME, made.id)
        assert bucket.held() == []

    try:
        asyncio.run(main())
    finally:
        is_back.set()


def test_a_pool_that_is_away_holds_up_no_creation_in_another() -> None:
    """Only where the same request may have been carried out before does silence count."""
    other_source = "memory://bucket/other"
    bucket, other = Bucket(), Bucket(bucket_class(source=other_source), source=other_source)
    facts = facts_of(bucket_class(), bucket_class("others", source=other_source))

    async def main() -> None:
        pools = Pools([other.pool(_away), bucket.pool()], lambda: facts, wait_s=5, answer_s=5)
        asked = _request("v", "pooled")
        made = await pools.create(asked)
        assert made.pool == bucket.source
        assert await pools.create(asked) == made
        for undecided in (request_of("w"), _request("w", "others")):
            with pytest.raises(NotReady, match=other_source):
                await pools.create(undecided)

    asyncio.run(main())


def test_no_name_is_the_id_of_a_volume_in_a_bucket() -> None:
    """Or a volume in a directory could be deleted with one in a bucket: whoever names volumes sees the ids of others."""
    bucket = Bucket()
    made = bucket.pool().make_volume(bucket.plan("pvc-1"))
    assert is_id(made.id)
    assert id_of_name(made.id) != made.id
    assert id_of_name("v1.0123456789ab").startswith("csi-")
    assert id_of_name("v1.0123456789AB") == "v1.0123456789AB"
