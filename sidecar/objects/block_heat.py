"""Blocks that are read here and there so often that it is cheaper to have them as a whole."""

import math
import threading
from collections import OrderedDict

from sidecar.objects.block_costs import BlockCosts
from sidecar.objects.blocks import BlockKey


class BlockHeat:
    """Counts reads of parts, for as many blocks as memory can hold: what has been read longer ago is not counted.

    So random reads of much more than the memory stay what they are, and those of what fits become reads of memory.
    """

    def __init__(self, most: int, costs: BlockCosts) -> None:
        self._most = most
        self._costs = costs
        self._lock = threading.Lock()
        self._counts: OrderedDict[BlockKey, int] = OrderedDict()

    def note(self, key: BlockKey) -> bool:
        """Count a read of a part of a block, and tell whether it is time to fetch the whole: as much has been paid in parts."""
        with self._lock:
            count = self._counts.pop(key, 0) + 1
            if count >= math.ceil(self._costs.ratio):
                return True
            self._counts[key] = count
            if len(self._counts) > self._most:
                self._counts.popitem(last=False)
            return False
