"""Kubernetes label selectors: matchLabels and matchExpressions.

Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#resources-that-support-set-based-requirements
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sidemount.model.did_you_mean import suggestion
from sidemount.model.errors import InvalidRequest, VolumeError, raise_faults, shown

_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_KEY = re.compile(rf"({_DOMAIN}/)?{_NAME}\Z")
_VALUE = re.compile(rf"({_NAME})?\Z")
_KEY_MAX = 253 + 1 + 63


class Operator(Enum):
    """How an expression compares."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """One entry of matchExpressions."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a set of labels satisfies it. As in Kubernetes, NotIn is satisfied by an absent key."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """All of its labels and expressions must hold; an empty one selects everything."""

    match_labels: tuple[tuple[str, str], ...] = ()
    match_expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a set of labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels) and all(
            expression.matches(labels) for expression in self.match_expressions
        )


def parse_selector(raw: Any, where: str = "selector") -> LabelSelector:
    """Parse a decoded LabelSelector; None and an empty mapping select everything. Raises InvalidRequest or Faults."""
    if raw is None:
        return LabelSelector()
    if not isinstance(raw, dict):
        raise InvalidRequest(f"{where}: must be a mapping, not {shown(raw)}")
    faults: list[VolumeError] = []
    for key in raw:
        if key not in ("matchLabels", "matchExpressions"):
            hint = suggestion(str(key), ("matchLabels", "matchExpressions"))
            faults.append(InvalidRequest(f"{where}: field {shown(key)} is unknown", hint=hint))
    labels = _labels(raw.get("matchLabels"), f"{where}.matchLabels", faults)
    expressions = _expressions(raw.get("matchExpressions"), f"{where}.matchExpressions", faults)
    raise_faults(faults)
    return LabelSelector(match_labels=labels, match_expressions=expressions)


def _labels(raw: Any, where: str, faults: list[VolumeError]) -> tuple[tuple[str, str], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, dict):
        faults.append(InvalidRequest(f"{where}: must be a mapping, not {shown(raw)}"))
        return ()
    for key, value in raw.items():
        _check_key(key, where, faults)
        _check_value(value, f"{where}[{shown(key)}]", faults)
    return tuple(sorted(raw.items())) if not faults else ()


def _expressions(raw: Any, where: str, faults: list[VolumeError]) -> tuple[Expression, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list):
        faults.append(InvalidRequest(f"{where}: must be a list, not {shown(raw)}"))
        return ()
    parsed = (_expression(item, f"{where}[{i}]", faults) for i, item in enumerate(raw))
    return tuple(expression for expression in parsed if expression is not None)


def _expression(raw: Any, where: str, faults: list[VolumeError]) -> Expression | None:
    if not isinstance(raw, dict) or not set(raw) <= {"key", "operator", "values"}:
        faults.append(InvalidRequest(f"{where}: must be a mapping of key, operator and values"))
        return None
    before = len(faults)
    _check_key(raw.get("key"), f"{where}.key", faults)
    values = raw.get("values") or []
    if not isinstance(values, list):
        faults.append(InvalidRequest(f"{where}.values: must be a list, not {shown(values)}"))
        return None
    for i, value in enumerate(values):
        _check_value(value, f"{where}.values[{i}]", faults)
    operator = _operator(raw.get("operator"), f"{where}.operator", faults)
    if operator is not None and (operator in (Operator.IN, Operator.NOT_IN)) != bool(values):
        need = "needs values" if not values else "takes no values"
        faults.append(InvalidRequest(f"{where}.operator: {operator.value} {need}"))
    if operator is None or len(faults) > before:
        return None
    return Expression(key=raw["key"], operator=operator, values=tuple(values))


def _operator(raw: Any, where: str, faults: list[VolumeError]) -> Operator | None:
    names = [operator.value for operator in Operator]
    if isinstance(raw, str) and raw in names:
        return Operator(raw)
    faults.append(
        InvalidRequest(f"{where}: {shown(raw)} is no operator", hint=f"write one of: {', '.join(names)}")
    )
    return None


def _check_key(key: Any, where: str, faults: list[VolumeError]) -> None:
    if not isinstance(key, str) or len(key) > _KEY_MAX or not _KEY.match(key):
        faults.append(InvalidRequest(f"{where}: {shown(key)} is not a label key"))


def _check_value(value: Any, where: str, faults: list[VolumeError]) -> None:
    if not isinstance(value, str) or not _VALUE.match(value):
        faults.append(
            InvalidRequest(f"{where}: {shown(value)} is not a label value", hint="put it in quotes")
        )
