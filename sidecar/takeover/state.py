"""What outlives a daemon's process: one state file a volume, in a directory that survives the container and no application sees.

Only one process writes it, the one that holds the lock beside it; the kernel takes the lock back when that process dies.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sidecar.takeover import layout
from sidecar.takeover.errand import Errands
from sidecar.takeover.handle_ledger import Handles, SharedHandleLedger
from sidecar.takeover.mapping import map_words, reserve
from sidecar.takeover.shared_journal import SharedJournal
from sidecar.takeover.shared_ledger import SharedLedger
from sidecar.takeover.table import Table
from sidemount.model.errors import BadMessage, HostFailure, OperationPending

_FILE = "state"
_LOCK = "state.lock"
_NEW = "state.new"


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a predecessor has left: its nodes, their counts and ids by slot, and its open handles."""

    nodes: Table = field(default_factory=Table)
    handles: Handles = field(default_factory=dict)


class State:
    """The state of one volume, open for writing. `on_lost` is called with the reason when it cannot be kept any longer.

    `errands` must be run by the serving thread before it reads each request.
    """

    def __init__(self, file: int, lock: int) -> None:
        self.errands: Errands = deque()
        self.on_lost: Callable[[str], None] = lambda reason: None
        self._file = file
        self._lock = lock
        self._head = map_words(file, 0, layout.HEAD_WORDS)
        self.state_id = _id_in(self._head)
        self.ledger = SharedLedger(file, self._head, self.give_up)
        self.handles = SharedHandleLedger(file, self._head, self.give_up)
        self.journal = SharedJournal(file, self.errands, self.give_up)

    @property
    def is_lost(self) -> bool:
        """Tell whether nobody can continue with this state."""
        return bool(self._head[layout.AT_LOST])

    @property
    def size_bytes(self) -> int:
        """Return how much memory the state takes."""
        return os.fstat(self._file).st_blocks * 512

    def load(self) -> Inheritance:
        """Return what is there and be ready for more. Called once, before anything else. Raises BadMessage."""
        return Inheritance(self.ledger.load(), self.handles.load())

    def give_up(self, reason: str) -> None:
        """Keep no state any longer: the volume goes on, but ends with this process."""
        if not self.is_lost:
            self._head[layout.AT_LOST] = 1
            for part in (self.ledger, self.handles, self.journal):
                part.stop()
            self.on_lost(reason)

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._file)
        os.close(self._lock)


def begin_state(directory: str) -> State:
    """Return a new, empty state, in place of any other in the directory. Raises OperationPending, HostFailure."""
    with _locked(directory) as lock:
        path = os.path.join(directory, _NEW)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with _closed_on_error(file):
                _format(file)
                os.replace(path, os.path.join(directory, _FILE))
                return State(file, lock)
        except OSError as error:
            raise _failure("cannot begin", directory, error) from error


def resume_state(directory: str) -> State:
    """Return the state that another process has left. Raises OperationPending, BadMessage, HostFailure."""
    with _locked(directory) as lock:
        try:
            file = os.open(os.path.join(directory, _FILE), os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _failure("cannot resume", directory, error) from error
        with _closed_on_error(file):
            fault = _fault_of(file)
            if fault:
                raise BadMessage(f"the state in {directory} {fault}")
            try:
                return State(file, lock)
            except OSError as error:
                raise _failure("cannot resume", directory, error) from error


def resumable_id(directory: str) -> str:
    """Return the id of the state that a process could resume, "" if there is none. Harmless while another one writes it."""
    with contextlib.suppress(OSError):
        file = os.open(os.path.join(directory, _FILE), os.O_RDWR | os.O_CLOEXEC)
        try:
            if not _fault_of(file):
                return _id_in(map_words(file, 0, layout.HEAD_WORDS))
        finally:
            os.close(file)
    return ""


def _format(file: int) -> None:
    """Make a state of a file of no length. What says that it is one comes last."""
    os.truncate(file, layout.LOG)
    reserve(file, 0, layout.HEAD_WORDS * layout.WORD)
    reserve(file, layout.JOURNAL, layout.STEPS * layout.STEP_BYTES)
    head = map_words(file, 0, layout.HEAD_WORDS)
    head[layout.AT_FORMAT] = layout.FORMAT
    head[layout.AT_ID] = secrets.randbits(64) | 1
    head[layout.AT_ID + 1] = secrets.randbits(64)
    head[layout.AT_NEXT_NODE] = head[layout.AT_NEXT_HANDLE] = 1
    head[layout.AT_MAGIC] = layout.MAGIC


def _fault_of(file: int) -> str:
    """Return why a file cannot be resumed, "" if it can."""
    size = os.fstat(file).st_size
    if size < layout.LOG:
        return f"is too short: {size} bytes"
    head = map_words(file, 0, layout.HEAD_WORDS)
    if head[layout.AT_MAGIC] != layout.MAGIC:
        return "is none of ours"
    if head[layout.AT_FORMAT] != layout.FORMAT:
        return f"has format {head[layout.AT_FORMAT]}; this version reads only {layout.FORMAT}"
    if head[layout.AT_LOST]:
        return "was given up"
    if size < layout.LOG + head[layout.AT_LOG_END] * layout.WINDOW:
        return f"has been cut off: {size} bytes"
    return ""


def _id_in(head: memoryview) -> str:
    return f"{head[layout.AT_ID]:016x}{head[layout.AT_ID + 1]:016x}"


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[int]:
    """Take the lock; give it back only if the block fails."""
    try:
        lock = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _failure("cannot lock", directory, error) from error
    with _closed_on_error(lock):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OperationPending(
                f"the state in {directory} belongs to another process",
                hint="a successor may begin only when its predecessor is certainly dead",
            ) from error
        yield lock


@contextlib.contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


def _failure(what: str, directory: str, error: OSError) -> HostFailure:
    return HostFailure(
        f"{what} the state in {directory}: {error.strerror}",
        errno=error.errno or 0,
        hint="" if error.errno != errno.ENOSPC else "the directory's filesystem is full",
    )
