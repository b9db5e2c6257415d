"""Answers to probes: ready only if every view answered just now. A probe never holds the keeper up."""

import time
from collections.abc import Callable

from sidemount.host.jobs import Jobs, Outcome, Work
from sidemount.host.volume_gate import Gate, Peer
from sidemount.host.volume_places import VolumePlaces
from sidemount.host.volume_work import check_work

READY = "ready"
ALIVE = "alive"
_KIND = "probe"
_ASKING_MAX = 64
_HANGS = "the volume hangs: an earlier look into it has not ended"
_NO_ROOM = "it cannot be looked at now: too many volumes are"


class ProbeDesk:
    """Collects whoever asks while a check runs, and gives everyone its outcome."""

    def __init__(
        self,
        jobs: Jobs,
        gate: Gate,
        places: VolumePlaces,
        *,
        deadline_s: float,
        fresh_s: float,
        remark: Callable[[], str],
    ) -> None:
        """`remark` returns what is to be said of a volume that is live, "" if nothing."""
        self._jobs = jobs
        self._gate = gate
        self._places = places
        self._deadline_s = deadline_s
        self._fresh_s = fresh_s
        self._remark = remark
        self._asking: list[Peer] = []
        self._answer = ""
        self._answered_at = float("-inf")

    def ask(self, peer: Peer, missing: Callable[[], str]) -> None:
        """Check and answer. `missing` tells from the mount table alone what is not shown, "" if all is."""
        fault = missing()
        if fault:
            self._reply(peer, not_ready(fault))
            return
        if time.monotonic() - self._answered_at < self._fresh_s:
            self._reply(peer, self._answer)
            return
        if len(self._asking) >= _ASKING_MAX:
            self._reply(peer, not_ready("too many probes at once"))
            return
        self._asking.append(peer)
        work = Work(run=check_work(self._places.all_paths), on_end=self._checked, deadline_s=self._deadline_s)
        if not self._jobs.is_running(_KIND) and self._jobs.start(_KIND, work) is None:
            self.answer_all(not_ready(_HANGS if self._jobs.is_busy(_KIND) else _NO_ROOM))

    def refuse(self, peer: Peer, reason: str) -> None:
        """Answer that the volume is not ready."""
        self._reply(peer, not_ready(reason))

    def answer_hung(self, peer: Peer, hung: str) -> None:
        """Answer whether the daemon's container has to be restarted: only for the reason given, not if it is ""."""
        self._reply(peer, f"hung: {hung}" if hung else ALIVE)

    def forget(self, peer: Peer) -> None:
        """Drop a probe that has gone."""
        if peer in self._asking:
            self._asking.remove(peer)

    def answer_all(self, text: str) -> None:
        """Give everyone who asks the same answer."""
        asking, self._asking = self._asking, []
        for peer in asking:
            self._reply(peer, text)

    def cancel(self, reason: str) -> None:
        """Stop checking; whoever asks is told why."""
        self._jobs.cancel(_KIND)
        self._answered_at = float("-inf")
        self.answer_all(not_ready(reason))

    def _checked(self, outcome: Outcome) -> None:
        remark = self._remark()
        live = f"{READY}: {remark}" if remark else READY
        self._answer = not_ready(outcome.fault) if outcome.fault else live
        self._answered_at = time.monotonic()
        self.answer_all(self._answer)

    def _reply(self, peer: Peer, text: str) -> None:
        peer.answer(text)
        self._gate.release(peer)


def not_ready(reason: str) -> str:
    """Return the answer of a volume that is not live."""
    return f"not ready: {reason}"
