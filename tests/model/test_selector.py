from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import Faults, InvalidRequest
from sidemount.model.selector import LabelSelector, parse_selector

EXPRESSION = {"key": "team", "operator": "In", "values": ["ml", "data"]}


@pytest.mark.parametrize(
    ("raw", "labels", "selected"),
    [
        pytest.param(None, {}, True, id="absent selects all"),
        pytest.param({}, {"a": "b"}, True, id="empty selects all"),
        pytest.param({"matchLabels": {}}, {}, True, id="empty labels select all"),
        pytest.param({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True, id="label"),
        pytest.param({"matchLabels": {"a": "b"}}, {"a": "c"}, False, id="other value"),
        pytest.param({"matchLabels": {"a": ""}}, {}, False, id="empty value is not absence"),
        pytest.param({"matchLabels": {"a": "b", "c": "d"}}, {"a": "b"}, False, id="all labels"),
        pytest.param({"matchExpressions": [EXPRESSION]}, {"team": "data"}, True, id="In"),
        pytest.param({"matchExpressions": [EXPRESSION]}, {}, False, id="In absent"),
        pytest.param(
            {"matchExpressions": [{**EXPRESSION, "operator": "NotIn"}]}, {"team": "ml"}, False, id="NotIn"
        ),
        pytest.param(
            {"matchExpressions": [{**EXPRESSION, "operator": "NotIn"}]}, {}, True, id="NotIn absent"
        ),
        pytest.param(
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True, id="Exists"
        ),
        pytest.param(
            {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]},
            {"a": ""},
            False,
            id="DoesNotExist",
        ),
        pytest.param(
            {"matchLabels": {"a": "b"}, "matchExpressions": [EXPRESSION]},
            {"a": "b"},
            False,
            id="both must hold",
        ),
        pytest.param(
            {"matchLabels": {"kubernetes.io/metadata.name": "ml"}},
            {"kubernetes.io/metadata.name": "ml"},
            True,
            id="prefixed key",
        ),
    ],
)
def test_selection_is_kubernetes_own(raw: Any, labels: dict[str, str], selected: bool) -> None:
    assert parse_selector(raw).matches(labels) is selected


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param([], "must be a mapping", id="list"),
        pytest.param("a=b", "must be a mapping", id="text"),
        pytest.param({"matchlabels": {}}, 'did you mean "matchLabels"', id="misspelled"),
        pytest.param({"matchLabels": []}, "must be a mapping", id="labels as list"),
        pytest.param({"matchLabels": {"a": 1}}, "not a label value", id="number as value"),
        pytest.param({"matchLabels": {"a": True}}, "not a label value", id="boolean as value"),
        pytest.param({"matchLabels": {"a b": "c"}}, "not a label key", id="space in key"),
        pytest.param({"matchLabels": {"/a": "c"}}, "not a label key", id="empty prefix"),
        pytest.param({"matchLabels": {"a": "x" * 64}}, "not a label value", id="long value"),
        pytest.param({"matchLabels": {"a": "b\n"}}, "not a label value", id="newline"),
        pytest.param({"matchExpressions": {}}, "must be a list", id="expressions as mapping"),
        pytest.param({"matchExpressions": [1]}, "must be a mapping of key", id="number as expression"),
        pytest.param(
            {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]},
            "no operator",
            id="operator in lower case",
        ),
        pytest.param(
            {"matchExpressions": [{"key": "a", "operator": "In"}]}, "needs values", id="In without values"
        ),
        pytest.param(
            {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]},
            "needs values",
            id="In of nothing",
        ),
        pytest.param(
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            "takes no values",
            id="Exists with values",
        ),
        pytest.param({"matchExpressions": [{"operator": "Exists"}]}, "not a label key", id="no key"),
        pytest.param(
            {"matchExpressions": [{**EXPRESSION, "value": "x"}]},
            "must be a mapping of key",
            id="unknown field",
        ),
        pytest.param(
            {"matchExpressions": [{**EXPRESSION, "values": "ml"}]}, "must be a list", id="values as text"
        ),
    ],
)
def test_what_would_select_something_else_is_refused(raw: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_selector(raw)


def test_all_faults_of_a_selector_are_told() -> None:
    with pytest.raises(Faults) as raised:
        parse_selector({"x": 1, "matchLabels": {"a": 1}, "matchExpressions": [{"key": "a", "operator": "?"}]})
    assert len(raised.value.faults) == 3


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=6,
)


@given(
    JSON_VALUES
    | st.fixed_dictionaries(
        {},
        optional={
            "matchLabels": JSON_VALUES,
            "matchExpressions": JSON_VALUES
            | st.lists(
                st.fixed_dictionaries(
                    {}, optional={"key": JSON_VALUES, "operator": JSON_VALUES, "values": JSON_VALUES}
                )
            ),
        },
    )
)
def test_parsing_raises_only_our_error(raw: Any) -> None:
    with suppress(InvalidRequest):
        assert isinstance(parse_selector(raw), LabelSelector)
