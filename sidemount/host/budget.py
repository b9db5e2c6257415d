"""The budget of a provisioned volume: how many bytes it may hold and holds. For whoever owns the pool; daemons: `budget_account`.

`volume_dir` is the volume's directory (see `sidemount.model.pool_layout`), not its data.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sidemount.host import budget_locks as locks
from sidemount.host.budget_file import LARGEST, NOTHING_PENDING, SHARES, BudgetFile, Head, render_new
from sidemount.host.budget_settlement import settle
from sidemount.host.budget_shares import reclaim
from sidemount.model.errors import HostFailure, InvalidRequest, NotReady, OperationPending
from sidemount.model.pool_layout import BUDGET, DATA, budget_path, data_dir

_LOCK_S = 30.0
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes. A `limit` of 0 is none, and then nobody keeps `used`: it is what it was created or set with."""

    limit: int
    used: int


def create(volume_dir: str, limit: int, used: int = 0) -> None:
    """Write the budget of a volume that nobody has mounted yet, durably; one that is there is replaced."""
    _check(limit, "limit")
    _check(used, "used")
    path = budget_path(volume_dir)
    new = f"{path}.new"
    with _failing_with(path):
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(render_new(limit, used))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(new, path)
        directory = os.open(volume_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read(volume_dir: str) -> Budget:
    """Return the budget of a volume. Waits for nobody. Raises HostFailure (ENOENT: it has none), BadMessage."""
    with _opened(volume_dir) as file:
        return _told(file.read())


def is_mounted(volume_dir: str) -> bool:
    """Tell whether a mount, on any node, may change the volume within its limit. Mounts that only read are not known of.

    Nor are those of a volume without a limit. Raises HostFailure.
    """
    with _opened(volume_dir) as file:
        return locks.is_any_taken(file.fd, locks.FIRST_SHARE, SHARES)


def raise_limit(volume_dir: str, limit: int) -> Budget:
    """Let a volume hold more, and return what it may then: mounts see it with their next operation.

    A limit that is higher already stays, and a volume without one stays without. Idempotent.
    Raises NotReady if the budget stays locked, HostFailure, BadMessage.
    """
    _check(limit, "limit")
    with _opened(volume_dir) as file, _locked(file, volume_dir):
        head = file.read()
        if head.limit and head.limit < limit:
            head = file.write(head._replace(limit=limit))
            os.fsync(file.fd)
        return _told(head)


def set_used(volume_dir: str, used: int) -> Budget:
    """Say how much a volume holds, that nobody has mounted yet: its files came some other way than through a mount."""
    _check(used, "used")
    with _opened(volume_dir) as file, _locked(file, volume_dir):
        head = file.write(file.read()._replace(used=used, pending=NOTHING_PENDING))
        os.fsync(file.fd)
        return _told(head)


@contextlib.contextmanager
def hold_still(volume_dir: str, deadline_s: float) -> Iterator[Budget]:
    """Hold a volume still: no mount, on any node, changes it while the block runs. Reading goes on, writing waits.

    `deadline_s` is for all of it. NotReady: a mount did not stop in time (it hangs; its keeper will see to that).
    OperationPending, at the block's end: the block took longer, and the mounts have gone on meanwhile; what it made is to
    be thrown away. Yields the budget as it is then, to the byte.
    """
    deadline = time.monotonic() + deadline_s
    with _opened(volume_dir) as file:
        if not locks.wait_for(lambda: locks.try_exclusive(file.fd, locks.TURNSTILE), deadline):
            raise OperationPending(f"volume {volume_dir}: somebody else holds it still")
        if not locks.wait_for(lambda: locks.try_exclusive(file.fd, locks.STANDSTILL), deadline):
            raise NotReady(f"volume {volume_dir}: a mount of it did not stop changing it in {deadline_s:g} s")
        with _locked(file, volume_dir, deadline):
            budget = _told(reclaim(file, _settled(file, volume_dir)))
        lease = _Lease(file.fd)
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), lease.end)
        timer.daemon = True
        timer.start()
        try:
            yield budget
        finally:
            timer.cancel()
            is_whole = lease.end()
        if not is_whole:
            raise OperationPending(
                f"volume {volume_dir}: it could not be held still for longer than {deadline_s:g} s",
                hint="what was copied meanwhile is not one state of it; copy it with more time",
            )


class _Lease:
    """The locks of one standstill. Ended once, by whoever is first: the block or the clock."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._is_over = False

    def end(self) -> bool:
        """Let the mounts go on. Return whether nobody had done so before."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = True
            for byte in (locks.STANDSTILL, locks.TURNSTILE):
                locks.unlock(self._fd, byte)
            return True


def recount(volume_dir: str, deadline_s: float) -> Budget:
    """Count a volume's files while it is held still, and write down what they hold. For after a machine's crash.

    Files without a name count as whoever holds them has said.
    """
    with hold_still(volume_dir, deadline_s), _opened(volume_dir) as file:
        used = measure(volume_dir)
        with _locked(file, volume_dir):
            head = _settled(file, volume_dir)
            head = file.write(head._replace(used=used + sum(file.shares().values())))
            os.fsync(file.fd)
            return _told(head)


def measure(volume_dir: str) -> int:
    """Return how many bytes the files of a volume or snapshot hold: sizes of regular files, each once however many names it has."""
    total = 0
    seen: set[tuple[int, int]] = set()
    with _failing_with(volume_dir):
        ahead = [data_dir(volume_dir)]
        while ahead:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found = entry.stat(follow_symlinks=False)
                        if found.st_nlink > 1:
                            if (found.st_dev, found.st_ino) in seen:
                                continue
                            seen.add((found.st_dev, found.st_ino))
                        total += found.st_size
    return total


def _told(head: Head) -> Budget:
    return Budget(limit=head.limit, used=head.used)


def _check(size: int, what: str) -> None:
    if not 0 <= size <= LARGEST:
        raise InvalidRequest(f"{what} of a volume is {size} bytes, not 0 to {LARGEST}")


@contextlib.contextmanager
def _opened(volume_dir: str) -> Iterator[BudgetFile]:
    path = budget_path(volume_dir)
    with _failing_with(path):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield BudgetFile(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _locked(file: BudgetFile, volume_dir: str, deadline: float | None = None) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_S if deadline is None else deadline
    with _failing_with(volume_dir):
        if not locks.wait_for(lambda: locks.try_exclusive(file.fd, locks.BUDGET), deadline):
            raise NotReady(
                f"volume {volume_dir}: its budget stays locked", hint="a daemon that has it mounted hangs"
            )
        try:
            yield
        finally:
            locks.unlock(file.fd, locks.BUDGET)


def _settled(file: BudgetFile, volume_dir: str) -> Head:
    volume = os.open(volume_dir, _DIRECTORY)
    try:
        data = os.open(DATA, _DIRECTORY | os.O_NOFOLLOW, dir_fd=volume)
        try:
            return settle(file, volume, data)
        finally:
            os.close(data)
    finally:
        os.close(volume)


@contextlib.contextmanager
def _failing_with(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "the volume has no budget" if error.errno == errno.ENOENT and path.endswith(BUDGET) else ""
        raise HostFailure(f"{path}: {error.strerror}", errno=error.errno or 0, hint=hint) from error
