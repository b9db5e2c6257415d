"""Requests and limits of a container: merged from layers, consistent, rendered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from sidemount.model.errors import InvalidRequest
from sidemount.model.quantity import parse_quantity

_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Amounts:
    """requests and limits by resource name, as written."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]

    def render(self) -> dict[str, dict[str, str]]:
        """Return the container's `resources`."""
        return {"limits": dict(sorted(self.limits.items())), "requests": dict(sorted(self.requests.items()))}


def merge(layers: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> Amounts:
    """Return (requests, limits) of several layers, later ones winning, made consistent.

    Where a later layer sets one of the pair and an earlier one the other, the later value holds and the other follows it: a
    request above its limit would be refused by the API server.
    """
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for layer_requests, layer_limits in layers:
        requests |= layer_requests
        limits |= layer_limits
        for name in requests.keys() & limits.keys():
            if amount(requests[name]) > amount(limits[name]):
                if name in layer_requests and name not in layer_limits:
                    limits[name] = requests[name]
                else:
                    requests[name] = limits[name]
    return Amounts(requests, limits)


def amount(quantity: object) -> Decimal:
    """Return a quantity's amount; null, empty and what is no quantity count as nothing: the API server judges them."""
    try:
        return parse_quantity(quantity)
    except InvalidRequest:
        return _ZERO
