"""Files that are written, over a store in memory."""

import errno
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.objects.draft import Draft
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault
from tests.sidecar.objects.draft_places import PART, MuchStore, make_drafts, pattern, wait_until
from tests.sidecar.takeover.processes import in_small_tmpfs


def fault(kind: FaultKind, number: int = errno.EIO) -> StoreFault:
    return StoreFault(number, kind, kind.value)


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 7 * PART, 7 * PART + 5])
@pytest.mark.parametrize("step", [100, PART, 3000])
def test_what_is_written_in_order_is_the_object(tmp_path: Path, size: int, step: int) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    draft = drafts.create(7, "a/b", exclusive=False)
    content = pattern(size)
    for at in range(0, size, step):
        assert draft.write(at, content[at : at + step]) == len(content[at : at + step])
    assert "a/b" not in store.stored()
    info = draft.commit()
    assert (info.key, info.size) == ("a/b", size)
    assert store.content("a/b") == content
    assert draft.commit() == info
    assert store.unfinished() == 0
    drafts.forget(7)
    wait_until(lambda: os.listdir(tmp_path) == ["uploads"])
    drafts.close()


def test_small_file_leaves_no_trace_and_needs_no_other_thread_for_it(tmp_path: Path) -> None:
    """Or files that are closed together would wait for each other."""
    drafts = make_drafts(MuchStore(), tmp_path)
    before = threading.active_count()
    for node_id, content in ((7, pattern(PART)), (8, b"")):
        draft = drafts.create(node_id, f"key-{node_id}", exclusive=False)
        draft.write(0, content)
        draft.commit()
        drafts.forget(node_id)
    discarded = drafts.create(9, "gone", exclusive=False)
    discarded.write(0, pattern(100))
    discarded.discard()
    drafts.forget(9)
    assert os.listdir(tmp_path) == ["uploads"]
    assert threading.active_count() <= before
    drafts.close()


def test_spool_whose_log_is_gone_is_nobodys(tmp_path: Path) -> None:
    """The daemon died between the two."""
    store = MuchStore()
    make_drafts(store, tmp_path).create(7, "a", exclusive=False).write(0, pattern(100))
    [log] = tmp_path.glob("*.log")
    log.unlink()
    successor = make_drafts(store, tmp_path)
    assert successor.resume() == []
    assert os.listdir(tmp_path) == ["uploads"]
    assert store.stored() == []
    successor.close()


def test_small_object_is_one_request(tmp_path: Path) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path).create(7, "a", exclusive=False)
    draft.write(0, pattern(PART))
    draft.commit()
    assert store.calls == ["put"]


def test_parts_are_uploaded_while_it_is_written_and_then_kept_nowhere(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path, part_bytes=64 << 10)
    draft = drafts.create(7, "a", exclusive=False)
    content = pattern(40 * (64 << 10))
    for at in range(0, len(content), 8192):
        draft.write(at, content[at : at + 8192])
    wait_until(lambda: store.calls.count("put_part") == 39)
    wait_until(lambda: drafts.statistics()["waiting_bytes"] == 0)
    draft.write(draft.size, b"x")
    [spool] = tmp_path.glob("*.spool")
    assert spool.stat().st_blocks * 512 <= 3 * (64 << 10)
    with pytest.raises(OSError, match="not kept") as raised:
        draft.read(0, 10)
    assert raised.value.errno == errno.EOPNOTSUPP
    draft.commit()
    assert store.content("a") == content + b"x"
    assert draft.read(5, 100) == content[5:105]


def test_overwriting_is_atomic_and_an_early_flush_publishes_nothing(tmp_path: Path) -> None:
    store = MuchStore()
    store.put("a", [b"old"])
    draft = make_drafts(store, tmp_path).create(7, "a", exclusive=False)
    assert (draft.is_changed, draft.is_pending) == (False, True)
    draft.write(0, pattern(5000))
    assert store.content("a") == b"old"
    assert (draft.is_changed, draft.is_pending) == (True, True)
    draft.commit()
    assert store.content("a") == pattern(5000)


