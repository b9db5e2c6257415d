"""Requests and limits as a class or a request writes them: the same three resources, the same checks."""

from collections.abc import Mapping

from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.fields import Fields
from sidemount.model.quantity import parse_quantity

RESOURCE_NAMES = ("cpu", "memory", "ephemeral-storage")


def read_amounts(resources: Fields, key: str) -> dict[str, str]:
    """Return the quantities of one mapping, as written; faults go to `resources`."""
    amounts = resources.child(key, RESOURCE_NAMES)
    valid: dict[str, str] = {}
    for name in RESOURCE_NAMES:
        value = amounts.raw.get(name)
        if value is None:
            continue
        try:
            if parse_quantity(value) < 0:
                amounts.fault(name, f"{shown(value)} is negative")
            else:
                valid[name] = value if isinstance(value, str) else shown(value)
        except InvalidRequest as error:
            amounts.fault(name, error.message, error.hint)
    return valid


def report_above(
    resources: Fields, key: str, amounts: Mapping[str, str], bound_key: str, bounds: Mapping[str, str]
) -> None:
    """Add a fault for each amount above the bound of its name."""
    for name, amount in amounts.items():
        if name in bounds and parse_quantity(amount) > parse_quantity(bounds[name]):
            resources.fault(
                f"{key}.{name}", f"{shown(amount)} is above {bound_key}.{name} {shown(bounds[name])}"
            )
