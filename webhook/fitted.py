"""The amounts of all our containers of one pod, fitted to what the pod, its namespace and its class of service allow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sidemount.model.amounts import Amounts, amount
from sidemount.model.facts import Facts
from sidemount.model.namespace_limits import joined
from sidemount.model.resource_amounts import RESOURCE_NAMES
from webhook.fitting import fit
from webhook.pod_amounts import users_amounts
from webhook.quotas import check_quotas
from webhook.resources import check_fit, clamped, is_guaranteed, raised_to_limits
from webhook.shape import PodShape


@dataclass(frozen=True, slots=True)
class Fitted:
    """Amounts by container, and what is told of how they came about."""

    amounts: Mapping[str, Amounts]
    warnings: tuple[str, ...] = ()


def fitted(shape: PodShape, ours: Mapping[str, Amounts], facts: Facts, *, is_first_round: bool) -> Fitted:
    """Fit our containers. Raises PolicyDenied, Faults.

    In a later round others may have changed any amount, ours too: they were judged in the first.
    """
    ranges = facts.limit_ranges(shape.namespace)
    quotas = facts.quotas(shape.namespace) if is_first_round else ()
    if not ranges and not quotas:
        return Fitted(_settled(shape, ours, is_first_round=is_first_round))
    defaults = joined(limit.container for limit in ranges)
    users = users_amounts(shape, defaults)
    within = fit(ours, users, ranges, is_strict=is_first_round)
    settled = _settled(shape, within, is_first_round=is_first_round)
    full = check_quotas(shape, quotas, settled, users, defaults, facts)
    return Fitted(settled, (*_changes(ours, within), *full))


def _settled(shape: PodShape, ours: Mapping[str, Amounts], *, is_first_round: bool) -> Mapping[str, Amounts]:
    """Return the amounts for the pod's class of service and within its own resources. Raises PolicyDenied."""
    if is_guaranteed(shape):
        ours = {name: raised_to_limits(amounts) for name, amounts in ours.items()}
    ours = {name: clamped(amounts, shape) for name, amounts in ours.items()}
    if is_first_round:
        check_fit(shape, ours)
    return ours


def _changes(before: Mapping[str, Amounts], after: Mapping[str, Amounts]) -> Iterator[str]:
    """Say which limits are lower than the class has them: a client with less is slower, or ends sooner."""
    for container, amounts in after.items():
        lowered = [
            f"{name} {amounts.limits[name]}"
            for name in RESOURCE_NAMES
            if name in before[container].limits
            and amount(amounts.limits[name]) < amount(before[container].limits[name])
        ]
        if lowered:
            yield f"sidemount: a LimitRange lowers the limits of {container}: {', '.join(lowered)}"
