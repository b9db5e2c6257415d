"""The journal that outlives the process: steps in a state file, a fixed number of them, each in a place of its own.

A step is closed before the next request is read (an errand, see `PollRuntime.errands`). So if the kernel resends a request that a
server had read and there is a step for an equal operation, then it is that request's, and not one of an earlier request that has had
its answer. Opens are another matter, because equal ones may be in flight at once: those that the kernel is going to give again have
steps from the beginning, and one whose answer may be on its way says so.
"""

import hashlib
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

from sidecar.takeover import layout
from sidecar.takeover.drain import Unanswered
from sidecar.takeover.errand import Errand, Errands
from sidecar.takeover.journal import Journal, Step
from sidecar.takeover.mapping import map_bytes
from sidecar.takeover.operation import OPEN, OPENDIR, SETXATTR, Operation

FREE = 0
BEGUN = 1
DONE = 2
MADE = 3
TOLD = 4  # done, and its answer is on its way
_BEFORE = struct.Struct("=IIQQ32s32s")  # kind, length of the arguments, node, since, first, second
_BEFORE_AT = 8  # after the word that says how far it is
_SECOND_AT = 64
_NODE_WORD = 12
_HANDLE_WORD = 13
_ARGUMENTS_AT = 112
_ARGUMENTS_MAX = layout.STEP_BYTES - _ARGUMENTS_AT
_IDENTITY_BYTES = 32
_RECALL_S = 60.0
_OPENS = (OPEN, OPENDIR)
_OPENS_MOST = layout.STEPS // 2
_MORE_OPENS = Operation(OPEN, 0, b"")  # than there are places for


class SharedStep(Step):
    """A step in its place of the state file. `finish` is called when its operation is over."""

    __slots__ = (
        "_asked",
        "_finish",
        "_memory",
        "_words",
        "close",
        "first",
        "handle",
        "is_done",
        "is_made",
        "is_recalled",
        "node",
        "second",
        "since_ns",
    )

    def __init__(
        self, place: memoryview, finish: Callable[["SharedStep"], None], close: Callable[["SharedStep"], None]
    ) -> None:
        self._memory = place
        self._words = place.cast("Q")
        self._finish = finish
        self._asked = (0, 0, b"")
        self.close: Errand = partial(_closed, close, self)
        self.is_recalled = self.is_made = self.is_done = False
        self.since_ns = self.first = self.second = self.node = self.handle = 0

    @property
    def state(self) -> int:
        """Return how far its operation is."""
        return int(self._words[0])

    @property
    def operation(self) -> Operation:
        """Return whose step it is."""
        return Operation(*self._asked)

    def belong_to(self, kind: int, node: int, arguments: bytes) -> None:
        """Be an operation's step."""
        self._asked = (kind, node, arguments)

    def recall(self) -> None:
        """Take from the place what a predecessor has noted there."""
        kind, length, node, self.since_ns, first, second = _BEFORE.unpack_from(self._memory, _BEFORE_AT)
        arguments = bytes(self._memory[_ARGUMENTS_AT : _ARGUMENTS_AT + length])
        self._asked = (kind, node, arguments)
        self.first, self.second = (int.from_bytes(identity, "little") for identity in (first, second))
        self.node, self.handle = self._words[_NODE_WORD], self._words[_HANDLE_WORD]
        self.is_recalled = True
        self.is_made = self._words[0] == MADE
        self.is_done = self._words[0] in (DONE, TOLD)

    def clear(self) -> None:
        """Be as if nothing had been begun."""
        self._words[0] = FREE
        if self.is_recalled:
            self.is_recalled = self.is_made = self.is_done = False
            self.since_ns = self.first = self.second = self.node = 0
        self.handle = 0

    def intend(self, *, since_ns: int = 0, first: int = 0, second: int = 0) -> None:
        """Note what is the case just before the store is changed."""
        words, (kind, node, arguments) = self._words, self._asked
        words[0] = FREE
        words[_HANDLE_WORD] = 0
        self.since_ns = since_ns
        _BEFORE.pack_into(
            self._memory,
            _BEFORE_AT,
            kind,
            len(arguments),
            node,
            since_ns,
            first.to_bytes(_IDENTITY_BYTES, "little") if first else b"",
            second.to_bytes(_IDENTITY_BYTES, "little") if second else b"",
        )
        self._memory[_ARGUMENTS_AT : _ARGUMENTS_AT + len(arguments)] = arguments
        words[0] = BEGUN

    def made(self, identity: int) -> None:
        """Note which file has been made, before anything else is done with it."""
        if self._words[0] == BEGUN:
            made = identity.to_bytes(_IDENTITY_BYTES, "little")
            self._memory[_SECOND_AT : _SECOND_AT + _IDENTITY_BYTES] = made
            self._words[0] = MADE

    def opens(self, handle: int) -> None:
        """Note the handle that is going to be given out, before it is."""
        self.handle = self._words[_HANDLE_WORD] = handle

    def done(self, node: int = 0) -> None:
        """Note that it is done, if it was noted what."""
        if self._words[0] != FREE:
            self._words[_NODE_WORD] = node
            self._words[0] = DONE

    def tell(self) -> None:
        """Note that the answer is going to be sent, which matters for opens alone."""
        if self._words[0] == DONE and self._asked[0] in _OPENS:
            self._words[0] = TOLD

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._words[0] = FREE  # nothing has changed, and whoever is told so may try again
        self._finish(self)


