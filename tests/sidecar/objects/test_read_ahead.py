"""Who reads on and on, whatever the order in which the kernel asks; and how memory is shared among all who do."""

import random
import threading

from sidecar.objects.block_costs import BlockCosts
from sidecar.objects.block_heat import BlockHeat
from sidecar.objects.read_ahead import Advice, Shares, Streams
from sidecar.objects.read_ahead_threads import ReadAheadThreads
from tests.sidecar.objects.scripted_store import KIB, until

BLOCK = 2 << 20
FILE = 1 << 30


def make(most: int = 12, memory: int = 64) -> Streams:
    return Streams(Shares(most, memory), BLOCK, FILE)


def follow(streams: Streams, offsets: list[int], size: int) -> list[Advice]:
    return [streams.note(offset, size) for offset in offsets]


def test_the_window_grows_with_each_block_up_to_its_bound() -> None:
    streams = make()
    ends = []
    for offset in range(0, 40 * BLOCK, 128 * KIB):
        advice = streams.note(offset, 128 * KIB)
        if advice.ahead:
            ends.append(advice.ahead.stop - 1 - offset // BLOCK)
    assert ends[:5] == [1, 2, 4, 8, 12]
    assert set(ends[5:]) == {12}


def test_every_block_is_asked_for_once() -> None:
    streams = make()
    asked = [number for offset in range(0, FILE, 1 << 20) for number in streams.note(offset, 1 << 20).ahead]
    assert asked == list(range(FILE // BLOCK))


def test_requests_out_of_turn_are_one_stream() -> None:
    choice = random.Random(7)
    streams = make()
    offsets = list(range(0, 64 * BLOCK, 128 * KIB))
    for at in range(0, len(offsets), 4):
        part = offsets[at : at + 4]
        choice.shuffle(part)
        offsets[at : at + 4] = part
    advices = follow(streams, offsets, 128 * KIB)
    asked = [number for advice in advices for number in advice.ahead]
    assert asked == sorted(set(asked))
    assert all(advice.is_sequential for advice in advices[8:])


def test_several_readers_in_one_file_are_several_streams() -> None:
    streams = make()
    begins = [0, 100 * BLOCK, 200 * BLOCK, 300 * BLOCK]
    asked: dict[int, list[int]] = {begin: [] for begin in begins}
    for step in range(64):
        for begin in begins:
            asked[begin] += streams.note(begin + step * (1 << 20), 1 << 20).ahead
    for begin, numbers in asked.items():
        first = begin // BLOCK
        assert numbers == list(range(first, first + len(numbers)))
        assert len(numbers) >= 32


def test_a_read_of_the_application_in_pieces_is_not_yet_a_stream() -> None:
    choice = random.Random(3)
    streams = make()
    for _ in range(50):
        begin = choice.randrange(1, FILE // BLOCK - 1) * BLOCK
        for piece in range(7):
            advice = streams.note(begin + piece * 128 * KIB, 128 * KIB)
            assert not advice.is_sequential
            assert not advice.ahead


def test_random_reads_are_no_stream() -> None:
    choice = random.Random(1)
    streams = make()
    advices = [streams.note(choice.randrange(FILE // 4096) * 4096, 4096) for _ in range(5000)]
    assert sum(advice.is_sequential for advice in advices) <= 5


def test_to_note_a_request_again_changes_nothing() -> None:
    streams = make()
    for offset in (0, 1 << 20, 2 << 20, 500 << 20):
        first, again = streams.note(offset, 1 << 20), streams.note(offset, 1 << 20)
        assert again.is_sequential == first.is_sequential
        assert not again.ahead
        assert not again.abandoned


def test_after_a_seek_the_window_is_small_again_and_what_lies_behind_is_let_go() -> None:
    streams = make()
    for offset in range(0, 20 * BLOCK, 1 << 20):
        streams.note(offset, 1 << 20)
    for number in range(1, 8):
        streams.note(30 * number * BLOCK, 128 * KIB)
    advice = streams.note(400 * BLOCK, 128 * KIB)
    assert advice.abandoned == range(20, 32)
    for piece in range(1, 8):
        advice = streams.note(400 * BLOCK + piece * 128 * KIB, 128 * KIB)
    assert advice.is_sequential
    assert advice.ahead == range(400, 402)


def test_a_closed_file_tells_what_nobody_will_come_for() -> None:
    streams = make(most=4)
    for offset in range(0, 6 * BLOCK, 1 << 20):
        streams.note(offset, 1 << 20)
    assert streams.close() == [range(6, 10)]


def test_nothing_is_asked_for_beyond_the_end() -> None:
    streams = Streams(Shares(12, 64), BLOCK, 3 * BLOCK + 1)
    asked = [
        number for offset in range(0, 3 * BLOCK, 1 << 20) for number in streams.note(offset, 1 << 20).ahead
    ]
    assert asked == [0, 1, 2, 3]


def test_sixteen_files_share_the_memory() -> None:
    shares = Shares(12, 64)
    files = [Streams(shares, BLOCK, FILE) for _ in range(16)]
    ahead = [0] * 16
    for offset in range(0, 40 * BLOCK, 1 << 20):
        for number, file in enumerate(files):
            advice = file.note(offset, 1 << 20)
            if advice.ahead:
                ahead[number] = advice.ahead.stop - 1 - offset // BLOCK
    assert ahead == [3] * 16
    for file in files[1:]:
        file.close()
    advices = follow(files[0], list(range(40 * BLOCK, 60 * BLOCK, 1 << 20)), 1 << 20)
    assert max(advice.ahead.stop - 41 - at // 2 for at, advice in enumerate(advices) if advice.ahead) == 12


def test_more_streams_than_memory_has_blocks_for_get_no_whole_blocks() -> None:
    shares = Shares(12, 8)
    files = [Streams(shares, BLOCK, FILE) for _ in range(10)]
    last = [[file.note(offset, 1 << 20) for file in files] for offset in range(0, 4 * BLOCK, 1 << 20)][-1]
    assert not any(advice.is_sequential or advice.ahead for advice in last)


def test_a_block_is_hot_only_while_there_is_room_for_it() -> None:
    heat = BlockHeat(4, BlockCosts(BLOCK))
    assert [heat.note(("key", "etag", 0)) for _ in range(6)] == [False] * 5 + [True]
    for _ in range(20):
        assert not any(heat.note(("key", "etag", number)) for number in range(5))


def test_threads_do_all_work_and_end() -> None:
    threads = ReadAheadThreads(3)
    before = set(threading.enumerate())
    may = threading.Event()
    done: list[int] = []

    def work(number: int) -> None:
        assert may.wait(20)
        done.append(number)

    for number in range(20):
        assert threads.submit(lambda number=number: work(number))  # type: ignore[misc]  # of the default
    own = set(threading.enumerate()) - before
    assert len(own) == 3
    may.set()
    until(lambda: len(done) == 20)
    threads.close(20)
    assert not any(thread.is_alive() for thread in own)
    assert not threads.submit(lambda: None)


def test_work_that_fails_ends_no_thread() -> None:
    threads = ReadAheadThreads(1)
    done = threading.Event()
    threads.submit(lambda: 1 // 0)
    threads.submit(done.set)
    assert done.wait(20)
    threads.close(20)
