"""Applications as programs, and what is heard of them while they run and in the end. The mount is an ordinary directory here."""

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.torture import progress
from e2e.torture.crew import Crew
from e2e.torture.killer import Blows
from e2e.torture.log_tail import LogTail
from e2e.torture.progress import Progress
from e2e.torture.stage import TortureError
from e2e.torture.variants import VARIANTS, Victim

_BEGUN_S = 30.0


@contextmanager
def crew(directory: Path, *apps: str) -> Iterator[Crew]:
    """Have applications work until they are told to stop. They work in `mount`; what they leave is looked for in `source`."""
    for name in ("mount", "work"):
        (directory / name).mkdir()
    if not (directory / "source").exists():
        (directory / "source").symlink_to("mount")
    members = Crew(directory / "mount", apps, 60, 1, work=directory / "work", source=directory / "source")
    try:
        yield members
    finally:
        members.kill()


def _wait_until_it_heeds(pid: int) -> None:
    """Wait until a program that has just been started has said what it does at SIGTERM."""
    until = time.monotonic() + _BEGUN_S
    while True:
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert caught is not None
        if int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        assert time.monotonic() < until
        time.sleep(0.01)


def _stop(members: Crew) -> None:
    """Have them end well: only who has come to say what SIGTERM means does."""
    for member in members._all():
        _wait_until_it_heeds(member.program.pid)
    members.stop()


def _wait_for(path: Path) -> None:
    until = time.monotonic() + _BEGUN_S
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.01)


def test_what_all_of_them_have_done_is_added_up(tmp_path: Path) -> None:
    with crew(tmp_path, "writer", "log") as members:
        _wait_for(tmp_path / "mount" / "writer0" / "file")
        _wait_for(tmp_path / "mount" / "log1" / "log")
        _stop(members)
        found = members.findings()
    assert (found.errors, found.wrong) == ([], [])
    assert found.operations > 0


def test_a_source_that_has_not_what_they_left_is_noticed(tmp_path: Path) -> None:
    with crew(tmp_path, "writer") as members:
        _wait_for(tmp_path / "mount" / "writer0" / "file")
        (tmp_path / "source").unlink()
        shutil.copytree(tmp_path / "mount", tmp_path / "source")
        (tmp_path / "source" / "writer0" / "file").write_bytes(b"something else")
        _stop(members)
        found = members.findings()
    assert found.wrong == ["writer0: file is another one in the source than in the mount"]


def test_a_complaint_is_heard_while_the_application_works(tmp_path: Path) -> None:
    with crew(tmp_path, "log") as members:
        _wait_for(tmp_path / "mount" / "log0" / "log")
        with (tmp_path / "mount" / "log0" / "log").open("ab") as file:
            file.write(b"9 of nobody\n")
        with (tmp_path / "work" / "log0.said").open("ab") as said:
            said.write(b'noise\n{"error": "EIO"}\n{"wrong": "a by')
        found = members.so_far()
        assert found.errors == ["log0: EIO"]
        _stop(members)
        assert any(what.startswith("log0: lines") for what in members.findings().wrong)


def test_an_application_that_ends_otherwise_is_noticed(tmp_path: Path) -> None:
    with crew(tmp_path, "writer") as members:
        _wait_for(tmp_path / "mount" / "writer0" / "file")
        (member,) = members._members
        member.program.send_signal(signal.SIGKILL)
        with pytest.raises(TortureError, match="writer0 has ended with code -9"):
            members.findings()


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    with path.open("ab", buffering=0) as file:
        file.write(b'{"event": "serving", "pid": 1}\n{"event": "ser')
        assert tail.count("serving") == 1
        file.write(b'ving", "pid": 2}\nno JSON\n')
        assert tail.count("serving") == 2
        assert tail.count("serving", pid=2) == 1
        assert tail.count("gone") == 0
        file.write(json.dumps({"event": "serving", "pid": 2}).encode() + b"\n")
    assert tail.count("serving", pid=2) == 2
    tail.close()


def test_progress_is_told_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with crew(tmp_path) as members:
        told = Progress(VARIANTS["child"], 60, members)
        blows = Blows(moments=[10.0], victims=[Victim.CHILD])
        told.tick(blows)
        assert capsys.readouterr().err == ""
        with (tmp_path / "work" / "prober.said").open("ab") as said:
            said.write(b'{"slow": [9.9, 10.25]}\n{"error": "EIO"}\n')
        monkeypatch.setattr(progress, "_EVERY_S", 0.0)
        told.tick(blows)
    line = capsys.readouterr().err
    assert "of 60 s: 1 blows, 1 errors, 0 wrong, stall p50 250 p99 250 max 250 ms" in line


def test_a_request_to_hand_over_is_no_kill() -> None:
    assert Blows(victims=[Victim.CHILD, Victim.UPGRADE, Victim.HANG]).kills == 2
