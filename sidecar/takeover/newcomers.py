"""Requests that a drain has read and no server ever had.

A drain cannot but take the first request that is new, and gives it back marked like those that a server had read. If its process
dies then, the next drain has to tell the two apart: a new request may be equal to one that was answered, whose step is not closed yet.

So a drain has the kernel put each message's header into the state file itself. The kernel counts a request as read only when all of
it has been copied, and a kill comes after that: there is no instant at which a new request is read and not noted here.
"""

import struct
from collections.abc import Callable

from sidecar.takeover import layout, wire

_OPCODE_AND_UNIQUE = struct.Struct("=4xIQ")
_ASIDE = frozenset({wire.FORGET, wire.BATCH_FORGET, wire.INTERRUPT})  # nothing that is read twice
_NOTHING = bytes(layout.NEWCOMER_BYTES)


class Newcomers:
    """Those of one connection since a process last began to serve it, noted in `memory`: in a state file, or for this process alone."""

    def __init__(self, memory: memoryview | None = None) -> None:
        size = layout.NEWCOMERS * layout.NEWCOMER_BYTES
        memory = memoryview(bytearray(size)) if memory is None else memory
        self._places = [
            memory[at : at + layout.NEWCOMER_BYTES] for at in range(0, size, layout.NEWCOMER_BYTES)
        ]

    def receive(self, read: Callable[[memoryview], int | None]) -> int | None:
        """Return what `read` returns, which is given a place for the header of the next message. A new request stays noted there.

        If there is no place left, the last newcomer is forgotten.
        """
        place = next((place for place in self._places if not _newcomer_in(place)), self._places[-1])
        place[:] = _NOTHING  # also makes the page resident: see `make_buffer_resident`
        return read(place)

    @property
    def uniques(self) -> frozenset[int]:
        """Return the kernel's numbers for them, without its mark."""
        return frozenset(map(_newcomer_in, self._places)) - {0}

    def clear(self) -> None:
        """Forget all, for nothing that they could be mistaken for is left."""
        for place in self._places:
            if _newcomer_in(place):
                place[:] = _NOTHING


def _newcomer_in(place: memoryview) -> int:
    """Return the number of the request that is noted in a place, 0 if none is."""
    opcode, unique = _OPCODE_AND_UNIQUE.unpack_from(place)
    return 0 if opcode in _ASIDE or unique & wire.RESENT else int(unique)
