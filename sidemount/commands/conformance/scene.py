"""What the trials of one check share: the stands, what the class declares, and how a check becomes a finding."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sidemount.commands.conformance.children import Late, Refused
from sidemount.commands.conformance.finding import CannotTry, Finding, NotAsDeclared, Verdict
from sidemount.commands.conformance.plan import WRONG_CREDENTIAL, Stand
from sidemount.commands.conformance.running import Running, running
from sidemount.model.errors import VolumeError
from sidemount.model.mountspec import View
from sidemount.model.names import view_name
from sidemount.model.redaction import spellings

_POLL_S = 0.05


@dataclass(slots=True, kw_only=True)
class Scene:
    """`leaks` and `words` gather over all stands what the last check tells of."""

    base: str
    stands: dict[str, Stand]
    capabilities: tuple[str, ...]
    descriptor: bool
    takeover: bool
    read_only: str
    is_source_read_only: bool
    timeout_s: float
    mark: str
    leaks: set[str] = field(default_factory=set)
    words: list[str] = field(default_factory=list)

    @property
    def directory(self) -> str:
        """The name of what the check makes in the source."""
        return f"sidemount-check-{self.mark}"

    @contextmanager
    def stand(self, name: str, sub_path: str = "") -> Iterator[Running]:
        """Run a stand, with a read-only view of the whole and one of a sub-path; look through what it has told at its end."""
        volume = self.stands[name].spec.volume
        views = [View(name=volume), View(name=view_name(volume, "", True), read_only=True)]
        if sub_path:
            views.append(View(name=view_name(volume, sub_path, False), sub_path=sub_path))
        with running(self.base, self.stands[name], self.capabilities, views) as started:
            try:
                yield started
            finally:
                told = started.log_text()
                secrets = [*self.stands[name].secrets.values(), WRONG_CREDENTIAL]
                if any(each in told for each in spellings(secrets)):
                    self.leaks.add(f"the log of stand {name}")
                self.words += (started.output() or started.faults())[-1:]

    def until(self, act: Callable[[], Any], what: str) -> Any:
        """Return the first true answer of `act` within the case's time. Raises NotAsDeclared."""
        until = time.monotonic() + self.timeout_s
        last: object = ""
        while True:
            try:
                found = act()
                if found:
                    return found
            except (Late, Refused) as error:
                last = f": {error}"
            if time.monotonic() > until:
                raise NotAsDeclared(f"{what} not within {self.timeout_s:g} s{last}")
            time.sleep(_POLL_S)


def found(check: str, act: Callable[[], str]) -> Finding:
    """Return what became of a check: `act` returns a reason, or raises."""
    try:
        return Finding(check=check, verdict=Verdict.OK, reason=act())
    except NotAsDeclared as error:
        return Finding(check=check, verdict=Verdict.FAILED, reason=str(error))
    except CannotTry as error:
        return Finding(check=check, verdict=Verdict.UNTRIED, reason=str(error))
    except (Late, Refused) as error:
        return Finding(check=check, verdict=Verdict.FAILED, reason=str(error))
    except (VolumeError, OSError, RuntimeError) as error:
        return Finding(check=check, verdict=Verdict.FAILED, reason=f"the check itself failed: {error}")


def untried(checks: Sequence[str], why: str) -> list[Finding]:
    """Return findings that say why nothing was tried."""
    return [Finding(check=check, verdict=Verdict.UNTRIED, reason=why) for check in checks]
