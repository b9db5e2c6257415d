"""Our containers within the LimitRanges of a namespace. What a client may use is lowered to a maximum, and never below what it
requests; what is reserved for it is raised to a minimum or to a ratio. Where that does not do, the pod is refused with the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from sidemount.model.amounts import Amounts, amount
from sidemount.model.errors import PolicyDenied, Reason, VolumeError, raise_faults, shown
from sidemount.model.namespace_limits import Bounds, LimitRangeFacts, joined
from sidemount.model.resource_amounts import RESOURCE_NAMES
from webhook.pod_amounts import UsersAmounts
from webhook.resources import show

_ZERO = Decimal(0)
_MIB = Decimal(2**20)
_CORE_UNIT = Decimal("0.001")


@dataclass(slots=True)
class _Share:
    """One resource of one container. `limit` is None where neither we nor a default set one."""

    request: Decimal
    limit: Decimal | None


def fit(
    ours: Mapping[str, Amounts],
    users: UsersAmounts,
    ranges: tuple[LimitRangeFacts, ...],
    *,
    is_strict: bool = True,
) -> dict[str, Amounts]:
    """Return the amounts of our containers, by name, within every LimitRange. Raises PolicyDenied, Faults.

    With `is_strict` false what cannot be fitted is left as it is: the API server judges it.
    """
    faults: list[VolumeError] = []
    container = joined(limit.container for limit in ranges)
    pod = joined(limit.pod for limit in ranges)
    shares = {name: _shares(amounts, container) for name, amounts in ours.items()}
    for name, of_container in shares.items():
        for resource, share in of_container.items():
            if not _fit_container(share, resource, container):
                faults.append(_too_large(name, resource, share, container, ranges))
    if not faults:
        for resource in RESOURCE_NAMES:
            of_resource = {name: found[resource] for name, found in shares.items() if resource in found}
            fault = _fit_pod(of_resource, resource, users, pod, ranges)
            if fault is not None:
                faults.append(fault)
    if is_strict:
        raise_faults(faults)
    return {name: _rendered(amounts, shares[name]) for name, amounts in ours.items()}


def _shares(amounts: Amounts, bounds: Bounds) -> dict[str, _Share]:
    """Return what a container sets. A limit that the API server would fill in, beside a request of ours, is set above it."""
    found = {}
    for name in RESOURCE_NAMES:
        if name not in amounts.requests and name not in amounts.limits:
            continue
        limit = amount(amounts.limits[name]) if name in amounts.limits else None
        request = amount(amounts.requests.get(name, amounts.limits.get(name)))
        if limit is None and name in bounds.default_limit:
            limit = max(bounds.default_limit[name], request)
        found[name] = _Share(request, limit)
    return found


def _fit_container(share: _Share, name: str, bounds: Bounds) -> bool:
    """Fit one resource of one container; say whether it could be."""
    share.request = max(share.request, bounds.minimum.get(name, _ZERO))
    if share.limit is not None:
        share.limit = max(share.limit, share.request)
    highest = bounds.maximum.get(name)
    if highest is not None:
        if share.request > highest:
            return False
        share.limit = highest if share.limit is None else min(share.limit, highest)
    ratio = bounds.ratio.get(name, _ZERO)
    if ratio > _ZERO:
        share.limit = share.request if share.limit is None else share.limit
        if share.limit > share.request * ratio:
            share.request = min(share.limit, _rounded(name, share.limit / ratio, ROUND_CEILING))
    return True


def _fit_pod(
    shares: Mapping[str, _Share],
    name: str,
    users: UsersAmounts,
    bounds: Bounds,
    ranges: tuple[LimitRangeFacts, ...],
) -> VolumeError | None:
    """Fit one resource of all our containers beside the user's; return why that cannot be."""
    if name in users.stated_limits or not shares:
        return None
    users_limit, users_request = users.limits.get(name, _ZERO), users.requests.get(name, _ZERO)
    highest = bounds.maximum.get(name)
    limited = [share for share in shares.values() if share.limit is not None]
    if highest is not None:
        least = {container: share.request for container, share in shares.items()}
        counted = (users_limit,) if name in users.stated_requests else (users_limit, users_request)
        for users_amount in counted:
            if users_amount + sum(least.values(), _ZERO) > highest:
                return _pod_too_large(name, users_amount, least, highest, ranges)
        _lower_limits(limited, name, highest - users_limit)
    ratio = bounds.ratio.get(name, _ZERO)
    if ratio > _ZERO and name not in users.stated_requests:
        total = users_limit + sum((_limit_of(share) for share in limited), _ZERO)
        _raise_requests(limited, name, total / ratio - users_request)
    return None


