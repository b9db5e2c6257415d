"""Files are written and read through what lies above the port, over every store: parts, conditions, successors, changes in the middle."""

import errno
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.objects.draft import Draft
from sidecar.objects.reading import Reading
from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.writing import Drafts
from sidemount.stores.store import ObjectInfo, ObjectStore
from tests.stores.kinds import KINDS, Kind, kind_of

pytestmark = pytest.mark.timeout(120, func_only=True)

_PART = 5 << 20
_PIECE = 1 << 20
_CONTENT = random.Random(4).randbytes(2 * _PART + 3 * _PIECE + 12_345)
_SETTINGS = ObjectsSettings(
    source="s3://x", part_bytes=_PART, staging_bytes=64 << 20, request_timeout_s=15, retry_timeout_s=15
)


@pytest.fixture(params=[name for name in KINDS if name not in ("memory", "local")])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """A store with a server."""
    return kind_of(request.param, request, tmp_path)


@pytest.fixture
def store(kind: Kind) -> Iterator[ObjectStore]:
    """An empty store."""
    made = kind.open()
    yield made
    made.close()


def _write(draft: Draft, content: bytes, offset: int = 0) -> None:
    for begin in range(0, len(content), _PIECE):
        piece = content[begin : begin + _PIECE]
        assert draft.write(offset + begin, piece) == len(piece)


def _content(store: ObjectStore, info: ObjectInfo, cache: Path) -> bytes:
    """Read a version through the reading side, in the kernel's pieces."""
    reading = Reading(store, _SETTINGS, str(cache))
    try:
        reader = reading.open(info.key, info)
        pieces = [bytes(reader.read(offset, _PIECE)) for offset in range(0, info.size, _PIECE)]
        assert bytes(reader.read(info.size - 5, 100)) == pieces[-1][-5:]
        middle = info.size // 2
        assert bytes(reader.read(middle, 10)) == b"".join(pieces)[middle : middle + 10]
        reader.close()
        return b"".join(pieces)
    finally:
        reading.close()


def test_a_file_is_streamed_changed_and_read(store: ObjectStore, tmp_path: Path) -> None:
    drafts = Drafts(store, _SETTINGS, str(tmp_path / "drafts"))
    drafts.begin()
    draft = drafts.create(1, "dir/file ü", exclusive=True)
    _write(draft, _CONTENT)
    made = draft.commit()
    assert (made.key, made.size) == ("dir/file ü", len(_CONTENT))
    assert _content(store, made, tmp_path / "cache") == _CONTENT
    drafts.forget(1)
    with pytest.raises(OSError) as raised:  # noqa: PT011
        drafts.create(2, "dir/file ü", exclusive=True).commit()
    assert raised.value.errno == errno.EEXIST
    drafts.of(2).discard()  # type: ignore[union-attr]
    drafts.forget(2)
    edited = drafts.edit(3, "dir/file ü", made)
    change = b"changed in the middle"
    assert edited.write(_PART - 7, change) == len(change)
    assert edited.write(len(_CONTENT), b"and more") == 8
    info = edited.commit()
    expected = _CONTENT[: _PART - 7] + change + _CONTENT[_PART - 7 + len(change) :] + b"and more"
    assert _content(store, info, tmp_path / "cache2") == expected
    drafts.forget(3)
    drafts.close()
    assert store.uploads("") == []
    assert [one.key for one in store.list_page("", delimiter=False).objects] == ["dir/file ü"]


def test_a_successor_goes_on_with_a_file(store: ObjectStore, kind: Kind, tmp_path: Path) -> None:
    before = store.put("file", [b"before"])
    first = Drafts(store, _SETTINGS, str(tmp_path / "drafts"))
    first.begin()
    draft = first.create(7, "file", exclusive=False)
    _write(draft, _CONTENT[: 2 * _PART + 5])
    first.close()  # as if it had died: nothing is committed, and its directory stays
    assert store.head("file").etag == before.etag
    with closing(kind.open()) as other, closing(Drafts(other, _SETTINGS, str(tmp_path / "drafts"))) as second:
        (resumed,) = second.resume()
        assert (resumed.node_id, resumed.key, resumed.size) == (7, "file", 2 * _PART + 5)
        _write(resumed, _CONTENT[2 * _PART + 5 :], 2 * _PART + 5)
        info = resumed.commit()
        assert _content(other, info, tmp_path / "cache") == _CONTENT
        second.forget(7)
        # An upload whose beginning was on its way at the death is known to be looked for later; nothing else stays.
        assert len(other.uploads("")) <= second.statistics()["uploads_to_give_up"]
