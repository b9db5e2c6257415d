"""Files that are written, over every kind of store: real servers, with parts as large as they must be."""

import errno
import os
from pathlib import Path

import pytest

from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.writing import Drafts
from sidemount.stores.store import ObjectStore, StoreFault
from tests.sidecar.objects.draft_places import wait_until
from tests.stores.kinds import KINDS, kind_of

pytestmark = pytest.mark.timeout(240, func_only=True)

MIB = 1 << 20
PART = 5 * MIB


def drafts_of(store: ObjectStore, place: Path, staging_bytes: int = 0) -> Drafts:
    """Return drafts with parts of 5 MiB."""
    settings = ObjectsSettings(source="any://", part_bytes=PART, staging_bytes=staging_bytes)
    return Drafts(store, settings, str(place))


def content_of(store: ObjectStore, key: str) -> bytes:
    """Return an object's content."""
    buffer = memoryview(bytearray(store.head(key).size))
    assert store.get(key, 0, buffer).size == len(buffer)
    return bytes(buffer)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_streamed_appended_to_edited_and_given_up(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kind = kind_of(name, request, tmp_path)
    store = kind.open()
    drafts = drafts_of(store, tmp_path / "drafts", staging_bytes=64 * MIB)
    content = bytearray(os.urandom(2 * PART + 77))
    draft = drafts.create(1, "place/file", exclusive=True)
    for at in range(0, len(content), MIB):
        draft.write(at, content[at : at + MIB])
    info = draft.commit()
    assert info.size == len(content)
    assert content_of(store, "place/file") == content
    draft.write(len(content), b"more")
    content += b"more"
    draft.commit()
    drafts.forget(1)
    assert content_of(store, "place/file") == content

    edit = drafts.edit(2, "place/file", store.head("place/file"))
    edit.write(PART - 3, b"within")
    content[PART - 3 : PART + 3] = b"within"
    edit.set_size(2 * PART + 50)
    del content[2 * PART + 50 :]
    assert bytes(edit.read(PART - 10, 20)) == content[PART - 10 : PART + 10]
    edit.commit()
    drafts.forget(2)
    assert content_of(store, "place/file") == content

    unwanted = drafts.create(3, "place/other", exclusive=False)
    unwanted.write(0, content)
    unwanted.write(len(content), b"x")
    wait_until(lambda: drafts.statistics()["waiting_bytes"] == 0)
    unwanted.discard()
    drafts.forget(3)
    wait_until(lambda: drafts.statistics()["uploads_to_give_up"] == 0 and not store.uploads("place/"))
    assert [one.key for one in store.list_page("", delimiter=False).objects] == ["place/file"]
    drafts.close()
    store.close()


@pytest.mark.parametrize("name", KINDS)
def test_conditions_hold(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    kind = kind_of(name, request, tmp_path)
    store = kind.open()
    drafts = drafts_of(store, tmp_path / "drafts", staging_bytes=64 * MIB)
    for number, size in enumerate((10, PART + 10)):
        if size > PART and "complete" in kind.ignores:
            continue
        key = f"key{number}"
        draft = drafts.create(10 + number, key, exclusive=True)
        draft.write(0, bytes(size))
        info = store.put(key, [b"theirs"])
        with pytest.raises(StoreFault) as raised:
            draft.commit()
        assert raised.value.errno == errno.EEXIST
        edit = drafts.edit(20 + number, key, info)
        edit.write(0, b"T" * size)
        store.put(key, [b"newer"])
        with pytest.raises(StoreFault) as raised:
            edit.commit()
        assert raised.value.errno == errno.ESTALE
        assert content_of(store, key) == b"newer"
    drafts.close()
    store.close()


@pytest.mark.parametrize("name", KINDS)
def test_a_successor_goes_on_with_an_upload(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """What a process that has died had uploaded is not sent again, and what it had not is not lost."""
    kind = kind_of(name, request, tmp_path)
    content = os.urandom(3 * PART + 5)
    stores = [kind.open() for _ in range(2)]
    first, second = (drafts_of(store, tmp_path / "drafts") for store in stores)
    draft = first.create(1, "key", exclusive=True)
    for at in range(0, 2 * PART + 1, MIB):
        draft.write(at, content[at : at + MIB])
    wait_until(lambda: first.statistics()["waiting_bytes"] == 0)
    sent = first.statistics()["parts_uploaded"]
    assert sent == 2
    first.close()
    [draft] = second.resume()
    size = draft.size
    assert draft.write(size - MIB, content[size - MIB : size]) == MIB
    for at in range(size, len(content), MIB):
        draft.write(at, content[at : at + MIB])
    draft.commit()
    assert second.statistics()["parts_uploaded"] == 2
    assert content_of(stores[0], "key") == content
    assert stores[0].uploads("") == []
    second.forget(1)
    wait_until(lambda: os.listdir(tmp_path / "drafts") == ["uploads"])
    second.close()
    for store in stores:
        store.close()
