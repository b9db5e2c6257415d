"""The data benchmark: what is parsed and what the rows say; and one short run of all of it on real mounts."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e.bench import bench_data, data_programs, data_run
from e2e.bench.bench_data import measure, medians, render_rows
from e2e.bench.data_cost import Spent, UntraceableError, parse_calls, parse_stat
from e2e.bench.data_programs import UnavailableError, build_example, build_load
from e2e.bench.data_run import BINDFS, CALLS, EXAMPLE, EXAMPLE_PLAIN, OURS, OURS_PLAIN, TRIO, Settings

STRACE = """\
12 poll([{fd=9, events=POLLIN}, {fd=5, events=POLLIN}], 2, 0) = 0 (Timeout)
12 poll([{fd=9, events=POLLIN}, {fd=5, events=POLLIN}], 2, 0) = 1 ([{fd=5, revents=POLLIN}])
12 read(5, ""..., 1052672)               = 80
13 poll([{fd=7, events=POLLIN}], 1, 1000 <unfinished ...>
14 futex(0x7f20, FUTEX_WAIT_PRIVATE, 0, NULL <unfinished ...>
12 preadv(8,  <unfinished ...>
13 <... poll resumed>)                   = 0 (Timeout)
12 <... preadv resumed>[{iov_base=""..., iov_len=4096}], 1, 0) = 4096
12 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---
12 writev(5, [{iov_base=""..., iov_len=16}], 1) = -1 ENOENT (No such file or directory)
12 close(8)                              = 0
15 +++ exited with 0 +++
"""


def test_processor_time_is_read_whatever_the_command_is_called() -> None:
    text = "12 (a) b (c) S 1 12 12 0 -1 4194560 100 0 0 0 250 150 7 8 20 0 3 0 5 0 0"
    assert parse_stat(text, 100) == Spent(2.5, 1.5)
    assert Spent(2.5, 1.5) - Spent(1.0, 0.5) == Spent(1.5, 1.0)


def test_calls_are_counted_when_they_return_but_for_polls_in_vain() -> None:
    assert parse_calls(STRACE) == 5


def test_no_call_is_an_error() -> None:
    with pytest.raises(UntraceableError, match="nothing"):
        parse_calls("12 +++ exited with 0 +++\n")


def test_medians_are_of_the_rounds_that_have_the_figure() -> None:
    rounds = {"a": [{"x": 1.0, "once": 7.0}, {"x": 9.0}, {"x": 3.0}]}
    assert medians(rounds) == {"a": {"x": 3.0, "once": 7.0}}


def figures() -> dict[str, dict[str, float]]:
    """Return a run in which every goal is met."""
    names = {figure.name for figure in bench_data._FIGURES}
    everything = dict.fromkeys(names, 5.0)
    ours = everything | {"read x4": 6.5, "find": 10.0, "ls -l": 4.0}
    return {
        OURS: ours,
        TRIO: dict(everything),
        EXAMPLE: dict(everything),
        BINDFS: dict(everything),
        OURS_PLAIN: {"ls -l": 4.0},
        EXAMPLE_PLAIN: {"ls -l": 5.0},
    }


def verdicts(found: dict[str, dict[str, float]], absent: dict[str, str] | None = None) -> dict[str, str]:
    """Return the verdicts by what was judged, without "holds"."""
    rows = render_rows(found, absent or {})
    return {row.what: row.verdict for row in rows if row.verdict not in ("", "holds")}


def test_every_goal_is_judged_against_the_example() -> None:
    assert sum(row.verdict == "holds" for row in render_rows(figures(), {})) == 6
    assert verdicts(figures()) == {}


@pytest.mark.parametrize(
    ("subject", "figure", "value", "what"),
    [
        (OURS, "read x4", 6.4, "4 KiB random reads, 4 clients"),
        (OURS, "read x1 user", 6.1, "user time of a 4 KiB read, 1 client"),
        (OURS, "find", 10.1, "find, 10,000 files"),
        (OURS, "ls -l", 5.1, "ls -l, 10,000 files"),
        (OURS_PLAIN, "ls -l", 5.1, "ls -l, 10,000 files, neither with xattrs"),
    ],
)
def test_a_goal_just_missed_falls_short(subject: str, figure: str, value: float, what: str) -> None:
    found = figures()
    found[subject][figure] = value
    assert verdicts(found) == {what: "falls short"}


def test_without_the_peer_a_goal_is_not_judged_and_the_rest_is() -> None:
    found = figures()
    del found[EXAMPLE], found[EXAMPLE_PLAIN], found[BINDFS]
    why = {EXAMPLE: "gcc is not installed", EXAMPLE_PLAIN: "gcc is not installed", BINDFS: "no bindfs"}
    rows = list(render_rows(found, why))
    assert [row.note for row in rows if row.what == "without bindfs"] == ["no bindfs"]
    faults = {row.what: row.fault for row in rows if row.fault}
    assert len(faults) == 4
    assert set(faults.values()) == {"no passthrough_ll (C): gcc is not installed"}
    assert sum(row.verdict == "holds" for row in rows) == 2, "user time needs no peer"


def test_without_strace_a_row_says_so_and_nothing_is_at_fault() -> None:
    found = figures()
    for subject in (OURS, TRIO, EXAMPLE, BINDFS):
        del found[subject][CALLS]
    rows = list(render_rows(found, {}))
    assert not any(row.fault for row in rows)
    assert "strace cannot be had" in [row.note for row in rows]


def test_without_our_own_figures_everything_is_at_fault() -> None:
    found = figures()
    del found[OURS], found[OURS_PLAIN]
    rows = list(render_rows(found, {OURS: "it does not serve", OURS_PLAIN: "it does not serve"}))
    assert all(row.fault for row in rows)


def test_the_example_is_taken_from_the_package_where_documentation_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[list[str]] = []

    def run(argv: list[str], cwd: Path, **_: Any) -> Any:
        calls.append(argv)
        if argv[0] == "dpkg-deb":
            place = cwd / "usr/share/doc/libfuse3-dev/examples"
            place.mkdir(parents=True)
            (place / "passthrough_ll.c").write_text("int main;")
            (place / "passthrough_helpers.h").write_text("")
        if argv[0] == "apt-get":
            (cwd / "libfuse3-dev.deb").touch()
        return SimpleNamespace(stdout="-lfuse3", stderr="")

    monkeypatch.setattr(data_programs, "_INSTALLED", Path("/usr/share/doc/libfuse3-dev/examples"))
    monkeypatch.setattr(data_programs, "_has_all", lambda directory: False)
    monkeypatch.setattr(subprocess, "run", run)
    assert build_example(tmp_path) == tmp_path / "passthrough_ll"
    assert [argv[0] for argv in calls] == ["apt-get", "dpkg-deb", "pkg-config", "gcc"]
    assert (tmp_path / "libfuse/passthrough_ll.c").read_text() == "int main;"


def test_a_program_that_cannot_be_built_says_why_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "data_load.c").write_text("no program\n")
    monkeypatch.setattr(data_programs, "_HERE", broken)
    with pytest.raises(UnavailableError) as told:
        build_load(tmp_path)
    assert str(told.value).startswith("gcc: ")
    assert "\n" not in str(told.value)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="gcc is not installed"):
        build_load(tmp_path)


def test_the_load_refuses_nonsense(tmp_path: Path) -> None:
    program = build_load(tmp_path)
    for wrong in ([], ["read", "x", "1", "65"], ["dance", "x", "1", "1"]):
        assert subprocess.run([program, *wrong], capture_output=True, check=False).returncode == 2
    ended = subprocess.run([program, "stat", tmp_path, "0", "1"], capture_output=True, check=False, text=True)
    assert (ended.returncode, "file000000" in ended.stderr) == (1, True)


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_short_run_has_every_figure_of_every_subject(tmp_path: Path) -> None:
    rounds, absent = measure(0.05, rounds=1, names=300)
    found = medians(rounds)
    assert not absent
    for row in render_rows(found, absent):
        assert row.ours is not None, row.what
        assert not row.fault, row.what
    assert found[OURS][CALLS] < 10
    assert found[TRIO][CALLS] > found[OURS][CALLS], "trio arms epoll for every request"
    assert str(bench_data._BUILD) not in Path("/proc/self/mountinfo").read_text()


def test_a_busy_machine_has_fewer_rounds_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = {subject: [dict(sample)] * 3 for subject, sample in figures().items()}
    monkeypatch.setattr(bench_data, "measure", lambda seconds: (rounds, {}))
    first, *others = bench_data.rows()
    assert (first.what, first.note) == ("medians of 3 rounds", "this machine is too busy for more")
    assert len(others) == len(bench_data._FIGURES)


@pytest.mark.parametrize(("limit_s", "rounds"), [(1000.0, 4), (50.0, 3), (1.0, 1)])
def test_no_round_is_begun_that_would_end_too_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit_s: float, rounds: int
) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(data_run, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(data_run, "make_source", lambda source, names: None)
    monkeypatch.setattr(data_run, "_warm", lambda source: None)
    monkeypatch.setattr(data_run, "_subjects", lambda example: {OURS: None})
    monkeypatch.setattr(data_run, "_measure", lambda *_, **__: {"x": 1.0})
    settings = Settings(load=Path("x"), example=None, seconds=1, rounds=4, names=1, limit_s=limit_s)
    assert len(data_run.measure_all(settings, tmp_path).rounds[OURS]) == rounds


def test_a_subject_that_fails_is_absent_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measured(name: str, *_: Any, **__: Any) -> dict[str, float]:
        if name == BINDFS:
            raise subprocess.CalledProcessError(2, ["ls"])
        return {"x": 1.0}

    monkeypatch.setattr(data_run, "make_source", lambda source, names: None)
    monkeypatch.setattr(data_run, "_warm", lambda source: None)
    monkeypatch.setattr(data_run, "_subjects", lambda example: {OURS: None, BINDFS: None})
    monkeypatch.setattr(data_run, "_measure", measured)
    settings = Settings(load=Path("x"), example=None, seconds=1, rounds=2, names=1, limit_s=60)
    samples = data_run.measure_all(settings, tmp_path)
    assert (list(samples.rounds), list(samples.absent)) == ([OURS], [BINDFS])
