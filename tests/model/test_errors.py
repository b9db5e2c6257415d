import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model import errors
from sidemount.model.errors import (
    Faults,
    HostFailure,
    InvalidRequest,
    Reason,
    VolumeError,
    raise_faults,
    shown,
)


def _subclasses(base: type[VolumeError]) -> set[type[VolumeError]]:
    return {base} | {leaf for child in base.__subclasses__() for leaf in _subclasses(child)}


KINDS = sorted(_subclasses(VolumeError), key=lambda kind: kind.__name__)


def _instance(kind: type[VolumeError]) -> VolumeError:
    if kind is Faults:
        return Faults((InvalidRequest("what is wrong", hint="do this"),))
    return kind("what is wrong", hint="do this")


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_every_error_says_what_and_the_way_out(kind: type[VolumeError]) -> None:
    error = _instance(kind)
    assert str(error) == "what is wrong; do this"
    assert isinstance(error.reason, Reason)
    assert kind.__doc__


def test_the_tree_has_one_module() -> None:
    ours = {c for c in _subclasses(VolumeError) if c.__module__.startswith("sidemount.model")}
    assert {c.__module__ for c in ours} == {errors.__name__}
    assert {c.__name__ for c in ours} >= {
        "InvalidRequest",
        "UnknownDriverClass",
        "PolicyDenied",
        "PublishConflict",
        "OperationPending",
        "NotReady",
        "Unsupported",
        "HostFailure",
        "BadMessage",
        "Faults",
    }


def test_reason_values_are_unique_words() -> None:
    values = [reason.value for reason in Reason]
    assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", value) for value in values)


def test_a_reason_given_replaces_the_class_default() -> None:
    assert InvalidRequest("x", reason=Reason.INVALID_OPTION).reason is Reason.INVALID_OPTION
    assert HostFailure("x", errno=5).errno == 5


def test_faults_tell_each_and_count_what_is_past_fifty() -> None:
    error = Faults(tuple(InvalidRequest(f"fault {i}") for i in range(60)))
    assert len(error.faults) == 60
    assert "fault 49" in str(error)
    assert "fault 50" not in str(error)
    assert str(error).endswith("and 10 more")


def test_faults_take_the_reason_of_the_first() -> None:
    assert (
        Faults((InvalidRequest("a", reason=Reason.IMMUTABLE), InvalidRequest("b"))).reason is Reason.IMMUTABLE
    )


def test_one_collected_fault_is_raised_as_itself() -> None:
    only = InvalidRequest("a")
    raise_faults([])
    with pytest.raises(InvalidRequest) as raised:
        raise_faults([only])
    assert raised.value is only
    with pytest.raises(Faults):
        raise_faults([only, only])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("plain", '"plain"', id="text"),
        pytest.param('a"b', r'"a\"b"', id="quote"),
        pytest.param("a\\b", r'"a\\b"', id="backslash"),
        pytest.param("a\nb\0\x1b[31m", r'"a\nb\x00\x1b[31m"', id="control characters"),
        pytest.param("\ud800", r'"\ud800"', id="lone surrogate"),
        pytest.param("\u202e", r'"\u202e"', id="bidirectional override"),
        pytest.param("ünï", '"ünï"', id="letters beyond ASCII stay readable"),
        pytest.param("x" * 81, '"' + "x" * 80 + '…" (81 characters)', id="long"),
        pytest.param(True, "true", id="boolean"),
        pytest.param(None, "null", id="null"),
        pytest.param(12, "12", id="number"),
        pytest.param(10**5000, "a number of 16610 bits", id="number too long to print"),
        pytest.param(0.5, "0.5", id="float"),
        pytest.param({"a": 1}, "a mapping of 1 entries", id="mapping"),
        pytest.param([1, 2], "a list of 2 entries", id="list"),
        pytest.param(b"x", "a bytes", id="anything else"),
    ],
)
def test_values_are_shown_shortened_and_escaped(value: object, text: str) -> None:
    assert shown(value) == text


@given(st.text())
def test_no_shown_text_holds_anything_unprintable(text: str) -> None:
    assert shown(text).isprintable()