def _lower_limits(shares: list[_Share], name: str, room: Decimal) -> None:
    """Lower limits towards their requests, all by the same part, until they fit into the room."""
    limits = sum((_limit_of(share) for share in shares), _ZERO)
    requests = sum((share.request for share in shares), _ZERO)
    if limits <= room or limits == requests:
        return
    part = max(_ZERO, room - requests) / (limits - requests)
    for share in shares:
        lowered = share.request + (_limit_of(share) - share.request) * part
        share.limit = max(share.request, _rounded(name, lowered, ROUND_FLOOR))


def _raise_requests(shares: list[_Share], name: str, needed: Decimal) -> None:
    """Raise requests towards their limits, all by the same part, until they are as much as is needed, if they can be."""
    limits = sum((_limit_of(share) for share in shares), _ZERO)
    requests = sum((share.request for share in shares), _ZERO)
    if needed <= requests or needed > limits:
        # What the user's containers lack ours cannot make good.
        return
    part = (needed - requests) / (limits - requests)
    for share in shares:
        raised = share.request + (_limit_of(share) - share.request) * part
        share.request = min(_limit_of(share), _rounded(name, raised, ROUND_CEILING))


def _limit_of(share: _Share) -> Decimal:
    return share.request if share.limit is None else share.limit


def _rounded(name: str, value: Decimal, rounding: str) -> Decimal:
    """Return an amount that a quantity can say exactly: thousandths of a core, whole mebibytes, or bytes below one."""
    if name == "cpu":
        return value.quantize(_CORE_UNIT, rounding)
    if value >= _MIB:
        return (value / _MIB).quantize(Decimal(1), rounding) * _MIB
    return value.quantize(Decimal(1), rounding)


def _rendered(amounts: Amounts, shares: Mapping[str, _Share]) -> Amounts:
    """Return amounts with what was changed; the rest stays as it is written."""
    requests, limits = dict(amounts.requests), dict(amounts.limits)
    for name, share in shares.items():
        if name not in requests or amount(requests[name]) != share.request:
            requests[name] = show(name, share.request)
        if share.limit is not None and (name not in limits or amount(limits[name]) != share.limit):
            limits[name] = show(name, share.limit)
    return Amounts(requests, limits)


def _too_large(
    container: str, name: str, share: _Share, bounds: Bounds, ranges: tuple[LimitRangeFacts, ...]
) -> PolicyDenied:
    highest = bounds.maximum[name]
    where = next(limit.name for limit in ranges if limit.container.maximum.get(name) == highest)
    return PolicyDenied(
        f"container {container} needs {show(name, share.request)} of {name}, more than the {show(name, highest)} that "
        f"LimitRange {shown(where)} allows a container",
        reason=Reason.LIMIT_RANGE_EXCEEDED,
        hint=f"have the admin raise max.{name} there, or have the class request less",
    )


def _pod_too_large(
    name: str,
    users: Decimal,
    least: Mapping[str, Decimal],
    highest: Decimal,
    ranges: tuple[LimitRangeFacts, ...],
) -> PolicyDenied:
    where = next(limit.name for limit in ranges if limit.pod.maximum.get(name) == highest)
    told = ", ".join(f"{container} {show(name, value)}" for container, value in least.items())
    total = users + sum(least.values(), _ZERO)
    return PolicyDenied(
        f"with our containers the pod needs at least {show(name, total)} of {name} (its own containers {show(name, users)}, "
        f"{told}), more than the {show(name, highest)} that LimitRange {shown(where)} allows a pod",
        reason=Reason.LIMIT_RANGE_EXCEEDED,
        hint=f"lower the pod's own {name}, have the admin raise max.{name} there to at least {show(name, total)}, "
        "or have the class request less",
    )
