"""The directory that a keeper opens for a daemon: given once it is open, kept while a connection goes on, said why it cannot be."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidemount.host.jobs import Jobs, Room
from sidemount.host.loop import Loop
from sidemount.host.volume_source import SourceDesk

pytestmark = [pytest.mark.root]


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Return a loop."""
    loop = Loop(on_error=lambda error: pytest.fail(repr(error)))
    yield loop
    loop.close()


def _run_until(loop: Loop, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10

    def look() -> None:
        if condition() or time.monotonic() > until:
            loop.stop()
        else:
            loop.call_later(0.01, look)

    look()
    loop.run()
    assert condition()


def _desk(loop: Loop, path: Path, *, read_only: bool = False) -> SourceDesk:
    return SourceDesk(Jobs(loop, Room()), str(path), read_only=read_only, changed=lambda: None)


def test_it_is_kept_for_who_continues_and_opened_anew_for_the_next_connection(
    loop: Loop, tmp_path: Path
) -> None:
    desk = _desk(loop, tmp_path)
    assert not desk.is_ready(continued=False)
    _run_until(loop, lambda: desk.is_ready(continued=False))
    first = os.fstat(desk.give()).st_ino
    assert desk.is_ready(continued=True)
    kept = tmp_path.rename(tmp_path.with_name("moved"))
    tmp_path.mkdir()
    assert desk.is_ready(continued=True)
    assert os.fstat(desk.give()).st_ino == first == kept.stat().st_ino
    _run_until(loop, lambda: desk.is_ready(continued=False))
    assert os.fstat(desk.give()).st_ino == tmp_path.stat().st_ino
    desk.close()


def test_nothing_leads_out_of_it(loop: Loop, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "beside").write_text("not to be seen")
    desk = _desk(loop, tmp_path / "inner")
    _run_until(loop, lambda: desk.is_ready(continued=False))
    assert os.listdir(f"/proc/self/fd/{desk.give()}/..") == []
    desk.close()


def test_a_read_only_one_cannot_be_written_to(loop: Loop, tmp_path: Path) -> None:
    desk = _desk(loop, tmp_path, read_only=True)
    _run_until(loop, lambda: desk.is_ready(continued=False))
    with pytest.raises(OSError, match="Read-only"):
        os.mkdir("made", dir_fd=desk.give())
    desk.close()


@pytest.mark.parametrize("kind", ["missing", "file", "loop"])
def test_why_it_cannot_be_opened_is_said_and_tried_again(loop: Loop, tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.touch()
    elif kind == "loop":
        path.symlink_to(path)
    desk = _desk(loop, path)
    desk.is_ready(continued=False)
    _run_until(loop, lambda: bool(desk.fault))
    assert str(path) in desk.fault
    if kind != "missing":
        path.unlink()
    path.mkdir()
    _run_until(loop, lambda: desk.is_ready(continued=False))
    assert desk.fault == ""
    desk.close()
