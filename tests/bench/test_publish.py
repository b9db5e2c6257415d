"""The benchmark of publishing: what its rows say, and one short run of all of it on real mounts."""

import os
from pathlib import Path

import pytest

from e2e.bench import bench_publish
from e2e.bench.bench_publish import EXECUTED, NURSERY, Times, quantile, render_rows


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 10.0), (0.95, 19.0), (0.96, 20.0), (1.0, 20.0)]
)
def test_a_quantile_is_a_value_that_was_measured(share: float, value: float) -> None:
    values = [float(number) for number in range(20, 0, -1)]
    assert quantile(values, share) == value
    assert quantile([7.0], share) == 7.0


@pytest.mark.parametrize(("slowest", "verdict"), [(0.3, "holds"), (0.31, "falls short")])
def test_the_goal_is_for_the_95th_percentile_of_a_publish_alone(slowest: float, verdict: str) -> None:
    times = {
        NURSERY: Times([0.1] * 94 + [slowest] * 6, [9.0] * 100),
        EXECUTED: Times([0.5] * 100, [9.0] * 100),
    }
    alone = list(render_rows("alone", times, is_judged=True))
    assert {row.what: row.verdict for row in alone if row.verdict} == {
        "publish to the first read, alone, p95": verdict
    }
    assert [row.ours for row in alone] == [0.1, slowest, slowest, 9.0, 9.0, 9.0]
    assert not any(row.verdict for row in render_rows("20 at once", times, is_judged=False))


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_short_run_has_every_figure_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ALONE", 2), ("AT_ONCE", 3), ("ROUNDS", 1)):
        monkeypatch.setattr(bench_publish, name, value)
    before = Path("/proc/self/mountinfo").read_text()
    rows = list(bench_publish.rows())
    assert len(rows) == 12
    assert all(row.ours and row.theirs and not row.fault for row in rows)
    assert Path("/proc/self/mountinfo").read_text() == before
