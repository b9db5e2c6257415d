"""What is said between two processes of one release has exactly its fields, whatever arrives."""

import json

import pytest

from sidemount.host.vocabulary import Vocabulary
from sidemount.model.errors import BadMessage

WORDS = Vocabulary("one and another", {"go": ("where", "when"), "stop": ()})


def test_what_is_written_is_read() -> None:
    assert WORDS.read(WORDS.written("go", where="home", when=7)) == ("go", {"where": "home", "when": 7})
    assert WORDS.read(WORDS.written("stop")) == ("stop", {})


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\xff",
        b"7",
        b"null",
        b"[]",
        b"{}",
        b'{"say": 7}',
        b'{"say": ["go"]}',
        b'{"say": "fly"}',
        b'{"say": "go", "where": "home"}',
        b'{"say": "stop", "when": 7}',
        b'{"say": "stop"} more',
        json.dumps({"say": "go", "where": 1, "when": 2, "how": 3}).encode(),
    ],
)
def test_nothing_else_is_taken_for_a_word(datagram: bytes) -> None:
    with pytest.raises(BadMessage, match=r"^one and another: "):
        WORDS.read(datagram)


def test_a_word_is_not_written_without_its_fields() -> None:
    with pytest.raises(AssertionError, match="go"):
        WORDS.written("go", where="home")