def test_appending_after_a_commit_goes_on(tmp_path: Path) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path).create(7, "a", exclusive=False)
    content = b""
    for step in (10, 500, 2000, 9000, 3, PART, 1, 20 * PART, 17):
        more = pattern(step, seed=len(content))
        draft.write(len(content), more)
        content += more
        draft.commit()
        assert store.content("a") == content
        assert draft.read(0, len(content) + 5) == content
    assert "copy_part" in store.calls
    assert store.unfinished() == 0


def test_append_to_a_large_object_moves_only_what_is_new(tmp_path: Path) -> None:
    store = MuchStore()
    info = store.put("a", [pattern(100 * PART)])
    draft = make_drafts(store, tmp_path, staging_bytes=10 * PART).edit(7, "a", info)
    draft.write(draft.size, b"more")
    draft.commit()
    assert store.content("a") == pattern(100 * PART) + b"more"
    assert store.calls.count("copy_part") == 1
    assert "get" not in store.calls


def test_writes_at_random_are_staged(tmp_path: Path) -> None:
    store = MuchStore()
    content = bytearray(pattern(30 * PART))
    info = store.put("a", [bytes(content)])
    drafts = make_drafts(store, tmp_path, staging_bytes=100 * PART)
    draft = drafts.edit(7, "a", info)
    for offset, size in ((5, 10), (20 * PART - 3, 6), (0, 1), (29 * PART, 3 * PART), (40 * PART, 1)):
        written = pattern(size, seed=offset + 3)
        if offset > len(content):
            content += bytes(offset - len(content))
        content[offset : offset + size] = written
        assert draft.write(offset, written) == size
        assert bytes(draft.read(0, 100 * PART)) == content
    draft.set_size(35 * PART + 7)
    draft.set_size(36 * PART)
    content[35 * PART + 7 :] = bytes(PART - 7)
    assert bytes(draft.read(0, 100 * PART)) == content
    assert store.content("a") == pattern(30 * PART)
    draft.commit()
    assert store.content("a") == content
    assert drafts.statistics()["staged_bytes"] == 0


def test_random_writes_are_refused_without_staging_and_beyond_it(tmp_path: Path) -> None:
    store = MuchStore()
    info = store.put("a", [pattern(100)])
    drafts = make_drafts(store, tmp_path / "without")
    with pytest.raises(OSError, match="staging") as raised:
        drafts.edit(7, "a", info)
    assert raised.value.errno == errno.EOPNOTSUPP
    draft = drafts.create(7, "a", exclusive=False)
    draft.write(0, b"12345")
    for wrong in (lambda: draft.write(2, b"x"), lambda: draft.write(9, b"x"), lambda: draft.set_size(3)):
        with pytest.raises(OSError, match="staging") as raised:
            wrong()
        assert raised.value.errno == errno.EOPNOTSUPP
    draft.commit()
    assert store.content("a") == b"12345"
    draft = make_drafts(store, tmp_path / "with", staging_bytes=1000).edit(7, "a", draft.commit())
    draft.write(0, b"x")
    for wrong in (lambda: draft.write(2000, b"x"), lambda: draft.set_size(2000)):
        with pytest.raises(OSError, match="staged") as raised:
            wrong()
        assert raised.value.errno == errno.EFBIG
    draft.set_size(0)
    draft.commit()
    assert store.content("a") == b""


def test_head_is_rewritten_as_long_as_it_is_kept(tmp_path: Path) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path, staging_bytes=100 * PART).create(7, "a", exclusive=False)
    content = bytearray(pattern(20 * PART))
    for at in range(0, len(content), PART):
        draft.write(at, content[at : at + PART])
    draft.write(0, b"header")
    content[:6] = b"header"
    draft.write(len(content), b"end")
    assert bytes(draft.read(0, 8)) == content[:8]
    draft.commit()
    assert store.content("a") == content + b"end"


