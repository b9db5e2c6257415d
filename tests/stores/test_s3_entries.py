"""Entries of a listing that are read by the shape of the first one: never others than a parser would find."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.stores import s3_entries
from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.s3_listing import page_of
from sidemount.stores.store import ObjectInfo

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_OWNER = "<Owner><ID>one</ID><DisplayName>a</DisplayName></Owner>"
_TIME = "2026-05-04T03:02:01.000Z"
_AMAZON = f"<Contents><Key>a</Key><LastModified>{_TIME}</LastModified><ETag>&quot;e&quot;</ETag><Size>7</Size></Contents>"
_WEED = f'<Contents><Key>b</Key><ETag>"f"</ETag><Size>0</Size>{_OWNER}<LastModified>{_TIME}</LastModified></Contents>'


def _listing(*entries: str, head: str = "") -> str:
    return f'<?xml version="1.0"?>\n<ListBucketResult xmlns="{_NAMESPACE}"><Name>x</Name>{head}{"".join(entries)}</ListBucketResult>'


def _page(text: str) -> list[ObjectInfo]:
    return list(page_of(Answer(200, {}, text.encode()), "", lambda key: None).objects)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param((_AMAZON, _AMAZON.replace("<Key>a", "<Key>c")), id="amazon"),
        pytest.param((_WEED, _WEED), id="seaweedfs"),
        pytest.param(("\n  ", _AMAZON.replace("><", ">\n    <"), "\n  ", _AMAZON, "\n"), id="indented"),
    ],
)
def test_entries_alike_need_no_parser(entries: tuple[str, ...]) -> None:
    text = _listing(*entries)
    listed = s3_entries.entries_in(text)
    assert listed is not None
    assert [(one.key, str(one.size)) for one in _page(text)] == [(one[0], one[3]) for one in listed.entries]
    assert "Contents" not in listed.rest


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_listing(_AMAZON, _WEED), id="two-shapes"),
        pytest.param(_listing(_AMAZON.replace("<Key>a", "<Key>a&amp;b")), id="entity"),
        pytest.param(_listing(_AMAZON, "<!-- <Contents></Contents> -->"), id="comment"),
        pytest.param(_listing(_AMAZON.replace("<Key>a", "<Key><![CDATA[a]]>")), id="cdata"),
        pytest.param(_listing(_AMAZON, "<Prefix>p</Prefix>", _AMAZON), id="something-between"),
        pytest.param(_listing(_AMAZON.replace("<Size>7</Size>", "")), id="no-size"),
        pytest.param(_listing(_AMAZON.replace("<Key>", '<Key a="b">')), id="attribute"),
        pytest.param(_listing(), id="nothing"),
    ],
)
def test_what_only_a_parser_understands_is_left_to_it(text: str) -> None:
    assert s3_entries.entries_in(text) is None
    root = ElementTree.fromstring(text)
    found = [one.findtext(f"{{{_NAMESPACE}}}Key") for one in root.iter(f"{{{_NAMESPACE}}}Contents")]
    assert [one.key for one in _page(text)] == found


@pytest.mark.parametrize("broken", ["</Contents>", "<Contents>", "<Key>", "\x01", "</ListBucketResult>"])
def test_what_is_no_xml_is_refused(broken: str) -> None:
    with pytest.raises(ExchangeFailed):
        _page(_listing(_AMAZON, broken, _AMAZON))


@given(st.text(st.characters(codec="utf-8")), st.text("\"'&;<>quot#34 e"), st.booleans())
def test_texts_are_what_a_parser_makes_of_them(key: str, etag: str, is_escaped: bool) -> None:
    fields = {"<Key>a": f"<Key>{key}", "&quot;e&quot;": etag}
    entry = _AMAZON
    for old, new in fields.items():
        escaped = new.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") if is_escaped else new
        entry = entry.replace(old, escaped.replace("&lt;Key&gt;", "<Key>"))
    listed = s3_entries.entries_in(_listing(entry))
    if listed is None:
        return
    root = ElementTree.fromstring(_listing(entry))
    ((told, _, mark, _),) = listed.entries
    assert told == root.findtext(f".//{{{_NAMESPACE}}}Key")
    assert mark in (root.findtext(f".//{{{_NAMESPACE}}}ETag") or "")
