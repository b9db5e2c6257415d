"""What outlives a daemon's process: one state file a volume, in a directory that survives the container and no application sees.

Only one process writes it, the one that holds the lock beside it; the kernel takes the lock back when that process dies.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping

from sidecar.takeover import layout, leftovers
from sidecar.takeover.handle_ledger import SharedHandleLedger
from sidecar.takeover.holder import DescriptorHolder
from sidecar.takeover.leftovers import Leftovers
from sidecar.takeover.mapping import map_bytes, map_words, reserve
from sidecar.takeover.memory import Inheritance, Memory
from sidecar.takeover.newcomers import Newcomers
from sidecar.takeover.shared_journal import SharedJournal
from sidecar.takeover.shared_ledger import SharedLedger
from sidemount.model.errors import BadMessage, HostFailure, OperationPending

_FILE = "state"
_LOCK = "state.lock"
_NEW = "state.new"


class State(Memory):
    """The memory of one volume in a state file, open for writing."""

    def __init__(self, file: int, lock: int, holder: DescriptorHolder) -> None:
        super().__init__()
        self._file = file
        self._lock = lock
        self._head = map_words(file, 0, layout.HEAD_WORDS)
        self.holder = holder
        first_page = map_bytes(file, 0, layout.NEWCOMERS_AT + layout.NEWCOMERS * layout.NEWCOMER_BYTES)
        self.newcomers = Newcomers(first_page[layout.NEWCOMERS_AT :])
        self.ledger: SharedLedger = SharedLedger(file, self._head, self.give_up)
        self.handles: SharedHandleLedger = SharedHandleLedger(file, self._head, self.give_up)
        self.journal: SharedJournal = SharedJournal(file, self.errands, self.give_up)

    @property
    def state_id(self) -> str:
        """Return the id of what a successor could resume, "" if it was given up."""
        return "" if self._head[layout.AT_LOST] else _id_in(self._head)

    @property
    def size_bytes(self) -> int:
        """Return how much memory the state takes."""
        return os.fstat(self._file).st_blocks * 512

    def load(self, held: Mapping[int, int]) -> Inheritance:
        """Return what is there and be ready for more. Called once, before anything else. Raises BadMessage."""
        nodes, ids, counts = self.ledger.load()
        return Inheritance(
            nodes, self.handles.load(), held, Leftovers(ids, counts, quiet_s=leftovers.QUIET_S)
        )

    def give_up(self, reason: str) -> None:
        """Keep no state any longer: the volume goes on, but ends with this process."""
        if self.state_id:
            self._head[layout.AT_LOST] = 1
            for part in (self.ledger, self.handles, self.journal):
                part.stop()
            self.on_lost(reason)

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._file)
        os.close(self._lock)


def begin_state(directory: str, holder: DescriptorHolder) -> State:
    """Return a new, empty state, in place of any other in the directory. Raises OperationPending, HostFailure."""
    with _locked(directory) as lock:
        path = os.path.join(directory, _NEW)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with _closed_on_error(file):
                _format(file)
                os.replace(path, os.path.join(directory, _FILE))
                state = State(file, lock, holder)
                state.load({})
                return state
        except OSError as error:
            raise _failure("cannot begin", directory, error) from error


def resume_state(directory: str, holder: DescriptorHolder, held: Mapping[int, int]) -> State:
    """Return the state that another process has left, with its `inheritance`. `held` is what the holder has, by node.

    Raises OperationPending, BadMessage, HostFailure.
    """
    if not os.path.lexists(os.path.join(directory, _FILE)):
        raise BadMessage(f"the state in {directory} is not there any more")  # and nobody will bring it back
    with _locked(directory) as lock:
        try:
            file = os.open(os.path.join(directory, _FILE), os.O_RDWR | os.O_CLOEXEC)
            with _closed_on_error(file):
                fault = _fault_of(file)
                if fault:
                    raise BadMessage(f"the state in {directory} {fault}")
                state = State(file, lock, holder)
                state.inheritance = state.load(held)
                return state
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
    for region in (layout.NODE_IDS, layout.LOOKUPS):
        reserve(file, region, layout.NODES_LEAST * layout.WORD)
    head = map_words(file, 0, layout.HEAD_WORDS)
    head[layout.AT_FORMAT] = layout.FORMAT
    head[layout.AT_ID] = secrets.randbits(64) | 1
    head[layout.AT_ID + 1] = secrets.randbits(64)
    head[layout.AT_NODES_RESERVED] = layout.NODES_LEAST
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
