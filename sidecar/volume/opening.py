"""A volume that is open: its two directories, its budget, and this mount's share of what has no name."""

import contextlib
import dataclasses
import errno
import os
import time
from dataclasses import dataclass

from sidecar.takeover.memory import Memory
from sidemount.host import budget_locks as locks
from sidemount.host.budget_file import SHARES, BudgetFile
from sidemount.host.budget_settlement import settle
from sidemount.host.budget_shares import reclaim, write_share
from sidemount.model.errors import HostFailure
from sidemount.model.pool_layout import BUDGET, DATA, budget_path

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_SHARE_KEY = 1 << 62  # what the holder knows it by; nodes have smaller numbers, and open files larger ones
_LOCK_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVolume:
    """Descriptors of a volume, and its budget.

    `share` is the number of this mount's share; `is_inherited`: a predecessor's. None if it changes nothing or nothing is counted.
    """

    directory: int
    data: int
    budget: BudgetFile
    share: int | None
    is_inherited: bool = False

    @property
    def is_counted(self) -> bool:
        """Tell whether the volume has a limit."""
        return self.budget.read().limit > 0


def open_volume(source: str, told: str, *, read_only: bool, memory: Memory) -> OpenVolume:
    """Open a volume's directory. Takes the share that a predecessor had from what it has left, else a free one.

    `told` is what messages call it. Raises HostFailure (EAGAIN: the budget stays locked), BadMessage (it is damaged).
    """
    with contextlib.ExitStack() as undo:
        try:
            directory = os.open(source, _DIRECTORY)
            undo.callback(os.close, directory)
            data = os.open(DATA, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            undo.callback(os.close, data)
            budget = BudgetFile(_open_budget(directory, read_only=read_only))
            undo.callback(os.close, budget.fd)
            head = budget.read()
            if read_only or not head.limit:
                volume = OpenVolume(directory=directory, data=data, budget=budget, share=None)
            else:
                volume = _with_share(
                    OpenVolume(directory=directory, data=data, budget=budget, share=None), memory
                )
        except OSError as error:
            hint = "it is no provisioned volume" if isinstance(error, FileNotFoundError) else ""
            raise HostFailure(
                f"{budget_path(told)}: {error.strerror}", errno=error.errno or 0, hint=hint
            ) from error
        undo.pop_all()
        return volume


def _open_budget(directory: int, *, read_only: bool) -> int:
    access = os.O_RDONLY if read_only else os.O_RDWR
    return os.open(BUDGET, access | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def _with_share(volume: OpenVolume, memory: Memory) -> OpenVolume:
    inherited = _inherited_share(memory)
    if inherited is not None:
        number, fd = inherited
        if os.path.samestat(os.fstat(fd), os.fstat(volume.budget.fd)):
            return dataclasses.replace(volume, share=number, is_inherited=True)
        os.close(fd)
    fd = _open_budget(volume.directory, read_only=False)
    try:
        number = _take_share(volume, fd)
    except BaseException:
        os.close(fd)
        raise
    if memory.holder is not None:
        memory.holder.hold(_SHARE_KEY | number, fd)
    return dataclasses.replace(volume, share=number)


def _inherited_share(memory: Memory) -> tuple[int, int] | None:
    """Return number and descriptor of a predecessor's share, and take it out of what else it has left."""
    inheritance = memory.inheritance
    if inheritance is None:
        return None
    for key, fd in inheritance.held.items():
        if _SHARE_KEY <= key < 2 * _SHARE_KEY:
            others = {other: held for other, held in inheritance.held.items() if other != key}
            memory.inheritance = dataclasses.replace(inheritance, held=others)
            return key ^ _SHARE_KEY, fd
    return None


def _take_share(volume: OpenVolume, fd: int) -> int:
    """Lock a free share with `fd`, and take back what dead mounts held, under the budget's lock."""
    budget = volume.budget
    deadline = time.monotonic() + _LOCK_S
    if not locks.wait_for(lambda: locks.try_exclusive(budget.fd, locks.BUDGET), deadline):
        raise HostFailure(
            "the volume's budget stays locked",
            errno=errno.EAGAIN,
            hint="a daemon that has the volume mounted hangs",
        )
    try:
        head = reclaim(budget, settle(budget, volume.directory, volume.data))
        first = os.getpid() % SHARES
        for step in range(SHARES):
            number = (first + step) % SHARES
            if locks.try_exclusive(fd, locks.FIRST_SHARE + number):
                left = budget.share(number)
                if left:  # its mount has died since
                    write_share(budget, head, number, 0, -left)
                return number
    finally:
        locks.unlock(budget.fd, locks.BUDGET)
    raise HostFailure(f"the volume is mounted {SHARES} times already", errno=errno.EUSERS)
