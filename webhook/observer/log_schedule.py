"""LogSchedule: whose log is read next. Pure but for its memory; times are of one monotonic clock, in seconds."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

Pod = tuple[str, str]
_DOUBLINGS_MAX = 10
_LAST_TRIES = 5
_Queue = list[tuple[float, Pod]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPace:
    """How often. `period_s`: each log, while nothing happens; `gap_s`: the same log again, whatever happens; `longest_s`: one that
    cannot be read. `a_second` bounds all reads together, `at_once` those under way."""

    period_s: float = 30.0
    gap_s: float = 2.0
    longest_s: float = 600.0
    a_second: float = 10.0
    at_once: int = 8


@dataclass(slots=True)
class _Turn:
    due_s: float
    read_s: float = float("-inf")
    failures: int = 0
    is_taken: bool = False
    is_asked_again: bool = False
    is_last: bool = False
    can_wait: bool = False


class LogSchedule:
    """Every pod has a turn; one to which something happened has it at once. Turns that came too late come in the order of their due,
    those that can wait after all others."""

    def __init__(self, pace: LogPace, random: Callable[[], float]) -> None:
        self._pace = pace
        self._random = random
        self._turns: dict[Pod, _Turn] = {}
        self._queues: tuple[_Queue, _Queue] = ([], [])  # the second for those that can wait

    def __len__(self) -> int:
        return len(self._turns)

    def begin(self, now_s: float) -> None:
        """Give everybody a turn now, whatever was under way before."""
        for pod, turn in self._turns.items():
            turn.is_taken = turn.is_asked_again = False
            turn.failures = 0
            self._put(pod, turn, now_s)

    def ask(self, pod: Pod, now_s: float, *, is_last: bool = False, can_wait: bool = False) -> None:
        """Have a pod's log read as soon as may be. `is_last`: not again after that. `can_wait`: whenever no other turn is due."""
        turn = self._turns.get(pod)
        if turn is None:
            turn = self._turns[pod] = _Turn(due_s=float("inf"))
        is_moved, turn.can_wait = turn.can_wait and not can_wait, can_wait
        turn.is_last = is_last
        if turn.is_taken:
            turn.is_asked_again = True
            return
        turn.failures = 0
        due_s = max(now_s, turn.read_s + self._pace.gap_s)
        if due_s < turn.due_s or is_moved:
            self._put(pod, turn, min(due_s, turn.due_s))

    def forget(self, pod: Pod) -> None:
        """Read a pod's log no more."""
        self._turns.pop(pod, None)

    def take(self, now_s: float) -> Pod | None:
        """Return whose turn it is, None if nobody's. `done` ends the turn."""
        for queue in self._queues:
            while queue and queue[0][0] <= now_s:
                due_s, pod = heapq.heappop(queue)
                turn = self._turns.get(pod)
                if turn is not None and turn.due_s == due_s and not turn.is_taken:
                    turn.is_taken = True
                    turn.read_s = now_s
                    return pod
        return None

    def done(self, pod: Pod, now_s: float, *, is_read: bool, has_more: bool = False) -> None:
        """End a turn. `has_more`: the log was longer than what was read of it."""
        turn = self._turns.get(pod)
        if turn is None:
            return
        turn.is_taken = False
        turn.failures = 0 if is_read else turn.failures + 1
        if turn.is_asked_again or has_more:
            turn.is_asked_again = False
            self._put(pod, turn, now_s + self._pace.gap_s)
        elif turn.is_last and (is_read or turn.failures >= _LAST_TRIES):
            # The log of a pod that is over may be gone for good, and the pod stay for ever.
            del self._turns[pod]
        else:
            wait_s = min(
                self._pace.longest_s, self._pace.period_s * 2.0 ** min(turn.failures, _DOUBLINGS_MAX)
            )
            self._put(pod, turn, now_s + wait_s * (0.8 + self._random() * 0.4))

    def oldest_s(self, now_s: float) -> float:
        """Return for how long the turn that waits longest has been due, 0 if none is; those that can wait do not count."""
        queue = self._queues[0]
        return max(0.0, now_s - queue[0][0]) if queue else 0.0

    def _put(self, pod: Pod, turn: _Turn, due_s: float) -> None:
        turn.due_s = due_s
        queue = self._queues[turn.can_wait]
        heapq.heappush(queue, (due_s, pod))
        if len(queue) > 4 * len(self._turns) + 64:  # turns that were moved leave their old places behind
            queue[:] = [
                (other.due_s, key)
                for key, other in self._turns.items()
                if not other.is_taken and self._queues[other.can_wait] is queue
            ]
            heapq.heapify(queue)
