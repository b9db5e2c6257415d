"""The check's process inside of its namespaces, PID 1 there: reads its order on standard input, writes a finding a line.

    python -m sidemount.commands.conformance.inside

When it ends, the kernel ends whatever it has started and takes away whatever was mounted.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from sidemount.commands.conformance import trial_again, trial_hung, trial_serving
from sidemount.commands.conformance.finding import Finding, Verdict
from sidemount.commands.conformance.plan import Stand
from sidemount.commands.conformance.sandbox import furnish
from sidemount.commands.conformance.scene import Scene, untried
from sidemount.commands.conformance.trial_refusals import try_missing_source, try_refusals
from sidemount.model.errors import VolumeError


def main() -> int:
    """Run the check; the exit code is 0 if it was run to its end, whatever was found."""
    order = json.load(sys.stdin)
    try:
        furnish(order["base"], order.pop("writable"), own_tmp=order.pop("own_tmp"))
    except VolumeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    is_quick = order.pop("is_quick")
    for finding in run_trials(_scene(order), is_quick=is_quick):
        sys.stdout.write(json.dumps(finding.to_json()) + "\n")
        sys.stdout.flush()
    return 0


def run_trials(scene: Scene, *, is_quick: bool) -> Iterator[Finding]:
    """Yield every finding, in the order in which they are shown; a quick check has one stand, or the one that should not work."""
    seen: dict[str, Verdict] = {}
    for finding in trial_serving.try_serving(scene, is_only=is_quick):
        seen[finding.check] = finding.verdict
        yield finding
    if is_quick:
        return
    has_written = seen.get("write") is Verdict.OK
    if seen["starts"] is Verdict.OK:
        yield from trial_again.try_again(scene, has_written=has_written)
        # While what was written is there: a client that shows the same whatever it is told to show is known by that.
        yield from try_missing_source(scene)
        yield from trial_hung.try_hung(scene, has_written=has_written)
    else:
        yield from untried((*trial_again.CHECKS, *trial_hung.CHECKS), "not reached: it does not come up")
        yield from try_missing_source(scene)
    yield from try_refusals(scene)


def _scene(order: dict[str, Any]) -> Scene:
    stands = {raw["name"]: Stand.from_json(raw) for raw in order.pop("stands")}
    return Scene(stands=stands, **{**order, "capabilities": tuple(order["capabilities"])})


if __name__ == "__main__":
    sys.exit(main())