class SharedJournal(Journal):
    """The journal of one state. `give_up` is called if there is no place for a step."""

    is_kept = True

    def __init__(self, file: int, errands: Errands, give_up: Callable[[str], None]) -> None:
        memory = map_bytes(file, layout.JOURNAL, layout.STEPS * layout.STEP_BYTES)
        self.untold: Callable[[int], None] = lambda handle: None
        self.in_threads = (
            False  # operations run in threads; their answers are sent when the serving thread has them back
        )
        self._errands = errands
        self._give_up = give_up
        self._is_stopped = False
        self._of_thread = threading.local()
        self._running = 0  # operations in threads
        self._found: list[SharedStep] = []
        self._free: deque[SharedStep] = deque()
        self._recalled: dict[Operation, list[SharedStep]] = {}
        self._recalled_until = 0.0
        for at in range(0, layout.STEPS * layout.STEP_BYTES, layout.STEP_BYTES):
            step = SharedStep(memory[at : at + layout.STEP_BYTES], self._finish, self._close)
            (self._free if step.state not in (BEGUN, MADE, DONE, TOLD) else self._found).append(step)

    def step(self, kind: int, node: int, arguments: bytes) -> Step:
        """Return the step of an operation, to be used with `with`."""
        if len(arguments) > _ARGUMENTS_MAX:
            arguments = _abridged(arguments)
        if self._recalled:
            recalled = self._recall(Operation(kind, node, arguments))
            if recalled is not None:
                return recalled
        if self._is_stopped:
            return Step()
        try:
            step = self._free.pop()
        except IndexError:
            self._give_up(f"more than {layout.STEPS} operations at once")
            return Step()
        step.belong_to(kind, node, arguments)
        return step

    def is_recalled(self, kind: int, node: int, arguments: bytes) -> bool:
        """Tell whether a predecessor began the operation and the kernel is about to ask for it again."""
        return bool(self._recalled) and Operation(kind, node, _abridged(arguments)) in self._recalled

    def entered(self) -> None:
        """Note that a thread is going to run an operation."""
        self._running += 1

    def left(self) -> None:
        """Note that the serving thread has it back."""
        self._running -= 1
        if self._recalled and not self._running:
            self._errands.append(self._expire)

    def take_finished(self) -> list[Step]:
        """Return the steps that this thread (any one) has finished since it was last asked, for `answer`."""
        steps: list[Step] = getattr(self._of_thread, "steps", [])
        self._of_thread.steps = []
        return steps

    def answer(self, steps: list[Step]) -> None:
        """Close steps when what is being worked on now has been answered."""
        for step in steps:
            if isinstance(step, SharedStep):
                step.tell()
                self._errands.append(step.close)

    def stop(self) -> None:
        """Remember nothing any more."""
        self._is_stopped = True

    def resume(self, unanswered: Iterable[Unanswered], newcomers: Iterable[Unanswered] = ()) -> None:
        """Recall the steps of operations that the kernel asks for again. All others have been answered, and are closed.

        `newcomers` are asked for by requests that no server has read before.
        """
        unanswered = tuple(unanswered)
        self._recall_all(unanswered)
        self._begin_opens(request.operation for request in (*unanswered, *newcomers))
        if self._recalled:
            self._recalled_until = time.monotonic() + _RECALL_S
            self._errands.append(self._expire)

    def _recall_all(self, unanswered: Iterable[Unanswered]) -> None:
        asked: Counter[Operation] = Counter()
        must_not_exist = set()
        for request in unanswered:
            kind, node, arguments = request.operation
            operation = Operation(kind, node, _abridged(arguments))
            asked[operation] += 1
            if request.must_not_exist:
                must_not_exist.add(operation)
        groups: dict[Operation, list[SharedStep]] = {}
        for step in self._found:
            step.recall()
            groups.setdefault(step.operation, []).append(step)
        self._found.clear()
        is_any_told = _MORE_OPENS in groups
        # Whoever dies halfway must not leave a step that is done without those that show it to be answered.
        for operation, steps in sorted(groups.items(), key=lambda group: group[0] == _MORE_OPENS):
            maybe = [step for step in steps if step.state != TOLD]
            if is_any_told and operation.kind in _OPENS:
                maybe = [step for step in maybe if not step.is_done]
            unanswered_steps = _unanswered_of(maybe, asked[operation])
            # An open is carried out anew, and setting an attribute again does no harm unless it must not exist.
            is_repeated = operation.kind in _OPENS or (
                operation.kind == SETXATTR and operation not in must_not_exist
            )
            if unanswered_steps and not is_repeated:
                self._recalled[operation] = unanswered_steps
            for step in sorted(steps, key=unanswered_steps.__contains__):
                if is_repeated or step not in unanswered_steps:
                    self._drop(step, is_told=step.is_done and step not in unanswered_steps)

    def _begin_opens(self, operations: Iterable[Operation]) -> None:
        """Begin the steps of opens that the kernel is going to give. Whoever succeeds then knows of every one it may ask for.

        Those that this process has read and those that it has not come to look alike to a successor: with as many steps as
        requests, none of them was answered, and otherwise one was.
        """
        opens = [operation for operation in operations if operation.kind in _OPENS]
        if len(opens) > min(_OPENS_MOST, len(self._free)):
            opens = [_MORE_OPENS] if self._free else []  # without any the next step gives up the state
        for operation in opens:
            kind, node, arguments = operation
            step = self._free.pop()
            step.belong_to(kind, node, _abridged(arguments))
            step.intend()
            self._recalled.setdefault(step.operation, []).append(step)

    def _recall(self, operation: Operation) -> SharedStep | None:
        steps = self._recalled.get(operation)
        if steps is not None:
            try:
                step = steps.pop()
            except IndexError:  # equal opens in two threads, of which the other one was quicker
                return None
            if not steps:
                self._recalled.pop(operation, None)
            return step
        if operation.kind not in _OPENS:
            # Another one on this node: whoever waited for the recalled one was killed, and the kernel has dropped it.
            for other in list(self._recalled):  # another thread may be at it as well
                if other.node == operation.node and other.kind not in _OPENS:
                    self._drop_all(other)
        return None

    def _expire(self, idle: bool) -> bool:
        """Give up what is recalled once the kernel cannot ask for it any more: it asks for that before anything else."""
        if self._running:
            return False  # a thread may be about to recall it; this is an errand again when all are back
        if self._recalled and not idle and time.monotonic() < self._recalled_until:
            return True
        for operation in list(self._recalled):
            self._drop_all(operation)
        return False

    def _drop_all(self, operation: Operation) -> None:
        for step in self._recalled.pop(operation, ()):
            self._drop(step, is_told=False)

    def _drop(self, step: SharedStep, *, is_told: bool) -> None:
        if step.handle and not is_told:
            self.untold(step.handle)  # as long as the step is there: a successor does what is left of it
        self._close(step)

    def _finish(self, step: SharedStep) -> None:
        if step.state != DONE:
            self._close(step)
        elif not self.in_threads:
            self._errands.append(step.close)
        else:
            self._of_thread.steps = [*getattr(self._of_thread, "steps", ()), step]

    def _close(self, step: SharedStep) -> None:
        step.clear()
        self._free.append(step)


def _unanswered_of(steps: list[SharedStep], asked: int) -> list[SharedStep]:
    """Return the steps of equal operations that have had no answer, if `asked` requests ask for such an operation again.

    With fewer requests than steps some that are done have been answered, and it cannot be told which.
    """
    return steps if asked >= len(steps) else [step for step in steps if not step.is_done][:asked]


def _abridged(arguments: bytes) -> bytes:
    """Return arguments as they fit into a step: long ones as their checksum."""
    return arguments if len(arguments) <= _ARGUMENTS_MAX else hashlib.sha256(arguments).digest()


def _closed(close: Callable[[SharedStep], None], step: SharedStep, _: bool) -> bool:
    """Be an errand."""
    close(step)
    return False
