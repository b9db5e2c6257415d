"""Kubernetes quantities as exact decimals.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

import re
from decimal import Decimal

from sidemount.model.errors import InvalidRequest, shown

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)\Z"
)
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_TEXT_MAX = 40
_EXPONENT_MAX = 30


def parse_quantity(value: object) -> Decimal:
    """Return the amount of an int-or-string quantity ("100m", "1.5Gi", 2, "1e3"). Raises InvalidRequest."""
    match value:
        case bool():
            raise _bad(value)
        case int() | float():
            # JSON numbers mean what their text means; shown() bounds a number of thousands of digits.
            text = shown(value)
        case str():
            text = value
        case _:
            raise _bad(value)
    found = _QUANTITY.match(text) if len(text) <= _TEXT_MAX else None
    if found is None:
        raise _bad(value)
    amount = Decimal(found["sign"] + found["number"])
    if found["exponent"]:
        exponent = int(found["exponent"])
        if abs(exponent) > _EXPONENT_MAX:
            raise _bad(value)
        return amount * Decimal(10) ** exponent
    return amount * _SUFFIXES[found["suffix"]] if found["suffix"] else amount


def _bad(value: object) -> InvalidRequest:
    return InvalidRequest(
        f"{shown(value)} is not a quantity",
        hint='write a number with an optional suffix, such as "500m" or "1Gi"',
    )