def test_exclusive_create_fails_if_somebody_was_quicker_and_keeps_the_content(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    draft = drafts.create(7, "a", exclusive=True)
    draft.write(0, b"ours")
    store.put("a", [b"theirs"])
    for _ in range(2):
        with pytest.raises(StoreFault) as raised:
            draft.commit()
        assert raised.value.errno == errno.EEXIST
    assert draft.read(0, 10) == b"ours"
    assert draft.is_lost
    [successor] = make_drafts(store, tmp_path).resume()
    assert successor.is_lost
    store.delete("a")
    draft.commit()
    assert not make_drafts(store, tmp_path).resume()[0].is_lost
    assert store.content("a") == b"ours"


def test_edit_of_what_somebody_has_changed_is_stale_and_an_overwrite_wins(tmp_path: Path) -> None:
    store = MuchStore()
    info = store.put("a", [b"first"])
    drafts = make_drafts(store, tmp_path, staging_bytes=1000)
    edit, over = drafts.edit(7, "a", info), drafts.create(8, "b", exclusive=False)
    edit.write(5, b"!")
    over.write(0, b"over")
    store.put("a", [b"second"])
    store.put("b", [b"second"])
    with pytest.raises(StoreFault) as raised:
        edit.commit()
    assert raised.value.errno == errno.ESTALE
    over.commit()
    assert (store.content("a"), store.content("b")) == (b"second", b"over")


@pytest.mark.parametrize("size", [10, 5 * PART])
@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("kind", [FaultKind.TIMEOUT, FaultKind.RESET, FaultKind.SERVER])
def test_commit_whose_answer_is_lost_is_recognised(
    tmp_path: Path, size: int, exclusive: bool, kind: FaultKind
) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path).create(7, "a", exclusive=exclusive)
    draft.write(0, pattern(size))
    call = "put" if size < PART else "complete"
    store.late[call] = [fault(kind)]
    with pytest.raises(StoreFault):
        draft.commit()
    draft.commit()
    assert store.content("a") == pattern(size)
    assert store.calls.count(call) == 1


@pytest.mark.parametrize("size", [10, 5 * PART, 5 * PART + 3])
@pytest.mark.parametrize("exclusive", [True, False])
def test_what_is_appended_after_a_commit_of_unknown_outcome_is_there(
    tmp_path: Path, size: int, exclusive: bool
) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path).create(7, "a", exclusive=exclusive)
    draft.write(0, pattern(size))
    store.late = {"put": [fault(FaultKind.TIMEOUT)], "complete": [fault(FaultKind.TIMEOUT)]}
    with pytest.raises(StoreFault):
        draft.commit()
    draft.write(size, b"more")
    draft.commit()
    assert store.content("a") == pattern(size) + b"more"
    assert store.unfinished() == 0


def test_error_of_the_commit_stays_until_it_works(tmp_path: Path) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path).create(7, "a", exclusive=False)
    draft.write(0, b"content")
    store.faults["put"] = [fault(FaultKind.DENIED, errno.EACCES)] * 2
    for _ in range(2):
        with pytest.raises(StoreFault):
            draft.commit()
        assert draft.is_pending
    draft.commit()
    assert not draft.is_pending


