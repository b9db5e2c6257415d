import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import InvalidRequest
from sidemount.model.yamltext import parse_documents, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-1", -1),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("yes", "yes"),
        ("on", "on"),
        ("no", "no"),
        ("off", "off"),
        ("y", "y"),
        ("010", "010"),
        ("+5", "+5"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        (".5", ".5"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("9" * 41, "9" * 41),
        ("'12'", "12"),
        ('"true"', "true"),
        ("|\n  12\n", "12\n"),
        ("[a, {b: c}]", ["a", {"b": "c"}]),
        ("a:\n- 1\n- x: ~\n", {"a": [1, {"x": None}]}),
        ('["\\ud83d\\ude00"]', ["😀"]),
        ('{"a": 1, "b": [true, null, 1.5]}', {"a": 1, "b": [True, None, 1.5]}),
        ("[a, b] # YAML, not JSON", ["a", "b"]),
    ],
    ids=lambda v: repr(v)[:24],
)
def test_annotation_scalars_are_what_json_says(text: str, value: Any) -> None:
    parsed = parse_yaml(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("off", False),
        ("0644", 420),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", 3),
        ("-0b11", -3),
        ("1_000", 1000),
        ("+5", 5),
        ("08", 8.0),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("1.2.3", "1.2.3"),
        ("0x", "0x"),
        ("-", "-"),
        ("'0644'", "0644"),
    ],
    ids=repr,
)
def test_manifest_scalars_are_what_kubectl_says(text: str, value: Any) -> None:
    (parsed,) = parse_documents(f"v: {text}" if text != "-" else "v: '-'")
    assert parsed == {"v": value}
    assert type(parsed["v"]) is type(value)


def test_manifest_keys_are_texts_as_kubectl_makes_them() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        parse_documents("true: b\non: c\n")
    assert parse_documents("1: a\nyes: b\n") == ({"1": "a", "true": "b"},)


def test_empty_documents_are_passed_over() -> None:
    assert parse_documents("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n...\n") == ({"a": 1}, {"b": 2})
    assert parse_documents("") == ()


@pytest.mark.parametrize("parse", [parse_yaml, parse_documents], ids=["annotation", "manifest"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("a: &x 1\n", "anchor", id="anchor"),
        pytest.param("- &x [1]\n- *x\n", "anchor", id="anchor and alias"),
        pytest.param("a: *x\n", "alias", id="alias"),
        pytest.param("!!python/object:os.system x\n", "tag", id="python tag"),
        pytest.param("!!str 1\n", "tag", id="tag"),
        pytest.param("! 1\n", "tag", id="tag of one mark"),
        pytest.param("a: 1\na: 2\n", "line 2, column 1: .*twice", id="duplicate key"),
        pytest.param('{"a":1,"a":2}', "twice", id="duplicate key in JSON"),
        pytest.param("<<: {a: 1}\n", "merge key", id="merge key"),
        pytest.param("{[a]: b}\n", "not a text", id="list as key"),
        pytest.param("? {a: b}\n: c\n", "not a text", id="mapping as key"),
        pytest.param("~: a\n", "not a text", id="null key"),
        pytest.param("0.5: a\n", "not a text", id="fraction as key"),
        pytest.param("a: b: c\n", "not valid YAML: line 1", id="two colons"),
        pytest.param("[a", "not valid YAML", id="unclosed"),
        pytest.param("\t- a", "not valid YAML", id="tab"),
        pytest.param("a\0b", "not valid YAML", id="NUL"),
        pytest.param("a\x07b", "not valid YAML", id="bell"),
        pytest.param("\ud800", "not valid YAML", id="lone surrogate"),
        pytest.param("[" * 100_000, "nest", id="deeply nested lists"),
        pytest.param("- " * 100_000, "nested more than", id="deeply nested block lists"),
        pytest.param("? " * 100_000, "nested more than", id="deeply nested keys"),
        pytest.param('{"a":' * 40_000, "nest", id="deeply nested JSON"),
        pytest.param("{" * 100_000, "nest|not valid", id="deeply nested mappings"),
    ],
)
def test_what_is_refused(parse: Callable[[str], Any], text: str, why: str) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidRequest, match=why):
        parse(text)
    assert time.thread_time() - started < 2


@pytest.mark.parametrize("text", ["1: a", "yes: a\n1: b"])
def test_annotation_keys_must_be_texts(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a text"):
        parse_yaml(text)


def test_an_annotation_is_one_document_of_bounded_size() -> None:
    with pytest.raises(InvalidRequest, match="2 documents"):
        parse_yaml("a\n---\nb\n")
    with pytest.raises(InvalidRequest, match="longer than"):
        parse_yaml("a" * (256 * 1024 + 1))


@pytest.mark.parametrize(
    "render",
    [lambda d: "[" * d + "]" * d, lambda d: "- " * d + "a", lambda d: '{"a":' * d + "1" + "}" * d],
    ids=["flow", "block", "json"],
)
def test_thirty_two_levels_are_the_most(render: Callable[[int], str]) -> None:
    parse_yaml(render(32))
    with pytest.raises(InvalidRequest, match="nested more than 32"):
        parse_yaml(render(33))


def test_json_constants_are_no_numbers() -> None:
    for text in ("[NaN]", "[Infinity]", "[-Infinity]"):
        with pytest.raises(InvalidRequest, match="no JSON number"):
            parse_yaml(text)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
# PyYAML knows no number with an exponent and no point, such as 1e3, and writes such a text without quotes.
PLAIN = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\u2028\u2029\ufffe\uffff"),
    max_size=8,
).filter(lambda text: re.fullmatch(r"-?[0-9]+[eE][+-]?[0-9]+", text) is None)
YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(JSON_VALUES, max_size=3))
def test_any_json_list_round_trips(value: Any) -> None:
    assert parse_yaml(json.dumps(value)) == value


@given(YAML_VALUES)
def test_what_pyyaml_writes_reads_back(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value)) == value


@given(st.text() | st.text("[]{}:,-&*!|>'\"%#?\n\t ab1~", max_size=60))
def test_parsing_raises_only_our_error(text: str) -> None:
    for parse in (parse_yaml, parse_documents):
        with suppress(InvalidRequest):
            parse(text)
