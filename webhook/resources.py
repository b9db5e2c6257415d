"""Resources of the containers that we add: every one has requests and limits for cpu and memory, and they fit the pod.

Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from sidemount.model.amounts import Amounts, amount
from sidemount.model.errors import PolicyDenied, Reason
from webhook.shape import ContainerShape, PodShape

_ALWAYS = "Always"
_CORE = ("cpu", "memory")
_ZERO = Decimal(0)
_UNITS = (("Gi", Decimal(2**30)), ("Mi", Decimal(2**20)), ("Ki", Decimal(2**10)))


def raised_to_limits(amounts: Amounts) -> Amounts:
    """Return amounts whose requests equal their limits: for a pod whose class of service is Guaranteed, so that it stays so."""
    return Amounts({**amounts.requests, **amounts.limits}, amounts.limits)


def is_guaranteed(shape: PodShape) -> bool:
    """Say whether every container requests exactly its limits of cpu and memory. Pod-level resources decide alone."""
    if shape.resources or not shape.containers:
        return False
    return all(_is_guaranteed(container) for container in (*shape.containers, *shape.init_containers))


def clamped(amounts: Amounts, shape: PodShape) -> Amounts:
    """Return amounts within the pod's own limits: the API server refuses a container whose limit is above its pod's."""
    if not shape.resources:
        return amounts
    ceiling = _mapping(_mapping(_decoded(shape.resources)).get("limits"))
    requests, limits = dict(amounts.requests), dict(amounts.limits)
    for name, limit in limits.items():
        highest = amount(ceiling.get(name))
        if _ZERO < highest < amount(limit):
            limits[name] = str(ceiling[name])
            if amount(requests.get(name)) > highest:
                requests[name] = str(ceiling[name])
    return Amounts(requests, limits)


def check_fit(shape: PodShape, ours: Mapping[str, Amounts]) -> None:
    """Refuse, showing the sum, when the pod's containers with ours request more than its pod-level resources.

    Raises PolicyDenied. `ours` is by container name; all of them are native sidecars.
    """
    if not shape.resources:
        return
    pod = _mapping(_decoded(shape.resources))
    requests, limits = _mapping(pod.get("requests")), _mapping(pod.get("limits"))
    for name in _CORE:
        field = "requests" if name in requests else "limits"
        allowed = amount((requests if name in requests else limits).get(name))
        if allowed <= _ZERO:
            continue
        parts = {container: amount(amounts.requests.get(name)) for container, amounts in ours.items()}
        users = _aggregate(shape, name)
        total = users + sum(parts.values(), _ZERO)
        if total > allowed:
            told = ", ".join(f"{container} {show(name, part)}" for container, part in parts.items())
            raise PolicyDenied(
                f"with our containers the pod requests {show(name, total)} of {name} (its own containers "
                f"{show(name, users)}, {told}), more than its spec.resources.{field}.{name} of {show(name, allowed)}",
                reason=Reason.RESOURCES_EXCEEDED,
                hint=f"raise spec.resources.{field}.{name} to at least {show(name, total)}, or have the class request less",
            )


def show(name: str, value: Decimal) -> str:
    """Render an amount as people write it: cpu in cores or m, memory in binary units."""
    if name == "cpu":
        return _plain(value) if value == value.to_integral() else f"{_plain(value * 1000)}m"
    for suffix, unit in _UNITS:
        if value and value % unit == 0:
            return f"{_plain(value / unit)}{suffix}"
    return _plain(value)


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"


def _is_guaranteed(container: ContainerShape) -> bool:
    resources = _mapping(_decoded(container.resources))
    requests, limits = _mapping(resources.get("requests")), _mapping(resources.get("limits"))
    return all(
        amount(limits.get(name)) > _ZERO
        and amount(requests.get(name, limits.get(name))) == amount(limits.get(name))
        for name in _CORE
    )


def _aggregate(shape: PodShape, name: str) -> Decimal:
    """Return what the user's containers request at most at any time, as the scheduler counts it; ours run all along.

    Sidecars and containers add up; an ordinary init container counts with the sidecars started before it, if that is more.
    """
    sidecars, highest_init = _ZERO, _ZERO
    for container in shape.init_containers:
        request = _request(container, name)
        if container.restart_policy == _ALWAYS:
            sidecars += request
        else:
            highest_init = max(highest_init, sidecars + request)
    running = sidecars + sum((_request(container, name) for container in shape.containers), _ZERO)
    return max(running, highest_init)


def _request(container: ContainerShape, name: str) -> Decimal:
    resources = _mapping(_decoded(container.resources))
    requests, limits = _mapping(resources.get("requests")), _mapping(resources.get("limits"))
    return amount(requests.get(name, limits.get(name)))


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
