"""What statvfs tells of a volume with a limit: the limit is its size."""

from sidecar.protocol_filesystem import Statistics
from sidemount.host.budget_file import Head

_LARGEST_BLOCK = 4096


def within_budget(store: Statistics, head: Head) -> Statistics:
    """Return a volume's statistics: size and room are the budget's, inodes the store's.

    Both block sizes are the same, because some multiply by one and some by the other, and divide the limit exactly.
    """
    block = min(_LARGEST_BLOCK, head.limit & -head.limit)
    free = max(0, head.limit - head.used) // block
    return store._replace(bsize=block, frsize=block, blocks=head.limit // block, bfree=free, bavail=free)
