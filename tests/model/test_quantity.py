from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.model.errors import InvalidRequest
from sidemount.model.quantity import parse_quantity


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("0", 0),
        (0, 0),
        (2, 2),
        (0.5, "0.5"),
        ("100m", "0.1"),
        ("1", 1),
        ("1.5Gi", 1610612736),
        ("1Ki", 1024),
        ("1k", 1000),
        ("1M", 10**6),
        ("2E", 2 * 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E-3", "0.001"),
        ("-1", -1),
        ("+1", 1),
        (".5", "0.5"),
        ("5.", 5),
        ("1n", "1e-9"),
        ("250u", "0.00025"),
    ],
    ids=repr,
)
def test_quantities_mean_what_kubernetes_says(value: object, amount: object) -> None:
    assert parse_quantity(value) == Decimal(str(amount))


@pytest.mark.parametrize(
    "value",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "Gi",
        "1gi",
        "1KI",
        "1K",
        "1mi",
        "1_0",
        "0x10",
        "1e",
        "1e999",
        "1e31",
        "--1",
        "1.2.3",
        "١",
        None,
        True,
        [],
        {},
        "inf",
        "nan",
        float("nan"),
        float("inf"),
        10**5000,
        "9" * 41,
    ],
    ids=lambda v: repr(v)[:12] if not isinstance(v, int) else "int",
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="is not a quantity"):
        parse_quantity(value)


@given(st.text() | st.integers() | st.floats() | st.none() | st.lists(st.integers()))
def test_parsing_raises_only_our_error(value: object) -> None:
    with suppress(InvalidRequest):
        assert parse_quantity(value).is_finite()
