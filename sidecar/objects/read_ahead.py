"""Who reads on and on, and what he will ask for next.

One open file may have several readers in it: each is a stream, a place that requests go on from. The kernel sends
requests of one reader side by side and now and then out of turn, so a stream takes what begins a little before or behind its end.
"""

import threading
import time
from dataclasses import dataclass

_STREAMS_OF_A_FILE = 8
_TOLERANCE = 4  # requests: as many as the kernel may send out of turn
_PROVEN_BYTES = (
    1 << 20
)  # one after the other: less may be a single read of the application, which the kernel cuts into pieces
_PROVEN_REQUESTS = 16
_LARGE_BYTES = (
    128 << 10
)  # who wants to see only how a file begins asks for less, and the kernel for twice that at most
_ACTIVE_S = 2.0
_SHARE_FOR_READ_AHEAD = (3, 4)  # of the memory: the rest is for what is being read


class Shares:
    """How many blocks each stream of a volume may have ahead of it: what there is room for, in equal shares. For any thread."""

    def __init__(self, most_of_one: int, blocks_in_memory: int) -> None:
        of, parts = _SHARE_FOR_READ_AHEAD
        self._most = most_of_one
        self._blocks = blocks_in_memory * of // parts
        self._lock = threading.Lock()
        self._active: dict[Stream, float] = {}

    def of_one(self, stream: "Stream", now_s: float) -> int:
        """Return a stream's share, and count the stream among those that read."""
        with self._lock:
            self._active[stream] = now_s
            if len(self._active) > 1:
                for other in [one for one, at_s in self._active.items() if now_s - at_s > _ACTIVE_S]:
                    del self._active[other]
            return min(self._most, self._blocks // len(self._active))

    def given(self, now_s: float) -> int:
        """Return how many blocks all streams together may have."""
        with self._lock:
            active = sum(now_s - at_s <= _ACTIVE_S for at_s in self._active.values())
            return min(self._most * active, self._blocks)

    def end(self, stream: "Stream") -> None:
        """Count a stream no more."""
        with self._lock:
            self._active.pop(stream, None)


class Stream:
    """One reader in a file. `window` is how many blocks beyond the current one are wanted.

    `asked` is the block up to which all have been asked for, itself not included; `first` where that began; `passed` the one
    up to which all have been left behind. `is_starved`: there are so many
    streams that not even the block it is in would stay in memory until it has been read.
    """

    __slots__ = (
        "asked",
        "begin",
        "block",
        "end",
        "first",
        "is_proven",
        "is_starved",
        "passed",
        "requests",
        "window",
    )

    def __init__(self, begin: int, end: int) -> None:
        self.begin = begin
        self.end = end
        self.requests = 1
        self.is_proven = begin == 0 and end >= _LARGE_BYTES
        self.is_starved = False
        self.window = 0
        self.block = -1
        self.first = 0
        self.asked = 0
        self.passed = 0

    def grow(self, end: int) -> None:
        """Take a request that ends beyond all before it. Whoever goes on from the beginning of a file will read it all."""
        self.end = end
        self.requests += 1
        self.is_proven = (
            self.is_proven
            or self.begin == 0
            or end - self.begin >= _PROVEN_BYTES
            or self.requests >= _PROVEN_REQUESTS
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a request: whether its reader reads on and on, which blocks to fetch for him, which nobody will come for.

    `passed`: which he has left behind.
    """

    is_sequential: bool
    ahead: range
    abandoned: range
    passed: range = range(0)


_NOTHING = range(0)
_SINGLE = Advice(False, _NOTHING, _NOTHING)
_GOES_ON = Advice(True, _NOTHING, _NOTHING)


class Streams:
    """The streams of one open file. For any thread."""

    def __init__(self, shares: Shares, block_bytes: int, size: int) -> None:
        self._shares = shares
        self._block_bytes = block_bytes
        self._blocks = -(-size // block_bytes)
        self._lock = threading.Lock()
        self._streams: list[Stream] = []  # the one that has gone on last at the end

    def note(self, offset: int, size: int) -> Advice:
        """Take note of a request. To note one again changes nothing."""
        with self._lock:
            stream = self._match(offset, size)
            if stream is None:
                return self._begin(offset, size)
            if stream is not self._streams[-1]:
                self._streams.remove(stream)
                self._streams.append(stream)
            stream.begin = min(stream.begin, offset)
            if offset + size > stream.end:
                stream.grow(offset + size)
            return self._advance(stream, offset) if stream.is_proven else _SINGLE

    def close(self) -> list[range]:
        """End all streams, and return the blocks that nobody will come for."""
        with self._lock:
            streams, self._streams = self._streams, []
            return [self._end(stream) for stream in streams]

    def _match(self, offset: int, size: int) -> Stream | None:
        reach = size * _TOLERANCE
        for stream in reversed(self._streams):
            if -reach <= offset - stream.end <= reach:
                return stream
        return None

    def _begin(self, offset: int, size: int) -> Advice:
        abandoned = _NOTHING
        if len(self._streams) == _STREAMS_OF_A_FILE:
            abandoned = self._end(self._streams.pop(0))
        stream = Stream(offset, offset + size)
        self._streams.append(stream)
        advice = self._advance(stream, offset) if stream.is_proven else _SINGLE
        if not abandoned:
            return advice
        return Advice(advice.is_sequential, advice.ahead, abandoned, advice.passed)

    def _end(self, stream: Stream) -> range:
        if stream.block < 0:
            return _NOTHING  # it has never had anything
        self._shares.end(stream)
        return range(max(stream.first, stream.block + 1), stream.asked)

    def _advance(self, stream: Stream, offset: int) -> Advice:
        """Open a stream's window a little further with each block that it comes to. The first time, that block itself is wanted."""
        block = offset // self._block_bytes
        if block <= stream.block:
            return _SINGLE if stream.is_starved else _GOES_ON
        if stream.block < 0:
            stream.passed = block
        stream.block = block
        behind = range(
            stream.passed, block - 1
        )  # the kernel may yet ask out of turn for what is in the one before
        stream.passed = max(behind.stop, stream.passed)
        share = self._shares.of_one(stream, time.monotonic())
        stream.is_starved = share == 0
        stream.window = min(share, max(1, stream.window * 2))
        begin = max(stream.asked, block + 1) if stream.asked else block
        end = min(self._blocks, block + 1 + stream.window)
        if stream.is_starved:
            return _SINGLE
        if end <= begin:
            return Advice(True, _NOTHING, _NOTHING, behind)
        if not stream.asked:
            stream.first = begin
        stream.asked = end
        return Advice(True, range(begin, end), _NOTHING, behind)
