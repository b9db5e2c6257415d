"""What a filesystem keeps its nodes, handles and operations in progress in, whether or not a successor is to find them."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar.takeover.errand import Errands
from sidecar.takeover.handle_ledger import HandleLedger, Handles
from sidecar.takeover.holder import DescriptorHolder
from sidecar.takeover.journal import Journal
from sidecar.takeover.ledger import Ledger
from sidecar.takeover.leftovers import Leftovers
from sidecar.takeover.newcomers import Newcomers
from sidecar.takeover.table import Table


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a predecessor has left: its nodes, its open handles and the descriptors it had held, by node.

    `leftovers` knows which of the nodes the kernel may have forgotten.
    """

    nodes: Table
    handles: Handles
    held: Mapping[int, int]
    leftovers: Leftovers


class Memory:
    """A memory that ends with the process. `sidecar.takeover.state.State` is one that does not.

    `state_id` names what a successor could resume, "" if nothing. `errands` must be run by the serving thread before it
    reads each request. `on_lost` is called with the reason when no successor can go on any more, `on_waiting` now and then
    by an operation that waits for another mount: it is not hung.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.handles = HandleLedger()
        self.journal = Journal()
        self.newcomers = Newcomers()
        self.errands: Errands = deque()
        self.holder: DescriptorHolder | None = None
        self.inheritance: Inheritance | None = None
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.on_waiting: Callable[[], None] = lambda: None

    @property
    def state_id(self) -> str:
        """Return the id of what a successor could resume, "" if there is nothing."""
        return ""
