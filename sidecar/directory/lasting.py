"""Open files that a successor goes on with as they are open now: it could not always open them again.

Others may have renamed, replaced or removed a file meanwhile, or the daemon itself may not be allowed to open it once more. So the holder
has every open file, as far as there is room, before the caller hears of it. All others are opened again by name.
"""

import os
from collections.abc import Mapping

from sidecar.directory.handles import OpenFile, OpenFiles, parse_traits
from sidecar.directory.nodes import NodeTable
from sidecar.takeover.errand import Errands
from sidecar.takeover.handle_ledger import Handles
from sidecar.takeover.holder import DescriptorHolder

_KEY = 1 << 63  # what the holder knows handles by; nodes have smaller numbers
_MOST = 256  # descriptors in queues are counted by user, for the whole node: ETOOMANYREFS for others beyond RLIMIT_NOFILE
_ROUNDS = 64  # requests after which the holder has let go of what was closed


class Lasting:
    """The open files of one volume that the holder has, by handle. `closed` is for any thread, the rest for the serving one."""

    def __init__(
        self, files: OpenFiles, holder: DescriptorHolder | None, errands: Errands, most: int = _MOST
    ) -> None:
        """`most` is how many a successor may have: it takes them all at once."""
        self._files = files
        self._holder = holder
        self._errands = errands
        self._most = min(most, _MOST)
        self._held: set[int] = set()
        self._rounds = 0
        self._is_errand_due = False

    def restore(self, held: Mapping[int, int], handles: Handles, nodes: NodeTable) -> dict[int, int]:
        """Have what a predecessor had open: descriptors of ours by now. Return those that stand for something else."""
        others = {}
        for key, fd in held.items():
            handle = key & ~_KEY
            node, number = handles.get(handle, (0, 0))
            if handle == key:
                others[key] = fd
            elif node in nodes.all:
                traits = parse_traits(number)
                file = OpenFile(
                    nodes[node],
                    fd,
                    traits.flags,
                    drops_privileges=traits.drops_privileges,
                    backing=traits.backing,
                )
                self._files.adopt(handle, file)
                self._held.add(handle)
            else:
                self._drop(key)
                os.close(fd)
        return others

    def opened(self, handle: int) -> None:
        """Have the holder keep a file that was opened."""
        if self._holder is None or len(self._held) >= self._most:
            return
        descriptor = self._files.borrow_handle(handle)
        if descriptor is not None:
            with descriptor as fd:
                if self._holder.hold(_KEY | handle, fd):
                    self._held.add(handle)

    def closed(self, handle: int) -> None:
        """Let go of a file that is about to be closed."""
        if handle in self._held:
            self._held.discard(handle)
            self._drop(_KEY | handle)

    def _drop(self, key: int) -> None:
        if self._holder is None:
            return
        self._holder.drop(key)
        if not self._is_errand_due:
            self._is_errand_due = True
            self._rounds = 0
            self._errands.append(self._tidy)

    def _tidy(self, idle: bool) -> bool:
        self._rounds += 1
        if not idle and self._rounds < _ROUNDS:
            return True
        self._is_errand_due = False
        if self._holder is not None:
            self._holder.tidy()
        return False
