"""The ledger of a node table that outlives the process: every change is in the state file before the kernel hears of it."""

from array import array
from collections.abc import Callable, Sequence

from sidecar.takeover import layout
from sidecar.takeover.layout import SLOT, SLOT_BITS
from sidecar.takeover.ledger import Ledger, RecordedNode
from sidecar.takeover.log import Log
from sidecar.takeover.mapping import map_words, reserve
from sidecar.takeover.records import LINK, NODE, parse_record, render_link, render_node
from sidecar.takeover.table import Table, load_table

_CLEANED_AT_ONCE = 4
_SLACK = 16384  # records beside the current ones, before cleaning is worth it


class SharedLedger(Ledger):
    """A ledger in a state file. `give_up` is called when it cannot grow; from then on it remembers nothing."""

    def __init__(self, file: int, head: memoryview, give_up: Callable[[str], None]) -> None:
        super().__init__()
        self._file = file
        self._head = head
        self._give_up = give_up
        self._is_stopped = False
        self._ids = map_words(file, layout.NODE_IDS, layout.NODES_MAX)
        self._shared_lookups = map_words(file, layout.LOOKUPS, layout.NODES_MAX)
        self.lookups = self._shared_lookups
        self._log = Log(file, head)
        self._clean_above = _SLACK

    def load(self) -> tuple[Table, Sequence[int], Sequence[int]]:
        """Return the nodes, and the ids and counts by slot, and be ready for more. Raises BadMessage."""
        reserved = self._head[layout.AT_NODES_RESERVED]
        ids = array("Q", self._ids[:reserved].tobytes())
        table = load_table(self._log.read(), ids)
        self._next = self._head[layout.AT_NEXT_NODE]
        self._last_slot = max((slot for slot in range(len(ids)) if ids[slot]), default=1)
        for slot in range(2, self._last_slot + 1):
            if ids[slot] not in table.nodes:
                self._ids[slot] = 0
                self._free.append(slot)
        return table, ids, array("Q", self._shared_lookups[:reserved].tobytes())

    def stop(self) -> None:
        """Remember nothing any more; counts go on in memory of our own."""
        if not self._is_stopped:
            self._is_stopped = True
            self._private = array("Q", self._shared_lookups[: self._last_slot + 1].tobytes())
            self.lookups = self._private

    def new_id(self) -> int:
        """Return an id that no node ever had, in no process. Its count is 0."""
        node = super().new_id()
        self._head[layout.AT_NEXT_NODE] = (node >> SLOT_BITS) + 1
        return node

    def node(self, node: RecordedNode) -> None:
        """Remember a new node, or its first link, as they are now."""
        parent = node.parent
        self._append(render_node(node.id, node.identity, 0 if parent is None else parent.id, node.name))
        if not self._is_stopped:  # or there is no space for it, and storing would kill the process
            self._ids[node.id & SLOT] = node.id

    def link(self, node: int, parent: int, name: bytes) -> None:
        """Remember a further link."""
        self._append(render_link(node, parent, name, is_there=True))

    def unlink(self, node: int, parent: int, name: bytes) -> None:
        """Remember that a further link is gone."""
        self._append(render_link(node, parent, name, is_there=False))

    def gone(self, node: int) -> None:
        """Forget a node. Its slot is another's from now on."""
        if not self._is_stopped:
            self._ids[node & SLOT] = 0
        super().gone(node)

    def _append(self, record: bytes) -> None:
        if self._is_stopped:
            self._log.give_back()  # here, where no other thread is using it
            return
        try:
            self._log.append(record)
            if self._log.records > self._clean_above:
                self._clean()
        except OSError as error:
            self._give_up(f"the log of nodes cannot grow: {error.strerror}")

    def _clean(self) -> None:
        """Clean a few records for each that is added, until there are half as many idle ones as current ones."""
        self._log.clean(_CLEANED_AT_ONCE, self._is_current)
        current = len(self._nodes.all)
        enough = current + current // 2 + _SLACK // 2
        self._clean_above = enough if self._log.records > enough else 2 * current + _SLACK

    def _is_current(self, record: bytes) -> bool:
        kind, node, _, parent, name = parse_record(record)
        if kind == NODE:
            known = self._nodes.all.get(node)
            if known is None:
                return False
            above = known.parent
            return known.name == name and (0 if above is None else above.id) == parent
        return kind == LINK and self._nodes.has_further_link(node, parent, name)

    def _reserve(self, slot: int) -> None:
        if self._is_stopped:
            super()._reserve(slot)
            return
        have = self._head[layout.AT_NODES_RESERVED]
        if slot < have:
            return
        want = min(2 * have, layout.NODES_MAX)
        try:
            for region in (layout.NODE_IDS, layout.LOOKUPS):
                reserve(self._file, region, want * layout.WORD)
        except OSError as error:
            self._give_up(f"the counts of nodes cannot grow: {error.strerror}")
            super()._reserve(slot)
        else:
            self._head[layout.AT_NODES_RESERVED] = want