def test_failed_upload_is_reported_and_tried_again(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    draft = drafts.create(7, "a", exclusive=False)
    store.faults["put_part"] = [fault(FaultKind.SERVER)]
    content = pattern(3 * PART)
    draft.write(0, content)
    wait_until(lambda: drafts.statistics().get("upload_faults", 0) > 0)
    draft.write(len(content), b"x")
    draft.commit()
    assert store.content("a") == content + b"x"
    store.faults["begin_upload"] = [fault(FaultKind.SERVER)] * 9
    other = drafts.create(8, "b", exclusive=False)
    noted = drafts.statistics()["upload_faults"]
    other.write(0, content)
    wait_until(lambda: drafts.statistics()["upload_faults"] > noted)
    with pytest.raises(StoreFault):
        other.write(other.size, b"x")
    store.faults.clear()
    size = other.size
    other.commit()
    assert len(store.content("b")) == size


def test_commit_gives_up_with_the_first_part_that_fails(tmp_path: Path) -> None:
    """Each part that fails takes as long as the store is tried."""
    store = MuchStore()
    drafts = make_drafts(store, tmp_path, staging_bytes=1 << 20, uploading=2)
    draft = drafts.create(7, "a", exclusive=False)
    draft.set_size(100 * PART)
    store.faults["put_part"] = [fault(FaultKind.SERVER)] * 1000
    with pytest.raises(StoreFault):
        draft.commit()
    assert store.calls.count("put_part") <= 3
    store.faults.clear()
    draft.commit()
    assert store.content("a") == bytes(100 * PART)


def test_upload_that_the_store_has_lost_is_begun_again_or_reported(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path, staging_bytes=1 << 20)
    draft = drafts.create(7, "a", exclusive=False)
    draft.write(0, pattern(4 * PART))
    wait_until(lambda: store.calls.count("put_part") == 3)
    for _, upload, _ in store.uploads(""):
        store.abort("a", upload)
    draft.commit()
    assert store.content("a") == pattern(4 * PART)
    store.calls.clear()
    drafts = make_drafts(store, tmp_path / "other")
    draft = drafts.create(7, "b", exclusive=False)
    draft.write(0, pattern(4 * PART))
    wait_until(lambda: store.calls.count("put_part") == 3)
    wait_until(lambda: drafts.statistics()["waiting_bytes"] == 0)
    draft.write(4 * PART, b"x")
    for _, upload, _ in store.uploads(""):
        store.abort("b", upload)
    with pytest.raises(StoreFault, match="lost") as raised:
        draft.commit()
    assert raised.value.errno == errno.EIO
    assert draft.is_lost
    assert "b" not in store.stored()


def test_discarded_draft_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    draft = drafts.create(7, "a", exclusive=False)
    draft.write(0, pattern(4 * PART))
    draft.discard()
    draft.write(4 * PART, pattern(4 * PART))
    draft.commit()
    assert draft.size == 8 * PART
    drafts.forget(7)
    wait_until(lambda: not store.unfinished() and os.listdir(tmp_path) == ["uploads"])
    assert store.stored() == []


def test_emptying_gives_the_upload_up(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    draft = drafts.create(7, "a", exclusive=False)
    draft.write(0, pattern(4 * PART))
    wait_until(store.unfinished)
    assert drafts.create(7, "a", exclusive=False) is draft
    assert (draft.size, draft.is_changed) == (0, False)
    draft.write(0, b"new")
    draft.commit()
    assert store.content("a") == b"new"
    wait_until(lambda: not store.unfinished())


def test_forgotten_draft_that_could_not_be_committed_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    draft = drafts.create(7, "a", exclusive=False)
    draft.write(0, b"content")
    store.faults["put"] = [fault(FaultKind.SERVER)]
    with pytest.raises(StoreFault):
        draft.commit()
    drafts.forget(7)
    assert drafts.of(7) is None
    wait_until(lambda: store.stored() == ["a"])
    assert store.content("a") == b"content"
    wait_until(lambda: os.listdir(tmp_path) == ["uploads"])
    assert "keep_uncommitted_file" in caplog.text


def test_empty_object_is_appended_to_without_staging(tmp_path: Path) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path).edit(7, "a", store.put("a", []))
    draft.write(0, b"first")
    draft.write(5, b" second")
    draft.commit()
    assert store.content("a") == b"first second"


def test_another_connection_clears_up_what_was_open_and_commits_what_was_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    for number, key in enumerate(("open", "closed", "done")):
        drafts.create(number, key, exclusive=False).write(0, pattern(3 * PART))
    drafts.of(2).commit()  # type: ignore[union-attr]  # it is there
    store.faults["complete"] = [fault(FaultKind.SERVER)]
    with pytest.raises(StoreFault):
        drafts.of(1).commit()  # type: ignore[union-attr]  # it is there
    drafts.close()
    drafts.forget(1)
    drafts = make_drafts(store, tmp_path)
    drafts.begin()
    assert [drafts.of(number) for number in range(3)] == [None] * 3
    wait_until(lambda: os.listdir(tmp_path) == ["uploads"] and not store.unfinished())
    assert store.stored() == ["closed", "done"]
    assert store.content("closed") == pattern(3 * PART)
    assert [vars(one)["key"] for one in caplog.records if one.getMessage() == "lose_written_file"] == ["open"]


def test_abandoned_edit_is_not_joined_once_somebody_has_written(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path, staging_bytes=1000)
    for number, key in enumerate("ab"):
        draft = drafts.edit(number, key, store.put(key, [b"before"]))
        draft.write(0, b"BE")
        store.faults["put"] = [fault(FaultKind.SERVER)]
        with pytest.raises(StoreFault):
            draft.commit()
        drafts.forget(number)
    newer = store.put("a", [b"newer"])
    for number, key, content in ((7, "a", b"newer!"), (8, "b", b"BEfore!")):
        edit = drafts.edit(number, key, newer)
        edit.write(edit.size, b"!")
        edit.commit()
        assert store.content(key) == content


def test_finish_commits_all_there_is(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    for number, key in enumerate("abc"):
        drafts.create(number, key, exclusive=False).write(0, pattern(3 * PART))
    store.faults["complete"] = [fault(FaultKind.SERVER)] * 3
    assert not drafts.finish(time.monotonic() + 20)
    assert drafts.finish(time.monotonic() + 20)
    assert [store.content(key) for key in "abc"] == [pattern(3 * PART)] * 3


def test_one_commit_that_waits_for_its_store_leaves_time_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    for number, key in enumerate("abc"):
        drafts.create(number, key, exclusive=False).write(0, b"content")
    is_over, put = threading.Event(), store.put

    def put_slowly(key: str, *arguments: Any, **conditions: Any) -> ObjectInfo:
        if key == "a":
            is_over.wait(30)
        return put(key, *arguments, **conditions)

    monkeypatch.setattr(store, "put", put_slowly)
    try:
        assert not drafts.finish(time.monotonic() + 1)
        assert [store.content(key) for key in "bc"] == [b"content"] * 2
    finally:
        is_over.set()
    assert drafts.finish(time.monotonic() + 20)


def test_late_commit_does_not_undo_what_was_written_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    for number, key in enumerate("abc"):
        store.put(key, [b"before"])
        draft = drafts.create(number, key, exclusive=False)
        draft.write(0, b"late")
    store.faults["put"] = [fault(FaultKind.SERVER)] * 3
    for number in range(3):
        with pytest.raises(StoreFault):
            drafts.of(number).commit()  # type: ignore[union-attr]  # they are there
        drafts.forget(number)
    store.put("a", [b"newer"])
    store.delete("b")
    wait_until(lambda: drafts.statistics()["abandoned"] == 0)
    assert [store.content(key) for key in "abc"] == [b"newer", b"late", b"late"]
    assert [vars(one)["key"] for one in caplog.records if one.getMessage() == "lose_written_file"] == ["a"]


def test_lost_content_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    draft = drafts.create(7, "a", exclusive=True)
    draft.write(0, b"content")
    store.put("a", [b"theirs"])
    with pytest.raises(StoreFault):
        draft.commit()
    drafts.forget(7)
    [record] = [one for one in caplog.records if one.getMessage() == "lose_written_file"]
    assert vars(record)["key"] == "a"
    assert vars(record)["size_bytes"] == 7


def test_reopened_before_it_could_be_committed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path)
    for number, key in ((7, "a"), (8, "b")):
        draft = drafts.create(number, key, exclusive=False)
        draft.write(0, b"content")
        store.faults["put"] = [fault(FaultKind.SERVER)] * 9
        with pytest.raises(StoreFault):
            draft.commit()
        drafts.forget(number)
    again = drafts.edit(17, "a", ObjectInfo("a", 0, "x", 0))
    assert again.read(0, 10) == b"content"
    other = drafts.create(18, "b", exclusive=False)
    assert other.size == 0
    store.faults.clear()
    again.commit()
    other.write(0, b"new")
    other.commit()
    assert (store.content("a"), store.content("b")) == (b"content", b"new")
    assert [vars(one)["key"] for one in caplog.records if one.getMessage() == "lose_written_file"] == ["b"]


def test_writers_and_commits_at_once(tmp_path: Path) -> None:
    store = MuchStore()
    drafts = make_drafts(store, tmp_path, staging_bytes=1 << 20)
    draft = drafts.create(7, "a", exclusive=False)
    wrong: list[BaseException] = []
    is_over = threading.Event()

    def write(number: int) -> None:
        try:
            for at in range(number * 64, 200 * 256, 256):
                draft.write(at, bytes([number + 1]) * 64)
        except BaseException as error:
            wrong.append(error)

    def commit() -> None:
        try:
            while not is_over.is_set():
                draft.commit()
        except BaseException as error:
            wrong.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    committers = [threading.Thread(target=commit) for _ in range(2)]
    for one in (*writers, *committers):
        one.start()
    for one in writers:
        one.join()
    is_over.set()
    for one in committers:
        one.join()
    assert wrong == []
    draft.commit()
    assert store.content("a") == b"".join(bytes([number + 1]) * 64 for number in range(4)) * 200


@pytest.mark.root
def test_full_volume_is_told_of_and_what_was_uploaded_makes_room(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    in_small_tmpfs(place, "256k", lambda: fill(place))


def fill(place: Path) -> None:
    """Write more than a volume has room for, by far."""
    store = MuchStore()
    drafts = make_drafts(store, place, part_bytes=32 << 10, uploading=8)
    draft = drafts.create(7, "a", exclusive=False)
    content = pattern(2 << 20)
    while draft.size < len(content):
        try:
            draft.write(draft.size, content[draft.size : draft.size + 40_000])
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            wait_until(lambda: drafts.statistics()["waiting_bytes"] == 0)
    draft.commit()
    assert store.content("a") == content
    other = drafts.create(8, "b", exclusive=False)
    for write in (partial(append, place / "full"), partial(append_to, other)):
        with pytest.raises(OSError, match="space") as raised:
            write()
        assert raised.value.errno == errno.ENOSPC
    (place / "full").unlink()
    size = other.size
    other.write(size, b"end")
    other.commit()
    assert store.content("b") == bytes(size) + b"end"


def append(path: Path) -> None:
    """Make a file larger until there is no more room."""
    with path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def append_to(draft: Draft) -> None:
    """Make a draft larger until there is no more room."""
    while True:
        draft.write(draft.size, bytes(4096))


@pytest.mark.parametrize("is_new", [True, False])
def test_a_cut_that_was_not_noted_holds_for_the_successor_of_a_successor(
    tmp_path: Path, is_new: bool
) -> None:
    """A daemon dies after it has emptied a file and before it has noted that; so does the next one, after it has written."""
    store = MuchStore()
    before, after = pattern(4 * PART + 1), pattern(PART, seed=5)
    store.put("k", [before])
    drafts = make_drafts(store, tmp_path, staging_bytes=0 if is_new else 1 << 20)
    if is_new:
        draft = drafts.create(1, "k", exclusive=False)
        for at in range(0, len(before), 500):
            draft.write(at, before[at : at + 500])
        wait_until(lambda: not draft._parts.are_running)
    else:
        drafts.edit(1, "k", store.head("k"))
    (spool,) = tmp_path.glob("*.spool")
    os.truncate(spool, 0)
    (draft,) = make_drafts(store, tmp_path, staging_bytes=0).resume()
    assert draft.size == 0
    draft.write(0, after)
    (draft,) = make_drafts(store, tmp_path, staging_bytes=0).resume()
    draft.commit()
    assert store.content("k") == after
