"""Files that have lost their last name while the kernel knows them: held open, because nothing else leads to them.

The one place that decides what becomes of them. With a holder they outlive this process: those that are open are held before the name
goes, and those that may be in use without our knowing (somebody is in a directory, has a pipe open); others soon after, if the
kernel has not forgotten them by then.
"""

import logging
import os
from collections.abc import Callable, Mapping
from stat import S_IFLNK

from sidecar.directory.descriptors import Descriptors
from sidecar.directory.handles import OpenFiles
from sidecar.directory.nodes import Node, NodeTable
from sidecar.directory.status import REGULAR, kind_of
from sidecar.takeover.errand import Errands
from sidecar.takeover.holder import DescriptorHolder

_LOG = logging.getLogger(__name__)
_OPENED_BY_US = (REGULAR, S_IFLNK >> 12)  # the kernel opens special files itself
_ROUNDS = 16  # requests within which the kernel forgets a file that nobody uses


class Nameless:
    """The nameless files of one volume. Without a holder they end with this process."""

    def __init__(
        self,
        nodes: NodeTable,
        files: OpenFiles,
        descriptors: Descriptors,
        holder: DescriptorHolder | None,
        errands: Errands,
    ) -> None:
        self._nodes = nodes
        self._files = files
        self._descriptors = descriptors
        self._holder = holder
        self._errands = errands
        self._held: dict[int, int] = {}  # what the holder has: descriptors of ours, by node
        self._waiting: set[int] = set()  # nodes that it is to get unless the kernel forgets them first
        self._rounds = 0
        self._refused = 0
        self._is_errand_due = False

    def restore(self, held: Mapping[int, int]) -> None:
        """Have what a predecessor gave to the holder: descriptors of ours by now."""
        for node, descriptor in held.items():
            if node in self._nodes.all:
                self._descriptors.keep_nameless(node, descriptor)
                self._held[node] = descriptor
            else:
                if self._holder is not None:
                    self._holder.release(node)
                os.close(descriptor)

    def lose(
        self, node: Node | None, above: Node, name: bytes, held: int, take_away: Callable[[], None]
    ) -> None:
        """Have a name taken away from the file that `held` holds. Takes the descriptor over."""
        if node is None:
            try:
                take_away()
            finally:
                os.close(held)
            return
        before = self._held.get(node.id)
        if self._holder is not None and self._must_be_held(node, above, name):
            self._hold(node.id, held)
        try:
            take_away()
            is_reachable = self._nodes.unlink(node, above, name)
        except BaseException:
            self._undo(node, held, before)
            raise
        if is_reachable or not self._nodes.lookups(node):
            self._undo(node, held, before)
            return
        self._descriptors.keep_nameless(node.id, held)
        if self._holder is not None and node.id not in self._held:
            self._waiting.add(node.id)
            self._be_errand()

    def discard(self, node: int) -> None:
        """Let go of a node that has ended."""
        self._release(node)
        self._descriptors.discard(node)

    def shed(self) -> bool:
        """Let go of those that are not open, so that the store can use their space. Return whether there was any."""
        for node in list(self._held):
            if not self._files.is_open(node):
                self._release(node)
        return self._descriptors.shed_nameless(spared=self._files.is_open)

    def _must_be_held(self, node: Node, above: Node, name: bytes) -> bool:
        """Tell whether the holder has to have a node before it loses a name."""
        may_be_used = kind_of(node.identity) not in _OPENED_BY_US
        if not (may_be_used or node.id in self._held or self._files.is_open(node.id)):
            return False
        if not self._nodes.lookups(node):
            return False
        return all(link == (above, name) for link in self._nodes.links(node))

    def _hold(self, node: int, descriptor: int) -> None:
        if self._holder is None:
            return
        if self._holder.hold(node, descriptor):
            self._held[node] = descriptor
        else:
            self._held.pop(node, None)
            self._refused += 1
            if self._refused.bit_count() == 1:
                _LOG.warning("nameless_files_not_kept", extra={"times": self._refused})

    def _release(self, node: int) -> None:
        self._waiting.discard(node)
        if self._holder is not None and self._held.pop(node, None) is not None:
            self._holder.release(node)

    def _undo(self, node: Node | None, held: int, before: int | None) -> None:
        """Have the holder keep what it did before, and close what was for it."""
        if node is not None and self._held.get(node.id) == held:
            if before is None:
                self._release(node.id)
            else:
                self._hold(node.id, before)
        os.close(held)

    def _be_errand(self) -> None:
        if not self._is_errand_due:
            self._is_errand_due = True
            self._rounds = 0
            self._errands.append(self._hold_waiting)

    def _hold_waiting(self, idle: bool) -> bool:
        self._rounds += 1
        if self._waiting and not idle and self._rounds < _ROUNDS:
            return True
        self._is_errand_due = False
        while self._waiting:
            node = self._waiting.pop()
            descriptor = self._descriptors.borrow_nameless(node)
            if descriptor is not None:
                with descriptor as fd:
                    self._hold(node, fd)
        return False
