"""A pod with our containers and the ResourceQuotas of its namespace: what could never fit is refused, what may not fit now is told.

Source: https://kubernetes.io/docs/concepts/policy/resource-quotas/
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal

from sidemount.model.amounts import Amounts
from sidemount.model.errors import PolicyDenied, Reason, VolumeError, raise_faults, shown
from sidemount.model.facts import Facts
from sidemount.model.namespace_limits import Bounds, Quantities, QuotaBounds, counts_pod
from sidemount.model.resource_amounts import RESOURCE_NAMES
from webhook.pod_amounts import UsersAmounts, container_amounts
from webhook.resources import show
from webhook.shape import PodShape

_ZERO = Decimal(0)


def check_quotas(
    shape: PodShape,
    quotas: tuple[QuotaBounds, ...],
    ours: Mapping[str, Amounts],
    users: UsersAmounts,
    defaults: Bounds,
    facts: Facts,
) -> tuple[str, ...]:
    """Refuse a pod that could not be even if nothing else were; return what is told of quotas that are used up.

    Raises PolicyDenied, Faults.
    """
    counting = [
        quota
        for quota in quotas
        if counts_pod(quota, has_deadline=shape.has_deadline, priority_class=shape.priority_class)
    ]
    if not counting:
        return ()
    faults: list[VolumeError] = []
    told: list[str] = []
    for key, of_users, parts in _counted(ours, users, defaults):
        total = of_users + sum(parts.values(), _ZERO)
        for quota in counting:
            if key not in quota.hard:
                continue
            if total > quota.hard[key]:
                faults.append(_never(key, of_users, parts, quota))
            elif not facts.has_room(shape.namespace, quota.name, key, f"{total:f}"):
                told.append(_full(key, total, quota))
    raise_faults(faults)
    return tuple(told)


def _counted(
    ours: Mapping[str, Amounts], users: UsersAmounts, defaults: Bounds
) -> Iterator[tuple[str, Decimal, dict[str, Decimal]]]:
    """Yield, for each resource that a quota may count and ours add to, the user's part and the parts of our containers."""
    both = {
        name: container_amounts(amounts.requests, amounts.limits, defaults) for name, amounts in ours.items()
    }
    for index, (kind, of_users, stated) in enumerate(
        (
            ("requests", users.requests, users.stated_requests),
            ("limits", users.limits, users.stated_limits),
        )
    ):
        for name in RESOURCE_NAMES:
            if name in stated:
                continue
            parts = {container: found[index].get(name, _ZERO) for container, found in both.items()}
            if any(parts.values()):
                yield f"{kind}.{name}", _of_users(of_users, users.overhead, name), parts


def _of_users(amounts: Quantities, overhead: Quantities, name: str) -> Decimal:
    return amounts.get(name, _ZERO) + overhead.get(name, _ZERO)


def _never(key: str, users: Decimal, parts: Mapping[str, Decimal], quota: QuotaBounds) -> PolicyDenied:
    name = key.partition(".")[2]
    told = ", ".join(f"{container} {show(name, part)}" for container, part in parts.items())
    total = users + sum(parts.values(), _ZERO)
    return PolicyDenied(
        f"with our containers the pod has {show(name, total)} of {key} (its own containers {show(name, users)}, {told}), more "
        f"than the {show(name, quota.hard[key])} that ResourceQuota {shown(quota.name)} allows in the whole namespace",
        reason=Reason.QUOTA_EXCEEDED,
        hint=f"have the admin raise {key} there to at least {show(name, total)}, or have the class ask for less",
    )


def _full(key: str, total: Decimal, quota: QuotaBounds) -> str:
    name = key.partition(".")[2]
    return f"sidemount: too little is left of ResourceQuota {quota.name} for the pod's {show(name, total)} of {key}"
