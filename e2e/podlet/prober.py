"""Exec probes of one running container.

Source: https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from e2e.podlet.pod import Probe
from e2e.podlet.process import ContainerProcess
from e2e.podlet.runtime import RuntimeFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What the pod worker does with the outcomes."""

    started: Callable[[], None]
    ready: Callable[[bool], None]
    failed: Callable[[str, Probe, str], None]
    is_terminating: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """The probes of one run of a container. `epoch` is when the pod started: kubelet's tickers begin there."""

    process: ContainerProcess
    startup: Probe | None
    liveness: Probe | None
    readiness: Probe | None
    verdicts: Verdicts
    epoch: float
    scale: float

    def begin(self) -> None:
        """Probe in threads of its own until the container ends."""
        self._spawn(self._until_started if self.startup else self._after_start)

    def _spawn(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name=f"probe-{self.process.identity}", daemon=True).start()

    def _until_started(self) -> None:
        assert self.startup is not None
        if self._watch(self.startup, "Startup", until_success=True):
            self.verdicts.started()
            self._after_start()

    def _after_start(self) -> None:
        if self.readiness is not None:
            self._spawn(self._watch_readiness)
        if self.liveness is not None:
            self._watch(self.liveness, "Liveness", until_success=False)

    def _watch(self, probe: Probe, kind: str, *, until_success: bool) -> bool:
        """Return True at the first success if asked to; False when it failed too often or the container ended."""
        failures = 0
        while self._wait_for_tick(probe) and not self.verdicts.is_terminating():
            fault = self._ask(probe)
            if not fault:
                if until_success:
                    return True
                failures = 0
                continue
            failures += 1
            if failures >= probe.failure_threshold and not self.process.ended.is_set():
                self.verdicts.failed(kind, probe, fault)
                return False
        return False

    def _watch_readiness(self) -> None:
        assert self.readiness is not None
        probe, is_ready, run = self.readiness, False, 0
        while self._wait_for_tick(probe):
            outcome = not self._ask(probe)
            run = run + 1 if outcome != is_ready else 0
            if run >= (probe.success_threshold if outcome else probe.failure_threshold):
                is_ready, run = outcome, 0
                self.verdicts.ready(is_ready)

    def _wait_for_tick(self, probe: Probe) -> bool:
        """Wait for the probe's next tick; False when the container has ended."""
        now = time.time()
        earliest = max(now, self.process.started_at + probe.initial_delay_s * self.scale)
        period = probe.period_s * self.scale
        tick = self.epoch + (math.floor((earliest - self.epoch) / period) + 1) * period
        return not self.process.ended.wait(tick - now)

    def _ask(self, probe: Probe) -> str:
        """Return what is wrong, or nothing."""
        try:
            done = self.process.execute(probe.command, probe.timeout_s)
        except (RuntimeFailed, OSError) as error:
            return str(error)
        if done.exit_code is None:
            return f"command timed out after {probe.timeout_s} s"
        return (
            ""
            if done.exit_code == 0
            else (done.stdout + done.stderr).strip() or f"exit code {done.exit_code}"
        )
