"""LimitRange and ResourceQuota manifests → what is counted of them. Fields that no decision reads are passed over."""

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sidemount.model.errors import InvalidRequest, VolumeError, raise_faults, shown
from sidemount.model.fields import Fields
from sidemount.model.namespace_limits import (
    Bounds,
    LimitRangeFacts,
    QuotaBounds,
    QuotaFacts,
    QuotaScope,
    ScopeOperator,
    joined,
)
from sidemount.model.quantity import parse_quantity
from sidemount.model.resource_amounts import RESOURCE_NAMES

_CONTAINER, _POD = "Container", "Pod"
# A quota's name of a resource → the one name that it has here.
_COUNTED = {
    **{name: f"requests.{name}" for name in RESOURCE_NAMES},
    **{f"{kind}.{name}": f"{kind}.{name}" for kind in ("requests", "limits") for name in RESOURCE_NAMES},
}
_REMEMBERED = 4096


def parse_limit_range(manifest: Mapping[str, Any], namespace: str, name: str) -> LimitRangeFacts | None:
    """Return what a LimitRange says of containers and pods, None if nothing. Raises InvalidRequest or Faults."""
    faults: list[VolumeError] = []
    spec = _spec(manifest, f"LimitRange {shown(f'{namespace}/{name}')}", faults)
    found: dict[str, list[Bounds]] = {_CONTAINER: [], _POD: []}
    for index, item in enumerate(_items(spec, "limits")):
        limit = _child(spec, f"limits[{index}]", item)
        kind = limit.text("type", _anything)
        if kind in found:
            found[kind].append(_bounds(limit))
    raise_faults(faults)
    container, pod = joined(found[_CONTAINER]), joined(found[_POD])
    if container == pod == Bounds():
        return None
    return LimitRangeFacts(namespace=namespace, name=name, container=container, pod=pod)


def parse_quota(manifest: Mapping[str, Any], namespace: str, name: str) -> QuotaFacts | None:
    """Return what a ResourceQuota allows and what is used of it, None if nothing that pods request.

    Raises InvalidRequest or Faults.
    """
    faults: list[VolumeError] = []
    where = f"ResourceQuota {shown(f'{namespace}/{name}')}"
    spec = _spec(manifest, where, faults)
    hard = _counted(_quantities(spec, "hard", _COUNTED), min)
    scopes = tuple(QuotaScope(scope) for scope in spec.texts("scopes", _anything) or ())
    selector = _child(spec, "scopeSelector", spec.mapping("scopeSelector"))
    for index, item in enumerate(_items(selector, "matchExpressions")):
        scopes = (*scopes, _scope(_child(selector, f"matchExpressions[{index}]", item)))
    status = Fields(Fields(manifest, where, faults).mapping("status"), where, faults, path="status")
    used = _counted(_quantities(status, "used", _COUNTED), max)
    raise_faults(faults)
    if not hard:
        return None
    bounds = QuotaBounds(name=name, hard=hard, scopes=scopes)
    return QuotaFacts(
        namespace=namespace, bounds=bounds, used={key: used[key] for key in hard if key in used}
    )


def _bounds(limit: Fields) -> Bounds:
    """Return one entry of a LimitRange, with the defaults that the API server fills in.

    Source: SetDefaults_LimitRangeItem of pkg/apis/core/v1/defaults.go.
    """
    minimum, maximum = (_quantities(limit, key, RESOURCE_NAMES) for key in ("min", "max"))
    default_limit = _quantities(limit, "default", RESOURCE_NAMES)
    default_request = _quantities(limit, "defaultRequest", RESOURCE_NAMES)
    ratio = _quantities(limit, "maxLimitRequestRatio", RESOURCE_NAMES)
    if limit.raw.get("type") == _CONTAINER:
        default_limit = {**maximum, **default_limit}
        default_request = {**minimum, **default_limit, **default_request}
    return Bounds(
        minimum=minimum,
        maximum=maximum,
        ratio=ratio,
        default_request=default_request,
        default_limit=default_limit,
    )


def _scope(expression: Fields) -> QuotaScope:
    operator = expression.choice("operator", ScopeOperator) or ScopeOperator.EXISTS
    values = expression.texts("values", _anything) or ()
    return QuotaScope(expression.text("scopeName", _anything), operator, values)


def _counted(
    quantities: Mapping[str, Decimal], choose: Callable[[Decimal, Decimal], Decimal]
) -> dict[str, Decimal]:
    """Return quantities by the one name of each; `choose` says which counts where two names are given."""
    found: dict[str, Decimal] = {}
    for name, amount in quantities.items():
        key = _COUNTED[name]
        found[key] = choose(found.get(key, amount), amount)
    return found


def _quantities(fields: Fields, key: str, known: Collection[str]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for name, value in fields.mapping(key).items():
        if name not in known:
            continue
        try:
            found[name] = _amount(value) if isinstance(value, str) else parse_quantity(value)
        except InvalidRequest as error:
            fields.fault(f"{key}.{name}", error.message, error.hint)
    return found


# Amounts repeat, and of a quota they come with every pod.
_amount = lru_cache(maxsize=_REMEMBERED)(parse_quantity)


def _spec(manifest: Mapping[str, Any], where: str, faults: list[VolumeError]) -> Fields:
    return Fields(Fields(manifest, where, faults).mapping("spec"), where, faults, path="spec")


def _child(parent: Fields, key: str, raw: Mapping[str, Any]) -> Fields:
    path = f"{parent.path}.{key}"
    return Fields(raw, parent.where, parent.faults, path=path)


def _items(fields: Fields, key: str) -> list[Mapping[str, Any]]:
    value = fields.raw.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        fields.fault(key, f"must be a list of mappings, not {shown(value)}")
        return []
    return value


def _anything(_text: str) -> str:
    return ""
