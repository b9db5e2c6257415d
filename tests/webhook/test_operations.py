"""JSON Patch semantics, with the jsonpatch library as the oracle."""

import copy
import json
from typing import Any

import jsonpatch
import jsonpointer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webhook.operations import END, NotApplicable, Operation, add, apply, move, pointer, replace

_keys = st.sampled_from(["a", "b", "a/b", "a~b", "~1", "", "0", "ü", "-"])
_scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)
_json: st.SearchStrategy[Any] = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)
_documents = st.dictionaries(_keys, _json, max_size=4)


def _paths(value: Any, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return every path of a document, and for every container the places where something could be added."""
    found = [prefix] if prefix else []
    if isinstance(value, dict):
        found += [p for key, item in value.items() for p in _paths(item, (*prefix, key))]
        found += [(*prefix, "new"), (*prefix, "a/b")]
    elif isinstance(value, list):
        found += [p for index, item in enumerate(value) for p in _paths(item, (*prefix, index))]
        found += [(*prefix, END), (*prefix, len(value)), (*prefix, len(value) + 1), (*prefix, "01")]
    else:
        found.append((*prefix, "below"))
    return found


def _text(document: Any) -> str:
    # As text: True is not 1 there.
    return json.dumps(document, sort_keys=True)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Any, list[Operation]]:
    document = draw(_documents)
    current = copy.deepcopy(document)
    operations: list[Operation] = []
    for _ in range(draw(st.integers(1, 5))):
        path = draw(st.sampled_from(_paths(current) or [("x",)]))
        kind = draw(st.sampled_from(["add", "replace", "move"]))
        if kind == "move":
            operation = move(draw(st.sampled_from(_paths(current) or [("x",)])), path)
        else:
            operation = (add if kind == "add" else replace)(path, draw(_json))
        operations.append(operation)
        try:
            current = jsonpatch.apply_patch(current, [operation])
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError):
            break
    return document, operations


@settings(max_examples=400, deadline=None)
@given(_cases())
def test_applies_as_jsonpatch_does(case: tuple[Any, list[Operation]]) -> None:
    document, operations = case
    before = copy.deepcopy(document)
    try:
        expected = jsonpatch.apply_patch(copy.deepcopy(document), copy.deepcopy(operations))
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError):
        with pytest.raises(NotApplicable):
            apply(document, operations)
    else:
        assert _text(apply(document, operations)) == _text(expected)
    assert document == before


def test_what_no_operation_reaches_is_the_same_object() -> None:
    document: Any = {"a": {"b": [{"c": 1}, {"d": 2}]}, "e": {"f": 3}}
    after = apply(document, [add(("a", "b", 0, "x"), 9)])
    assert after["e"] is document["e"]
    assert after["a"]["b"][1] is document["a"]["b"][1]
    assert after["a"]["b"][0] == {"c": 1, "x": 9}
    assert document == {"a": {"b": [{"c": 1}, {"d": 2}]}, "e": {"f": 3}}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(("metadata", "annotations", "a/b~c"), "/metadata/annotations/a~1b~0c", id="escapes"),
        pytest.param(("a", "~1"), "/a/~01", id="tilde-first"),
        pytest.param(("spec", "volumes", 0), "/spec/volumes/0", id="index"),
        pytest.param((), "", id="whole"),
    ],
)
def test_pointer_is_escaped(tokens: tuple[str | int, ...], expected: str) -> None:
    assert pointer(*tokens) == expected
    assert jsonpointer.JsonPointer(expected).parts == [str(token) for token in tokens]


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "test", "path": "/a", "value": 1}, id="test"),
        pytest.param({"op": "copy", "from": "/a", "path": "/b"}, id="copy"),
        pytest.param({"op": "add", "path": "/a"}, id="no-value"),
        pytest.param({"op": "add", "path": "a", "value": 1}, id="no-slash"),
        pytest.param({"op": "add", "path": "/a~2", "value": 1}, id="bad-escape"),
        pytest.param({"op": "add", "path": "/l/-1", "value": 1}, id="negative"),
        pytest.param({"op": "add", "path": "/l/٣", "value": 1}, id="arabic-digit"),
        pytest.param({"op": "add", "path": "/l/00", "value": 1}, id="leading-zero"),
        pytest.param({"op": "add", "path": "/l/99999999999999999999", "value": 1}, id="huge-index"),
        pytest.param({"op": "replace", "path": "/l/-", "value": 1}, id="replace-end"),
        pytest.param({"op": "move", "from": "/a", "path": "/a/b"}, id="into-itself"),
        pytest.param({"op": "add", "path": "/a/b", "value": 1}, id="through-a-number"),
        pytest.param({"op": "add", "path": "/a", "value": 1, "extra": 2}, id="extra-member"),
    ],
)
def test_anything_else_does_not_apply(operation: Operation) -> None:
    with pytest.raises(NotApplicable):
        apply({"a": 1, "l": [1, 2]}, [operation])
