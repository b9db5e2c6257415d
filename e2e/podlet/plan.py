"""What to do next for a pod: which container to start, until when to wait, or that it is over. No effects.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
"""

from dataclasses import dataclass, field

from e2e.podlet.pod import Kind, Pod
from e2e.podlet.record import Record, Waiting


@dataclass(frozen=True, slots=True)
class Start:
    """Start this container."""

    record: Record


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until` (None: before something changes)."""

    until: float | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The pod is over."""

    phase: str


@dataclass(slots=True)
class Plan:
    """The order of one pod. `passed` counts the init containers that need not be waited for any more."""

    pod: Pod
    inits: list[Record]
    apps: list[Record]
    passed: int = 0
    _wakes: list[float] = field(default_factory=list)

    @property
    def is_initialized(self) -> bool:
        """Tell whether the app containers may start."""
        return self.passed == len(self.inits)

    def next_action(self, now: float) -> Start | Wait | Finish:
        """Return the next step. Call again after every step and every change."""
        self._wakes = []
        while not self.is_initialized and self._lets_on(self.inits[self.passed]):
            self.passed += 1
        # A native sidecar that ended is started again whatever the others do; it gates nobody a second time.
        waiting = [
            r for r in self.inits[: self.passed] if r.container.kind is Kind.SIDECAR and not r.is_running
        ]
        if self.is_initialized:
            if (phase := self._final_phase()) is not None:
                return Finish(phase)
            waiting += [record for record in self.apps if self._wants_run(record)]
        else:
            current = self.inits[self.passed]
            if self._has_failed_for_good(current):
                return Finish("Failed")
            if not current.is_running:
                waiting.append(current)
        for record in waiting:
            if self._may_start(record, now):
                return Start(record)
        return Wait(min(self._wakes, default=None))

    def _lets_on(self, record: Record) -> bool:
        if record.container.kind is Kind.SIDECAR:
            return record.is_running and record.is_started
        return record.has_succeeded

    def _has_failed_for_good(self, record: Record) -> bool:
        return (
            record.container.kind is Kind.INIT
            and self.pod.restart_policy == "Never"
            and record.last is not None
            and not record.is_running
            and not record.has_succeeded
        )

    def _wants_run(self, record: Record) -> bool:
        if record.is_running:
            return False
        match self.pod.restart_policy:
            case "Always":
                return True
            case "OnFailure":
                return not record.has_succeeded
            case _:
                return record.last is None

    def _final_phase(self) -> str | None:
        if any(record.is_running or self._wants_run(record) for record in self.apps):
            return None
        return "Succeeded" if all(record.has_succeeded for record in self.apps) else "Failed"

    def _may_start(self, record: Record, now: float) -> bool:
        at = record.retry_at
        if record.last is not None:
            backed_off = record.back_off.ready_at(record.last.finished_at)
            # Why it could not be created is worth more than that it once ended.
            if backed_off > now and record.state is record.last:
                delay, name = f"{record.back_off.delay_s:g}s", record.container.name
                record.state = Waiting(
                    reason="CrashLoopBackOff", message=f"back-off {delay} restarting failed container={name}"
                )
            at = max(at, backed_off)
        if at <= now:
            return True
        self._wakes.append(at)
        return False
