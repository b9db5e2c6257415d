"""What mounts hold that has no name: a share of the budget each, for as long as somebody has it locked.

Open files that were removed count until they are closed. Nobody can look at them but the mount itself, and they end with it.
"""

from sidemount.host import budget_locks as locks
from sidemount.host.budget_file import NOTHING_PENDING, BudgetFile, Head, Kind, Pending


def reclaim(budget: BudgetFile, head: Head, own: int = -1) -> Head:
    """Take back what mounts held that are no more: files without a name end with whoever has them open.

    The lock must be held, and nothing be pending. Returns the head as it is then.
    """
    for number, size in budget.shares().items():
        if number != own and locks.try_exclusive(budget.fd, locks.FIRST_SHARE + number):
            try:
                head = write_share(budget, head, number, 0, -size)
            finally:
                locks.unlock(budget.fd, locks.FIRST_SHARE + number)
    return head


def write_share(budget: BudgetFile, head: Head, number: int, size: int, change: int) -> Head:
    """Set a share, and what is used with it, as one step. The lock must be held, and nothing be pending."""
    used = max(0, head.used + change)
    promise = Pending(Kind.SET_SHARE, size=size, share=number)
    head = budget.write(head._replace(used=used, pending=promise))
    budget.set_share(number, size)
    return budget.write(head._replace(pending=NOTHING_PENDING))
