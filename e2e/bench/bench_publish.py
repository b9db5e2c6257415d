"""S3-16. Publish and unpublish on the node, launcher `process`: daemons from the nursery against daemons that are executed, in turns.

A publish is measured from the call to the end of the first read through the target, by a caller with a connection of its own.
"""

import contextlib
import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from e2e.bench.rows import Goal, Row
from tests.csi.plugin import Plugin
from tests.host.mount_node import MountNode, eventually, scratch_directory

ALONE = 50
AT_ONCE = 20
ROUNDS = 3
GOAL_S = 0.3

NURSERY, EXECUTED = "nursery", "executed"
PUBLISH, UNPUBLISH = "publish to the first read", "unpublish"
_ENTRIES = {NURSERY: "csi", EXECUTED: "e2e.bench.executing_plugin"}
_NURSERY_S = 60.0


@dataclass(slots=True)
class Times:
    """Seconds that calls took, by what was called."""

    publish: list[float] = field(default_factory=list)
    unpublish: list[float] = field(default_factory=list)


def rows() -> Iterator[Row]:
    """Measure one volume after the other, then many at once."""
    with contextlib.ExitStack() as stack:
        plugins = {name: stack.enter_context(_plugin(entry)) for name, entry in _ENTRIES.items()}
        nursery = plugins[NURSERY]
        eventually(lambda: nursery.events("nursery_ready"), what="the nursery", timeout_s=_NURSERY_S)
        alone = _in_turns(plugins, _alone, ALONE)
        together = _in_turns(plugins, _at_once, ROUNDS)
    yield from render_rows("alone", alone, is_judged=True)
    yield from render_rows(f"{AT_ONCE} at once", together, is_judged=False)


def render_rows(how: str, times: Mapping[str, Times], *, is_judged: bool) -> Iterator[Row]:
    """Return the rows of what was measured one way; the goal is for publishing."""
    ours, theirs = times[NURSERY], times[EXECUTED]
    for what, mine, others in (
        (PUBLISH, ours.publish, theirs.publish),
        (UNPUBLISH, ours.unpublish, theirs.unpublish),
    ):
        for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
            yield Row(
                what=f"{what}, {how}, {name}",
                ours=quantile(mine, share),
                unit="s",
                against="daemons that are executed",
                theirs=quantile(others, share),
                goal=Goal(at_most=GOAL_S, of_ours=True)
                if is_judged and (what, name) == (PUBLISH, "p95")
                else None,
                note=f"of {len(mine)}",
            )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that a share of all does not exceed."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]


def _in_turns(
    plugins: Mapping[str, Plugin], measure: Callable[[Plugin], Times], rounds: int
) -> dict[str, Times]:
    """Return the times of as many rounds, after one unrecorded turn each."""
    times = {name: Times() for name in plugins}
    for plugin in plugins.values():
        measure(plugin)
    for number in range(rounds):
        for name in sorted(plugins, reverse=bool(number % 2)):
            found = measure(plugins[name])
            times[name].publish += found.publish
            times[name].unpublish += found.unpublish
    return times


def _alone(plugin: Plugin) -> Times:
    return Times([_publish(plugin, "t")], [_unpublish(plugin, "t")])


def _at_once(plugin: Plugin) -> Times:
    names = [f"t{number}" for number in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as callers:
        return Times(
            list(callers.map(lambda name: _publish(plugin, name), names)),
            list(callers.map(lambda name: _unpublish(plugin, name), names)),
        )


def _publish(plugin: Plugin, target: str) -> float:
    began = time.monotonic()
    plugin.publish(target)
    text = (plugin.seen(target) / "file").read_text()
    spent = time.monotonic() - began
    if text != "live":
        raise RuntimeError(f"the target shows {text!r}")
    return spent


def _unpublish(plugin: Plugin, target: str) -> float:
    began = time.monotonic()
    plugin.unpublish(target)
    return time.monotonic() - began


@contextlib.contextmanager
def _plugin(entry: str) -> Iterator[Plugin]:
    with scratch_directory() as work:
        node = MountNode(work)
        plugin = Plugin(node)
        (plugin.store() / "file").write_text("live")
        try:
            yield plugin.start(entry)
        finally:
            with contextlib.redirect_stdout(io.StringIO()):  # its log is for tests
                plugin.end()
            node.close()
