"""Secrets are taken out however they are spelled."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from sidemount.model.redaction import spellings, without

_CANARY = "c4n4ry"
_SECRET = f'"{_CANARY}"\\{_CANARY}/+ü\n"{_CANARY}==\n'


@pytest.mark.parametrize(
    "spelled",
    [
        _SECRET,
        _SECRET.strip(),
        *_SECRET.split(),
        *_SECRET.splitlines(),
        json.dumps({"key": _SECRET}),
        json.dumps(_SECRET.strip(), ensure_ascii=False),
        repr(_SECRET.strip()),
        quote(_SECRET.strip()),
        quote(_SECRET.strip(), safe=""),
        quote_plus(_SECRET.strip()),
        base64.b64encode(_SECRET.encode()).decode(),
        base64.b64encode(_SECRET.strip().encode()).decode(),
    ],
)
def test_no_spelling_of_a_secret_stays(spelled: str) -> None:
    shown = without(f"before {spelled} after", spellings([_SECRET]))
    assert _CANARY not in shown
    assert base64.b64encode(_CANARY.encode()).decode() not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


def test_what_is_short_is_left_and_what_is_longer_goes_first() -> None:
    assert without("a b abcd abcdef", spellings(["b", "abcd", "abcdef"])) == "a b *** ***"
    assert without("text", spellings([])) == "text"
