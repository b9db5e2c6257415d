"""What LimitRanges and ResourceQuotas allow in a namespace, as far as cpu, memory and ephemeral storage go."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum

Quantities = Mapping[str, Decimal]
"""Amounts by resource name; for a quota by its own names: requests.cpu, limits.memory …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one type of a LimitRange says. `ratio`: a limit is at most so many times its request. Defaults are for containers."""

    minimum: Quantities = field(default_factory=dict)
    maximum: Quantities = field(default_factory=dict)
    ratio: Quantities = field(default_factory=dict)
    default_request: Quantities = field(default_factory=dict)
    default_limit: Quantities = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRangeFacts:
    """One LimitRange: what holds for each container, and for a pod as a whole."""

    namespace: str
    name: str
    container: Bounds = field(default_factory=Bounds)
    pod: Bounds = field(default_factory=Bounds)


class ScopeOperator(Enum):
    """How a scope of a quota compares. A scope that is only named must hold, like Exists."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class QuotaScope:
    """Which pods a quota counts."""

    name: str
    operator: ScopeOperator = ScopeOperator.EXISTS
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaBounds:
    """What a ResourceQuota allows in all, whatever is used of it. It counts the pods that all of its scopes hold for."""

    name: str
    hard: Quantities
    scopes: tuple[QuotaScope, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFacts:
    """One ResourceQuota. `used` changes with every pod; what it allows does not."""

    namespace: str
    bounds: QuotaBounds
    used: Quantities = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The object's name."""
        return self.bounds.name

    def has_room(self, resource: str, amount: Decimal) -> bool:
        """Tell whether so much more can be had of it now. What it does not count, or not yet, can."""
        hard = self.bounds.hard.get(resource)
        return hard is None or self.used.get(resource, Decimal(0)) + amount <= hard


def counts_pod(quota: QuotaBounds, *, has_deadline: bool, priority_class: str) -> bool:
    """Tell whether a quota counts a pod that requests something. A scope that is not known here counts none.

    Source: https://kubernetes.io/docs/concepts/policy/resource-quotas/#quota-scopes
    """
    return all(_holds(scope, has_deadline, priority_class) for scope in quota.scopes)


def _holds(scope: QuotaScope, has_deadline: bool, priority_class: str) -> bool:
    match scope.name:
        case "Terminating":
            return has_deadline
        case "NotTerminating":
            return not has_deadline
        case "NotBestEffort":
            return True
        case "PriorityClass":
            return _is_class_of(scope, priority_class)
    return False


def _is_class_of(scope: QuotaScope, priority_class: str) -> bool:
    match scope.operator:
        case ScopeOperator.EXISTS:
            return priority_class != ""
        case ScopeOperator.DOES_NOT_EXIST:
            return priority_class == ""
        case ScopeOperator.IN:
            return priority_class in scope.values
        case ScopeOperator.NOT_IN:
            return priority_class not in scope.values


def joined(bounds: Iterable[Bounds]) -> Bounds:
    """Return the bounds that hold where all of these hold. Of several defaults the first counts."""
    found = tuple(bounds)
    return Bounds(
        minimum=_tightest((each.minimum for each in found), is_least=False),
        maximum=_tightest((each.maximum for each in found), is_least=True),
        ratio=_tightest((each.ratio for each in found), is_least=True),
        default_request=_first(each.default_request for each in found),
        default_limit=_first(each.default_limit for each in found),
    )


def _tightest(all_quantities: Iterable[Quantities], *, is_least: bool) -> Quantities:
    found: dict[str, Decimal] = {}
    for quantities in all_quantities:
        for name, amount in quantities.items():
            known = found.get(name, amount)
            found[name] = min(known, amount) if is_least else max(known, amount)
    return found


def _first(all_quantities: Iterable[Quantities]) -> Quantities:
    found: dict[str, Decimal] = {}
    for quantities in all_quantities:
        found = {**quantities, **found}
    return found
