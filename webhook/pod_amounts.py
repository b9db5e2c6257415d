"""What the containers of a pod request and may use in all, counted as the API server counts it for limits and quotas.

Source: podRequests and podLimits of plugin/pkg/admission/limitranger/admission.go.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from sidemount.model.amounts import amount
from sidemount.model.namespace_limits import Bounds, Quantities
from sidemount.model.resource_amounts import RESOURCE_NAMES
from webhook.shape import ContainerShape, PodShape, is_own_container

_ALWAYS = "Always"
_POD_LEVEL = ("cpu", "memory")
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersAmounts:
    """Totals of the user's containers. A resource that the pod states as a whole is in `stated_…`: no container counts then.

    `overhead` is the runtime's.
    """

    requests: Quantities
    limits: Quantities
    stated_requests: Quantities
    stated_limits: Quantities
    overhead: Quantities


def users_amounts(shape: PodShape, defaults: Bounds) -> UsersAmounts:
    """Return what a pod asks without us. `defaults` are what the API server fills into a container that is silent."""
    running = [_amounts_of(container, defaults) for container in shape.containers]
    inits = [
        (container.restart_policy == _ALWAYS, _amounts_of(container, defaults))
        for container in shape.init_containers
        if not is_own_container(container.name)
    ]
    stated = _mapping(_decoded(shape.resources))
    return UsersAmounts(
        requests=_total([(is_sidecar, both[0]) for is_sidecar, both in inits], [both[0] for both in running]),
        limits=_total([(is_sidecar, both[1]) for is_sidecar, both in inits], [both[1] for both in running]),
        stated_requests=_quantities(stated.get("requests"), _POD_LEVEL),
        stated_limits=_quantities(stated.get("limits"), _POD_LEVEL),
        overhead=_quantities(_decoded(shape.overhead), RESOURCE_NAMES),
    )


def container_amounts(
    requests: Mapping[str, Any], limits: Mapping[str, Any], defaults: Bounds
) -> tuple[Quantities, Quantities]:
    """Return a container's (requests, limits) as the API server completes them: a request from its limit, then defaults."""
    own_limits = _quantities(limits, RESOURCE_NAMES)
    return (
        {**defaults.default_request, **own_limits, **_quantities(requests, RESOURCE_NAMES)},
        {**defaults.default_limit, **own_limits},
    )


def _amounts_of(container: ContainerShape, defaults: Bounds) -> tuple[Quantities, Quantities]:
    resources = _mapping(_decoded(container.resources))
    return container_amounts(_mapping(resources.get("requests")), _mapping(resources.get("limits")), defaults)


def _total(inits: Iterable[tuple[bool, Quantities]], running: Iterable[Quantities]) -> Quantities:
    """Sidecars and containers add up; an ordinary init container counts with the sidecars before it, if that is more."""
    sidecars: dict[str, Decimal] = {}
    highest: dict[str, Decimal] = {}
    for is_sidecar, amounts in inits:
        for name, value in amounts.items():
            if is_sidecar:
                sidecars[name] = sidecars.get(name, _ZERO) + value
            else:
                highest[name] = max(highest.get(name, _ZERO), sidecars.get(name, _ZERO) + value)
    total = dict(sidecars)
    for amounts in running:
        for name, value in amounts.items():
            total[name] = total.get(name, _ZERO) + value
    return {name: max(total.get(name, _ZERO), highest.get(name, _ZERO)) for name in {**total, **highest}}


def _quantities(raw: Any, names: tuple[str, ...]) -> dict[str, Decimal]:
    given = _mapping(raw)
    return {name: amount(given[name]) for name in names if given.get(name) is not None}


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
