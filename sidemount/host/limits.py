"""How long a keeper waits for what. Every wait has its bound here."""

from dataclasses import dataclass

from sidemount.host.session import Phase, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds. `flush_s` is the part of the pod's grace period a daemon has to flush after the mounts are gone.

    `kill_s`: how long a process that was killed may take to end: one that waits for a slow disk does so first.
    `restart_s`: how long kubelet may take to restart a container that its liveness probe calls hung.
    After SIGTERM: `answer_s`: within it a daemon that lives says so; at a pod's end kubelet may leave us two seconds in all.
    `settle_s`: longer than those two, so who is there then is not ended with its pod. `leave_s`: how long a volume is waited for
    whose connection nobody else holds.
    """

    start_s: float = 60.0
    adopt_s: float = 15.0
    show_s: float = 15.0
    probe_s: float = 5.0
    probe_cache_s: float = 1.0
    quiet_s: float = 0.5
    kill_s: float = 10.0
    restart_s: float = 60.0
    flush_s: float = 20.0
    retry_first_s: float = 0.5
    retry_most_s: float = 10.0
    answer_s: float = 1.0
    settle_s: float = 3.0
    leave_s: float = 10.0

    @property
    def sync_s(self) -> float:
        """How much of the time to flush the kernel has to write back what it holds."""
        return self.flush_s / 2

    @property
    def drain_s(self) -> float:
        """How much of it the daemon has to answer what it was asked; the rest is for its own flush."""
        return self.flush_s / 4

    def deadline_s(self, session: Session) -> float | None:
        """Return how long the session may stay as it is, None if for ever."""
        match session.phase:
            case Phase.ADOPTING:
                return self.adopt_s
            case Phase.STARTING:
                return self.start_s
            case Phase.ABORTED | Phase.FLUSHING:
                return self.flush_s
            case Phase.MOUNTING | Phase.ATTACHING:  # also where nothing came of it, not even a failure
                return self.retry_s(max(1, session.failures))
            case _:
                return None

    def retry_s(self, failures: int) -> float:
        """Return the pause after that many failures in a row."""
        return min(self.retry_most_s, self.retry_first_s * 2.0 ** min(failures - 1, 16))
