"""Files of ours that somebody, or a failing disk, has written over: told of, and in nobody else's way."""

from collections.abc import Callable
from pathlib import Path

import pytest

from csi.last_words import read_last_words
from csi.records import RecordStore
from csi.volume_state import decode_snapshot, decode_volume
from sidemount.model.errors import BadMessage
from tests.csi.plugin import Plugin

_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "binary": lambda content: bytes(range(256)),
    "zeros": lambda content: bytes(len(content)),
    "nested": lambda content: b"[" * 100_000,
    "another": lambda content: b'{"version": 1}',
    "list": lambda content: b"[]",
    "infinite": lambda content: content.replace(b'"memoryBytes": 268435456', b'"memoryBytes": 1e999'),
    "long": lambda content: b"x" * (8 << 20),
}


@pytest.mark.root
@pytest.mark.fuse
def test_a_record_of_any_content_keeps_no_plugin_from_starting(plugin: Plugin, tmp_path: Path) -> None:
    """The volume is served on, and can be published and unpublished; so can all others."""
    plugin.publish("t")
    plugin.publish("other", "other")
    (record,) = [
        path
        for path in (plugin.seen_state / "targets").iterdir()
        if b'"volumeId": "vol"' in path.read_bytes()
    ]
    whole = record.read_bytes()
    for damage in _DAMAGES.values():
        damaged = damage(whole)
        assert damaged != whole
        record.write_bytes(damaged)
        store = RecordStore(str(record.parent))
        assert [found.volume_id for found in store.load()] == ["other"]
    plugin.kill()
    record.write_bytes(_DAMAGES["binary"](whole))
    plugin.start()
    (plugin.seen() / "file").write_text("")
    (plugin.seen("other") / "file").write_text("")
    plugin.publish("t")
    (plugin.seen() / "file").write_text("")
    plugin.unpublish("t")
    plugin.unpublish("other", "other")
    assert plugin.leftovers() == []


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"version": 1}', "[]", "", "\0" * 100, '{"version": 1, "id": "a", "sizeBytes": 1e999}'],
)
def test_a_pool_s_records_of_any_content_are_told_of_as_such(text: str) -> None:
    for decode in (decode_volume, decode_snapshot):
        with pytest.raises(BadMessage):
            decode(text, "/pool")


def test_a_client_may_write_anything_before_it_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[" * 5_000 + "\none\ntwo\nthree\nfailed to connect\n")
    assert "failed to connect" in read_last_words(str(log), ()).fault
