"""Uploads that nobody goes on with."""

import errno
import time
from pathlib import Path

import pytest

from sidecar.objects import upload_leftovers
from sidecar.objects.upload_leftovers import UploadLeftovers
from sidemount.stores.store import FaultKind, StoreFault
from tests.sidecar.objects.draft_places import MuchStore


def test_what_fails_is_tried_again_and_by_a_successor(tmp_path: Path) -> None:
    store, path = MuchStore(), str(tmp_path / "uploads")
    leftovers = UploadLeftovers(store, path)
    for key in "ab":
        leftovers.add(key, store.begin_upload(key))
    store.faults["abort"] = [StoreFault(errno.EIO, FaultKind.SERVER, "no")] * 2
    assert leftovers.run() is not None
    assert store.unfinished() == 2
    leftovers.close()
    leftovers = UploadLeftovers(store, path)
    assert len(leftovers) == 2
    assert leftovers.run() is None
    assert store.unfinished() == 0
    leftovers.close()
    assert len(UploadLeftovers(store, path)) == 0


def test_upload_of_a_copy_is_given_up_when_its_process_has_died_and_not_before(tmp_path: Path) -> None:
    store, path = MuchStore(), str(tmp_path / "uploads")
    leftovers = UploadLeftovers(store, path)
    woken: list[int] = []
    leftovers.on_added = lambda: woken.append(1)
    uploads = {key: store.begin_upload(key) for key in ("dies", "fails", "works")}
    for key, upload in uploads.items():
        leftovers.begun(key, upload)
    assert (leftovers.run(), len(leftovers), store.unfinished()) == (None, 0, 3)
    leftovers.ended("works", uploads["works"], is_over=True)
    assert not woken
    leftovers.ended("fails", uploads["fails"], is_over=False)
    assert woken
    assert leftovers.run() is None
    assert sorted(key for key, _, _ in store.uploads("")) == ["dies", "works"]  # completed, in truth
    leftovers.close()
    successor = UploadLeftovers(store, path)
    assert (successor.run(), [key for key, _, _ in store.uploads("")]) == (None, ["works"])
    successor.close()


def test_upload_whose_beginning_was_never_answered_is_given_up_only_if_it_has_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MuchStore()
    leftovers = UploadLeftovers(store, str(tmp_path / "uploads"))
    at = time.time_ns()
    store.begin_upload("key")  # ours, or somebody's who does nothing with it
    theirs = store.begin_upload("key")
    store.put_part("key", theirs, 1, [b"x"])
    beside = store.begin_upload("key2")
    earlier = store.begin_upload("key")
    store._uploads[earlier] = ("key", "", at - 10**12, {})
    leftovers.doubt("key", at)
    wait_s = leftovers.run()
    assert wait_s is not None
    assert 3500 < wait_s <= 3600
    assert store.unfinished() == 4
    monkeypatch.setattr(upload_leftovers, "_DOUBT_S", 0.0)
    assert leftovers.run() is None
    assert sorted(upload for _, upload, _ in store.uploads("")) == sorted([theirs, beside, earlier])
    leftovers.close()


def test_upload_that_cannot_be_given_up_is_left_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_leftovers, "_GIVEN_UP_S", -1.0)
    store = MuchStore()
    leftovers = UploadLeftovers(store, str(tmp_path / "uploads"))
    leftovers.add("key", store.begin_upload("key"))
    store.faults["abort"] = [StoreFault(errno.EACCES, FaultKind.DENIED, "no")]
    assert leftovers.run() is None
    assert "leave_upload_behind" in caplog.text
    leftovers.close()
