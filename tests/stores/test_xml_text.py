"""XML answers: a tree and nothing else, whatever a server sends."""

import pytest

from sidemount.stores.http_message import ExchangeFailed
from sidemount.stores.xml_text import parse

_BOMB = '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a>&c;</a>'


@pytest.mark.parametrize(
    "body", [b"<a>x</a>", b"\n<a>x</a>", b'\xef\xbb\xbf<?xml version="1.0" encoding="UTF-8"?><a>x</a>']
)
def test_an_answer_is_read(body: bytes) -> None:
    assert parse(body, "a").text == "x"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
def test_a_document_type_is_refused_in_every_encoding(encoding: str) -> None:
    with pytest.raises(ExchangeFailed):
        parse(_BOMB.encode(encoding), "a")


@pytest.mark.parametrize("body", [b"", b"<a>", b"\xff\xfe", b"<b/>"])
def test_what_is_no_such_answer_is_refused(body: bytes) -> None:
    with pytest.raises(ExchangeFailed):
        parse(body, "a")
