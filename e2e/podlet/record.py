"""What a kubelet remembers of one container: its state, its runs, its back-off."""

import time
from dataclasses import dataclass

from e2e.podlet.pod import Container, Kind
from e2e.podlet.process import ContainerProcess

_BACK_OFF_S = 10.0
_BACK_OFF_MAX_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not running."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Its first process runs."""

    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """It ran and ended."""

    exit_code: int
    reason: str
    message: str
    started_at: float
    finished_at: float


State = Waiting | Running | Terminated


@dataclass(slots=True)
class BackOff:
    """10, 20, 40 … 300 s from the end of the last run; the first restart is at once; forgotten after long health.

    Source: https://github.com/kubernetes/client-go/blob/master/util/flowcontrol/backoff.go
    """

    scale: float
    delay_s: float = 0.0
    updated_at: float = 0.0

    def ready_at(self, finished_at: float) -> float:
        """Return when a container that ended then may start again."""
        if not self.delay_s or self._is_expired(finished_at):
            return finished_at
        return finished_at + self.delay_s * self.scale

    def advance(self, finished_at: float, now: float) -> None:
        """Note a restart."""
        is_first = not self.delay_s or self._is_expired(finished_at)
        self.delay_s = _BACK_OFF_S if is_first else min(self.delay_s * 2, _BACK_OFF_MAX_S)
        self.updated_at = now

    def _is_expired(self, at: float) -> bool:
        return at - self.updated_at > 2 * _BACK_OFF_MAX_S * self.scale


@dataclass(slots=True)
class Record:
    """One container. Everything here is guarded by the pod worker's lock."""

    container: Container
    back_off: BackOff
    state: State
    last: Terminated | None = None
    attempts: int = 0
    is_started: bool = False
    is_ready: bool = False
    process: ContainerProcess | None = None
    retry_at: float = 0.0

    @property
    def is_running(self) -> bool:
        """Tell whether it has a live process."""
        return self.process is not None

    @property
    def restart_count(self) -> int:
        """Return how often it was created again."""
        return max(self.attempts - 1, 0)

    @property
    def has_succeeded(self) -> bool:
        """Tell whether its last run ended with 0."""
        return self.last is not None and not self.is_running and self.last.exit_code == 0

    def begin(self, process: ContainerProcess) -> None:
        """Note that a run has begun."""
        self.attempts += 1
        self.process = process
        self.state = Running(started_at=process.started_at)
        # Without a startup probe a container counts as started at once, without a readiness probe as ready.
        self.is_started = self.container.startup is None
        self.is_ready = self.is_started and self.container.readiness is None

    def refuse(self, reason: str, message: str, began: float, *, was_created: bool) -> None:
        """Note that it did not start: before it was created it waits, afterwards it counts as a run that ended."""
        if was_created:
            self.attempts += 1
            self.end(128, "StartError", message, began)
        else:
            self.state = Waiting(reason=reason, message=message)

    def end(self, exit_code: int, reason: str, message: str, started_at: float) -> None:
        """Note that the run has ended."""
        self.last = Terminated(
            exit_code=exit_code,
            reason=reason,
            message=message,
            started_at=started_at,
            finished_at=time.time(),
        )
        self.state = self.last
        self.process = None
        self.is_started = False
        self.is_ready = self.container.kind is Kind.INIT and exit_code == 0
