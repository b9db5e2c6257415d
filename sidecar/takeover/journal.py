"""What a daemon does that may not be done twice: each operation from its beginning until its answer has gone to the kernel.

Here is the journal that remembers nothing; `sidecar.takeover.shared_journal` has the one that does. A handler does the same with both:

    with journal.step(MKDIR, parent, name) as step:
        if step.is_done: give the same answer again
        if not (step.is_recalled and <the store shows that it was carried out>):
            step.intend(since_ns=…)
            <carry it out>
            step.made(…) if it is a file
        <note it in the tables>
        step.done(node)
"""

from collections.abc import Callable, Iterable
from types import TracebackType

from sidecar.takeover.drain import Unanswered


class Step:
    """One operation's step.

    `is_recalled`: a predecessor began it; `is_made`: and made a file; `is_done`: and finished, but its answer never reached the
    kernel. What it had noted is in `since_ns`, `first` and `second` (before; what was made is the second), `node` and `handle`
    (after). Without `done` it is as if it had never begun.
    """

    is_recalled = False
    is_made = False
    is_done = False
    since_ns = 0
    first = 0
    second = 0
    node = 0
    handle = 0

    def intend(self, *, since_ns: int = 0, first: int = 0, second: int = 0) -> None:
        """Note what is the case just before the store is changed: the time, identities of files (256 bits)."""

    def made(self, identity: int) -> None:
        """Note which file has been made, before anything else is done with it."""

    def opens(self, handle: int) -> None:
        """Note the handle that is going to be given out, before it is."""

    def done(self, node: int = 0) -> None:
        """Note that it is done, tables and all, and which node the answer names."""

    def __enter__(self) -> "Step":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Journal:
    """Remembers nothing. `is_kept` tells that from the one that does, where noting takes a system call.

    `in_threads`: operations run in threads, and are answered when the serving thread has them back. `untold` is called
    with every handle that a predecessor has given out and nobody was ever told of.
    """

    is_kept = False

    def __init__(self) -> None:
        self.in_threads = False
        self.untold: Callable[[int], None] = lambda handle: None

    def step(self, kind: int, node: int, arguments: bytes) -> Step:
        """Return the step of an operation (see `operation.Operation`), to be used with `with`."""
        return _NO_STEP

    def is_recalled(self, kind: int, node: int, arguments: bytes) -> bool:
        """Tell whether a predecessor began the operation and the kernel is about to ask for it again."""
        return False

    def entered(self) -> None:
        """Note that a thread is going to run an operation. This and all below: for the serving thread alone."""

    def left(self) -> None:
        """Note that the serving thread has it back."""

    def take_finished(self) -> list[Step]:
        """Return the steps that this thread (any one) has finished since it was last asked, for `answer`."""
        return []

    def answer(self, steps: list[Step]) -> None:
        """Close steps when what is being worked on now has been answered."""

    def resume(self, unanswered: Iterable[Unanswered], newcomers: Iterable[Unanswered] = ()) -> None:
        """Recall the steps of operations that the kernel asks for again. All others have been answered, and are closed.

        `newcomers` are asked for by requests that no server has read before.
        """


_NO_STEP = Step()
