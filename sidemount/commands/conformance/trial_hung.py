"""The third stand: a client that stands still is noticed and replaced. It also takes away what the check has made in the source."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

from sidemount.commands.conformance.children import Late, Refused, ask
from sidemount.commands.conformance.finding import Finding
from sidemount.commands.conformance.running import Running, family_of
from sidemount.commands.conformance.scene import Scene, found, untried
from sidemount.commands.conformance.trial_serving import clean_up, is_replaced

CHECKS = ("hang", "clean-up")
_ANSWER_S = 10.0
_WORKED_S = 1.2


def try_hung(scene: Scene, *, has_written: bool) -> Iterator[Finding]:
    """Yield the findings of the third stand."""
    with scene.stand("hung") as stand:
        why = stand.wait_live(scene.timeout_s)
        if why:
            left = f"; {scene.directory} stays in the source" if has_written else ""
            yield from untried(CHECKS, f"it does not come up again: {why}{left}")
            return
        time.sleep(_WORKED_S)
        yield found("clean-up", lambda: clean_up(scene, stand, has_written=has_written))
        yield found("hang", lambda: _hang(scene, stand))


def _hang(scene: Scene, stand: Running) -> str:
    pid = stand.serving()
    for each in family_of(pid):  # a client may be several processes, and it is not told which of them serves
        os.kill(each, signal.SIGSTOP)
    stopped = time.monotonic()
    with suppress(Late, Refused):  # what an application sees meanwhile is an error; it is the keeper's turn
        ask(lambda: os.path.lexists(f"{stand.root}/not-there-{scene.mark}"), within_s=scene.timeout_s)
    waited_s = time.monotonic() - stopped
    scene.until(lambda: is_replaced(stand, pid), "a client that stands still is replaced")
    scene.until(lambda: ask(lambda: [os.listdir(stand.root)], within_s=_ANSWER_S), "the volume answers again")
    return f"SIGSTOP is noticed: applications wait {waited_s:.0f} s with hungAfter {stand.stand.spec.hung_after_s}s, then it is replaced"
