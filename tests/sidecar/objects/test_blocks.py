"""Blocks in memory: fetched once, bounded, never overwritten while somebody looks."""

import errno
import threading
from functools import partial

import pytest

from sidecar.objects.block_memory import Block, BlockMemory, fitting_block_bytes
from sidecar.objects.blocks import Blocks, NoRoom
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault
from tests.sidecar.objects.scripted_store import BLOCK, until

INFO = ObjectInfo("key", 1000 * BLOCK, "etag", 0)


class Loader:
    """Fills a block with its number, when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.may.set()
        self.loads: list[int] = []
        self.fault: Exception | None = None

    def __call__(self, info: ObjectInfo, number: int, content: memoryview) -> None:
        self.loads.append(number)
        assert self.may.wait(20)
        if self.fault is not None:
            raise self.fault
        content[:] = bytes([number % 256]) * len(content)


def make(loader: Loader, count: int = 8, wait_s: float = 20.0) -> Blocks:
    return Blocks(BlockMemory(count * BLOCK, BLOCK), loader, wait_s)


def in_threads(work: list[threading.Thread]) -> None:
    for thread in work:
        thread.start()


def test_a_block_is_fetched_once_for_all_who_wait() -> None:
    loader = Loader()
    blocks = make(loader)
    loader.may.clear()
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(bytes(blocks.read(INFO, 3)))) for _ in range(8)]
    in_threads(threads)
    until(lambda: loader.loads == [3])
    loader.may.set()
    for thread in threads:
        thread.join(20)
    assert found == [b"\3" * BLOCK] * 8
    assert loader.loads == [3]


def test_all_who_wait_get_the_fault_and_the_next_tries_again() -> None:
    loader = Loader()
    blocks = make(loader)
    loader.may.clear()
    loader.fault = StoreFault(errno.ESTALE, FaultKind.CHANGED, "changed")
    found: list[StoreFault] = []

    def read() -> None:
        with pytest.raises(StoreFault) as caught:
            blocks.read(INFO, 3)
        found.append(caught.value)

    threads = [threading.Thread(target=read) for _ in range(4)]
    in_threads(threads)
    until(lambda: loader.loads == [3])
    loader.may.set()
    for thread in threads:
        thread.join(20)
    assert [fault.kind for fault in found] == [FaultKind.CHANGED] * 4
    assert len({id(fault) for fault in found}) == 4
    loader.fault = None
    assert blocks.read(INFO, 3)[0] == 3
    assert blocks.allocated_bytes == BLOCK  # what the faulty fetch had has been used again


def test_whoever_waits_for_another_s_fetch_does_so_for_so_long_only() -> None:
    loader = Loader()
    blocks = make(loader, wait_s=0.05)
    loader.may.clear()
    other = threading.Thread(target=lambda: blocks.read(INFO, 1))
    other.start()
    until(lambda: loader.loads == [1])
    with pytest.raises(StoreFault) as caught:
        blocks.read(INFO, 1)
    assert caught.value.errno == errno.ETIMEDOUT
    loader.may.set()
    other.join(20)


def test_a_reader_does_himself_what_nobody_has_begun() -> None:
    loader = Loader()
    blocks = make(loader)
    fetch = blocks.expect(INFO, 5, is_ahead=True)
    assert fetch is not None
    assert blocks.expect(INFO, 5, is_ahead=True) is None
    assert blocks.read(INFO, 5)[0] == 5
    assert blocks.carry_out(fetch, waits=False) is False
    assert loader.loads == [5]


def test_memory_stays_below_its_bound_and_the_longest_unused_goes_first() -> None:
    loader = Loader()
    blocks = make(loader, 8)
    for number in range(8):
        blocks.read(INFO, number)
    blocks.read(INFO, 0)
    for number in range(8, 11):
        blocks.read(INFO, number)
        assert blocks.allocated_bytes <= 8 * BLOCK
    there = [number for number in range(11) if blocks.has(blocks.key(INFO, number))]
    assert there == [0, 4, 5, 6, 7, 8, 9, 10]
    assert blocks.evicted == 3


def test_what_somebody_looks_at_is_nobody_else_s() -> None:
    loader = Loader()
    blocks = make(loader, 8)
    slices = [blocks.read(INFO, number)[10:20] for number in range(7)]
    for number in range(7, 50):
        blocks.read(INFO, number)
    assert [bytes(view) for view in slices] == [bytes([number]) * 10 for number in range(7)]
    assert blocks.allocated_bytes == 8 * BLOCK


def test_with_all_memory_in_use_a_reader_hears_so_and_what_is_freed_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sidecar.objects.blocks._ROOM_WAIT_S", 0.05)
    loader = Loader()
    blocks = make(loader, 8)
    views = [blocks.read(INFO, number) for number in range(8)]
    with pytest.raises(NoRoom):
        blocks.read(INFO, 9)
    assert blocks.take(BLOCK) is None
    views.pop()
    assert blocks.read(INFO, 9)[0] == 9


def test_what_was_read_ahead_outlives_what_was_read() -> None:
    loader = Loader()
    blocks = make(loader, 8)
    for number in range(100, 104):
        fetch = blocks.expect(INFO, number, is_ahead=True)
        assert fetch is not None
        blocks.carry_out(fetch, waits=False)
    del fetch
    for number in range(20):
        blocks.read(INFO, number)
    assert all(blocks.has(blocks.key(INFO, number)) for number in range(100, 104))
    blocks.let_go([blocks.key(INFO, number) for number in range(100, 104)])
    for number in range(20, 28):
        blocks.read(INFO, number)
    assert not any(blocks.has(blocks.key(INFO, number)) for number in range(100, 104))
    assert blocks.unread_bytes == 4 * BLOCK


def test_what_nobody_comes_for_is_not_fetched() -> None:
    loader = Loader()
    blocks = make(loader)
    fetch = blocks.expect(INFO, 5, is_ahead=True)
    assert fetch is not None
    blocks.let_go([blocks.key(INFO, 5)])
    assert blocks.carry_out(fetch, waits=False) is False
    assert loader.loads == []
    assert blocks.read(INFO, 5)[0] == 5


def test_small_and_whole_blocks_share_one_bound() -> None:
    memory = BlockMemory(8 * BLOCK, BLOCK)
    whole = [memory.take(BLOCK) for _ in range(8)]
    assert None not in whole
    assert memory.take(1) is None
    one = whole.pop()
    assert one is not None
    memory.give_back(one)
    del one
    assert memory.allocated_bytes == 8 * BLOCK
    assert memory.take(10) is not None
    assert memory.allocated_bytes == 7 * BLOCK + 10
    assert memory.take(BLOCK) is None


def test_a_block_that_is_looked_at_keeps_its_buffer() -> None:
    block = Block(bytearray(b"content"), 7)
    assert block.view is not None
    part = block.view[2:4]
    assert block.retire() is None
    assert block.view is not None
    assert bytes(block.view) == b"content"
    del part
    assert block.retire() is not None
    assert block.view is None


@pytest.mark.parametrize(
    ("wanted", "bound", "fitting"),
    [
        (2 << 20, 128 << 20, 2 << 20),
        (2 << 20, 4 << 20, 512 << 10),
        (3 << 20, 16 << 20, 2 << 20),
        (1 << 20, 0, 64 << 10),
    ],
)
def test_enough_blocks_fit(wanted: int, bound: int, fitting: int) -> None:
    assert fitting_block_bytes(wanted, bound) == fitting


def passing(blocks: Blocks, loader: Loader, numbers: range) -> None:
    """Read on and on, as a reader with some blocks ahead does."""
    for number in numbers:
        fetch = blocks.expect(INFO, number, is_ahead=True)
        assert fetch is not None
        blocks.carry_out(fetch, waits=True)
        del fetch
        assert blocks.read(INFO, number)[0] == number % 256
        blocks.pass_by([blocks.key(INFO, number - 1)])


def test_who_reads_on_and_on_takes_what_he_has_left_behind() -> None:
    loader = Loader()
    blocks = Blocks(BlockMemory(32 * BLOCK, BLOCK), loader, 20.0, 4 * BLOCK)
    blocks.read(INFO, 900)
    passing(blocks, loader, range(20))
    assert blocks.allocated_bytes == 4 * BLOCK
    assert blocks.has(blocks.key(INFO, 900))  # which is somebody else's
    passing(blocks, loader, range(17))
    assert blocks.allocated_bytes >= 16 * BLOCK  # what comes by for the second time is worth memory
    assert blocks.allocated_bytes <= blocks.bound_bytes


def test_what_somebody_else_asks_for_is_not_left_behind() -> None:
    loader = Loader()
    blocks = make(loader)
    for number in range(100, 103):  # such as a prefetch
        blocks.read(INFO, number)
    passing(blocks, loader, range(4))
    blocks.pass_by([blocks.key(INFO, number) for number in range(100, 103)])
    blocks.read(INFO, 0)
    for number in range(10, 13):
        blocks.read(INFO, number)
    assert [number for number in range(4) if blocks.has(blocks.key(INFO, number))] == [0, 3]
    assert all(blocks.has(blocks.key(INFO, number)) for number in range(100, 103))


def test_what_is_put_while_it_is_fetched_takes_no_room_twice() -> None:
    """An open brings a small file while somebody fetches it ahead: of the two, one is given back."""
    loader = Loader()
    blocks = make(loader)
    for number in range(8):
        fetch = blocks.expect(INFO, number, is_ahead=True)
        assert fetch is not None
        loader.may.clear()
        thread = threading.Thread(target=blocks.carry_out, args=(fetch,), kwargs={"waits": False})
        thread.start()
        until(partial(loader.loads.__contains__, number))
        buffer = blocks.take(BLOCK)
        assert buffer is not None
        block = Block(buffer, BLOCK)
        del buffer
        assert block.view is not None
        block.view[:] = bytes([number]) * BLOCK
        blocks.put(INFO, number, block)
        del block
        loader.may.set()
        thread.join(20)
        assert fetch.fault is None
        del fetch, thread
    blocks.forget("key")
    views = [blocks.read(INFO, 100 + number) for number in range(8)]  # all of the memory is there for others
    assert [view[0] for view in views] == [100 + number for number in range(8)]
