"""What becomes of an operation whose author died: the head says what it was, the file itself whether it was done.

Nothing can have happened to that file since: sizes, and which names lead to a file, change under the lock only, and
whoever gets the lock settles first.
"""

import contextlib
import os
import stat

from sidemount.host.budget_file import NO_SHARE, NOTHING_PENDING, BudgetFile, Head, Kind, Pending

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def settle(budget: BudgetFile, volume: int, data: int) -> Head:
    """Return the head with nothing pending. `volume` and `data` are descriptors of the two directories.

    The lock must be held. Raises OSError if the file cannot be looked at; then it stays pending.
    """
    head = budget.read()
    pending = head.pending
    match pending.kind:
        case Kind.NOTHING if not pending.is_linked:
            return head
        case Kind.NOTHING:
            used = head.used
        case Kind.RESIZE:
            used = _resized(head, volume, data)
        case Kind.REMOVE:
            used = _removed(budget, head, volume, data)
        case Kind.SET_SHARE:
            budget.set_share(pending.share, pending.size)
            used = head.used
    return settled(budget, head._replace(used=max(0, used)), volume)


def settled(budget: BudgetFile, head: Head, volume: int) -> Head:
    """Write a head with nothing pending. A further name goes in between: never is there one of which nothing is noted."""
    path = head.pending.path
    if head.pending.is_linked:
        head = budget.write(head._replace(pending=Pending(path=path, is_linked=True)))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, dir_fd=volume)
    return budget.write(head._replace(pending=NOTHING_PENDING))


def _resized(head: Head, volume: int, data: int) -> int:
    found = _look(head.pending, volume, data)
    return head.used if found is None else head.used + found.st_size - head.pending.size


def _removed(budget: BudgetFile, head: Head, volume: int, data: int) -> int:
    pending = head.pending
    if not pending.path:
        return head.used  # nothing led to it that could be noted; it counts until files are counted again
    found = _look(pending, volume, data)
    if pending.is_linked:
        is_there = found is not None and found.st_nlink > 1
    else:
        # The number may be another file's by now; but that one would be empty.
        is_there = found is not None and found.st_size == pending.size
    if pending.share == NO_SHARE:
        return head.used if is_there else head.used - pending.size
    budget.set_share(pending.share, pending.share_before + (0 if is_there else pending.size))
    return head.used


def _look(pending: Pending, volume: int, data: int) -> os.stat_result | None:
    """Return what the path leads to if that is the file, else None. No symbolic link is followed."""
    if not pending.path:
        return None
    *above, name = pending.path.split(b"/")
    at = os.dup(volume if pending.is_linked else data)
    try:
        for step in above:
            below = os.open(step, _STEP, dir_fd=at)
            os.close(at)
            at = below
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    finally:
        os.close(at)
    return found if stat.S_ISREG(found.st_mode) and found.st_ino == pending.inode else None
