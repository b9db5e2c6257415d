import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidemount.model.errors import InvalidRequest
from sidemount.model.text_pattern import compile_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z0-9-]+$",
        r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9-]+)?",
        r"([0-9]{1,3}\.){3}[0-9]{1,3}",
        "https?://[a-z0-9.-]+(:[0-9]+)?(/.*)?",
        "(ab)+",
        "(?:us|eu|ap)-[a-z]+-[0-9]",
        "(?P<zone>[a-c])",
        r"[]\]a-z]*",
        "[^]]*",
        "a{,5}b{2,}c{3}",
        "x{y}",
        "",
    ],
)
def test_ordinary_patterns_are_taken(pattern: str) -> None:
    assert compile_pattern(pattern, 256).pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a+)+", "too many ways"),
        ("(a|a)*", "too many ways"),
        ("(|a)+", "too many ways"),
        ("((a?){60}){60}", "too many ways"),
        ("(a*){2,}", "too many ways"),
        (".*.*.*.*x", "too many ways"),
        (r"(a)\1", "back-reference"),
        ("(?=a)a", "special group"),
        ("(?<!a)b", "special group"),
        ("(?i)a", "special group"),
        ("(", "not a regular expression"),
        ("[[a]", "not a regular expression"),
        ("[z-a]", "not a regular expression"),
        ("a{99999999999}", "not a regular expression"),
        ("(" * 20 + "a" + ")" * 20, "nested more than 16"),
        ("a" * 513, "longer than 512"),
    ],
)
def test_a_pattern_that_is_broken_or_could_run_long_is_a_fault(pattern: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        compile_pattern(pattern, 256)


def test_a_longer_text_allows_fewer_repetitions() -> None:
    compile_pattern(".*a.*", 4096)
    with pytest.raises(InvalidRequest, match="too many ways"):
        compile_pattern(".*a.*a.*", 4096)


def test_classes_are_ascii() -> None:
    assert compile_pattern(r"\d+", 256).fullmatch("١٢") is None
    assert compile_pattern(r"\w+", 256).fullmatch("ä") is None


PIECES = st.sampled_from(
    [
        "a",
        ".",
        "[ab]",
        "(",
        ")",
        "(?:",
        "*",
        "+",
        "?",
        "{1,3}",
        "{4}",
        "{2,}",
        "|",
        "\\w",
        "^",
        "$",
        "[^a]",
        "\\",
        "]",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=10).map("".join))
def test_whatever_is_taken_answers_quickly_on_a_hostile_text(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern, 256)
    except InvalidRequest:
        return
    started = time.thread_time()
    compiled.fullmatch("a" * 255 + "\n")
    assert time.thread_time() - started < 2


@given(st.text(max_size=30))
def test_compiling_raises_only_our_error(pattern: str) -> None:
    with suppress(InvalidRequest):
        compile_pattern(pattern, 256)
