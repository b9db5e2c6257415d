"""The log of a draft, and what it says."""

import errno
import os
from pathlib import Path

import pytest

from sidecar.objects.draft_log import DraftLog, read_log
from sidecar.objects.draft_state import DraftState, begun, replay
from sidemount.stores.store import ObjectInfo


def test_torn_end_of_a_log_is_cut_off_and_the_log_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    log = DraftLog(path)
    for number in range(3):
        log.append({"t": "part", "number": number})
    log.close()
    whole = (tmp_path / "log").read_bytes()
    for length in range(len(whole) + 1):
        (tmp_path / "log").write_bytes(whole[:length] + (b"" if length % 2 else b"\0\xff garbage"))
        records = read_log(path)
        assert [one["number"] for one in records] == list(range(whole[:length].count(b"\n")))
        log = DraftLog(path)
        log.append({"t": "gone", "number": 9})
        log.close()
        assert read_log(path)[:-1] == records
        assert read_log(path)[-1] == {"t": "gone", "number": 9}


def test_log_that_has_no_room_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DraftLog(str(tmp_path / "log"))
    log.append({"t": "changed"})
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:5]))
    with pytest.raises(OSError, match="space") as raised:
        log.append({"t": "discarded"})
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="space"):
        log.rewrite({"t": "dropped"})
    monkeypatch.undo()
    log.append({"t": "dropped"})
    assert read_log(log.path) == [{"t": "changed"}, {"t": "dropped"}]


def test_replay_of_records_and_of_a_snapshot_are_the_live_state() -> None:
    info = ObjectInfo("a", 5000, "v1", 7)
    state = begun(7, "a", info, part_bytes=1000, largest_part=1 << 30, is_exclusive=False)
    records = [state.snapshot()]

    def live(**record: object) -> None:
        records.append(record)
        state.apply(record)
        for one in (
            replay(records, state.size),
            replay([records[0], *records[1:]], state.size),
            replay([state.snapshot()], state.size),
        ):
            assert _facts(one) == _facts(state), record

    live(t="changed")
    live(t="local", **{"from": 10, "to": 20})
    state.appended(9000)
    live(t="uploading", prefix=0, tag="u", at=5)
    live(t="upload", id="x")
    live(t="part", part=[6, 1000, "e6"])
    live(t="part", part=[7, 1000, "e7"])
    live(t="gone", number=7)
    live(t="dirty", number=6)
    live(t="committing", tag="u", size=9000)
    live(t="changed")
    live(t="size", to=7500)
    live(t="adopted", base=ObjectInfo("a", 9000, "v2", 8), end=7500, tag="u")
    live(t="lost")
    live(t="committing", tag="w", size=7500)
    live(t="committed", base=ObjectInfo("a", 7500, "v3", 9), kept=[[7000, 7500]], tag="w")
    live(t="moved", key="b", base=ObjectInfo("b", 7500, "v4", 9))
    live(t="emptied", exclusive=False)
    state.appended(10)
    live(t="node", node=9)
    live(t="abandoned", at=3.5)
    live(t="discarded")
    live(t="dropped")


def _facts(state: DraftState) -> tuple[object, ...]:
    return state.snapshot(), state.size, list(state.local)
