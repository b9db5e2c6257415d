"""The object-store benchmark: whom a figure is judged against, the picture, and the loads."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from e2e.bench import objects_load
from e2e.bench.bench_objects import render_panels, render_rows
from e2e.bench.objects_chart import Panel, render_chart
from e2e.bench.objects_direct import NAME as DIRECT
from e2e.bench.objects_subjects import OURS

ROUNDS = {
    OURS: [{"sequential": 900.0, "small": 1.0, "write": 90.0}] * 3,
    "quick": [{"sequential": 500.0, "small": 3.0}, {"sequential": 700.0, "small": 5.0}, {"sequential": 1.0}],
    "slow": [{"sequential": 10.0, "small": 9.0, "write": 95.0}] * 3,
    DIRECT: [{"sequential": 2000.0, "write": 100.0}],
}


def test_a_figure_is_judged_against_the_best_peer_and_not_the_ceiling() -> None:
    rows = {row.what: row for row in render_rows(ROUNDS, {})}
    assert (rows["1 GiB in order, cold"].against, rows["1 GiB in order, cold"].theirs) == ("quick", 500.0)
    assert rows["1 GiB in order, cold"].verdict == "holds"
    assert (rows["1,000 files of 16 KiB, cold"].against, rows["1,000 files of 16 KiB, cold"].theirs) == (
        "quick",
        4.0,
    )
    write = rows["1 GiB written, until it has arrived"]
    assert (write.against, write.ratio, write.verdict) == (DIRECT, 0.9, "falls short")


def test_who_is_aside_is_shown_and_nobody_is_judged_against_it() -> None:
    row, *_ = render_rows(ROUNDS, {}, {"quick"})
    assert (row.against, row.theirs) == ("slow", 10.0)
    assert "quick 500" in row.note


def test_a_row_says_how_far_figures_are_from_their_medians() -> None:
    row, *_ = render_rows(ROUNDS, {})
    assert row.note.startswith("±0% and ±70%; slow 10.0 ±0%")


def test_nobody_to_be_judged_against_is_no_success() -> None:
    (row, *_) = render_rows({OURS: ROUNDS[OURS]}, {})
    assert (row.against, row.verdict) == ("", "")


def test_ours_that_does_not_serve_is_said() -> None:
    (row,) = render_rows({"quick": ROUNDS["quick"]}, {OURS: "it does not serve"})
    assert (row.verdict, row.fault) == ("not measured", "it does not serve")


def test_the_picture_has_a_bar_for_everybody_and_takes_any_name() -> None:
    panels = [
        *render_panels(ROUNDS),
        Panel(title="<&>", unit="s", more_is_better=False, bars={OURS: 0.0, 'a"b': 0.0}),
    ]
    picture = ET.fromstring(render_chart("heading", OURS, panels))
    bars = list(picture.iter("{http://www.w3.org/2000/svg}rect"))
    assert len(bars) == 1 + sum(len(panel.bars) for panel in panels)
    lines = list(picture.iter("{http://www.w3.org/2000/svg}line"))
    assert len(lines) == len(bars) - 1
    assert max(float(line.get("x2", 0)) - float(line.get("x1", 0)) for line in lines) > 40
    assert "<&>" in [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("what", ["sequential", "parallel", "small", "random", "stretches"])
def test_a_load_reads_what_is_there(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    place = tmp_path if what in ("parallel", "small") else tmp_path / "file"
    assert objects_load.WORK[what](place, 2 if place is tmp_path else 4096, 0.01) > 0


def test_a_load_that_reads_too_little_is_no_figure(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="nothing to read"):
        objects_load.small(tmp_path, 1, 0)


def test_a_written_file_is_whole(tmp_path: Path) -> None:
    assert objects_load.write(tmp_path / "new", 2 << 20, 0) > 0
    assert (tmp_path / "new").stat().st_size == 2 << 20


def test_small_files_are_written_whole(tmp_path: Path) -> None:
    assert objects_load.write_small(tmp_path / "new", 9, 0) > 0
    assert [path.stat().st_size for path in (tmp_path / "new").iterdir()] == [16 << 10] * 9
