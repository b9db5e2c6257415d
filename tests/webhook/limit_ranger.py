"""LimitRanges and quotas judged as the API server does it: written from its own code, and sharing nothing with ours.

Source: plugin/pkg/admission/limitranger/admission.go, pkg/quota/v1/evaluator/core/pods.go.
"""

from decimal import Decimal
from typing import Any

from sidemount.model.quantity import parse_quantity

Json = dict[str, Any]


def limit_range(name: str = "limits", *limits: Json, namespace: str = "ml") -> Json:
    """Return a LimitRange."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": list(limits)}}


def quota(
    hard: Json, used: Json | None = None, name: str = "compute", namespace: str = "ml", **spec: Any
) -> Json:
    """Return a ResourceQuota."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used or {}},
    }


def defaulted(pod: Json, limits: list[Json]) -> Json:
    """Fill defaults into every container: requests from limits, then what LimitRanges say."""
    for container in _containers(pod):
        resources = container.setdefault("resources", {})
        requests, bounds = resources.setdefault("requests", {}), resources.setdefault("limits", {})
        for name, value in bounds.items():
            requests.setdefault(name, value)
        for item in limits:
            if item["type"] == "Container":
                own = {**item.get("max", {}), **item.get("default", {})}
                asked = {**item.get("min", {}), **own, **item.get("defaultRequest", {})}
                for name, value in own.items():
                    bounds.setdefault(name, value)
                for name, value in asked.items():
                    requests.setdefault(name, value)
    return pod


def complaints(pod: Json, limits: list[Json]) -> list[str]:
    """Return what the API server says against a pod."""
    found = []
    for item in limits:
        if item["type"] == "Container":
            for container in _containers(pod):
                requests = _amounts(container["resources"].get("requests", {}))
                bounds = _amounts(container["resources"].get("limits", {}))
                found += [f"{container['name']}: {told}" for told in _violations(item, requests, bounds)]
        if item["type"] == "Pod":
            totals = (totals_of(pod, "requests"), totals_of(pod, "limits"))
            found += [f"pod: {told}" for told in _violations(item, *totals)]
    for container in _containers(pod):
        requests = _amounts(container["resources"].get("requests", {}))
        bounds = _amounts(container["resources"].get("limits", {}))
        found += [
            f"{container['name']}: {n} request above limit"
            for n in requests.keys() & bounds.keys()
            if requests[n] > bounds[n]
        ]
    return found


def totals_of(pod: Json, kind: str) -> dict[str, Decimal]:
    """Return podRequests or podLimits."""
    total: dict[str, Decimal] = {}
    sidecars: dict[str, Decimal] = {}
    highest: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        _add(total, _amounts(container["resources"].get(kind, {})))
    for container in pod["spec"].get("initContainers", ()):
        own = _amounts(container["resources"].get(kind, {}))
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            _add(sidecars, own)
            counted = dict(sidecars)
        else:
            counted = dict(own)
            _add(counted, sidecars)
        for name, value in counted.items():
            highest[name] = max(highest.get(name, value), value)
    for name, value in highest.items():
        total[name] = max(total.get(name, value), value)
    stated = _amounts((pod["spec"].get("resources") or {}).get(kind, {}))
    return {**total, **stated}


def _violations(item: Json, requests: dict[str, Decimal], bounds: dict[str, Decimal]) -> list[str]:
    found = []
    for name, least in _amounts(item.get("min", {})).items():
        if name not in requests or requests[name] < least or bounds.get(name, least) < least:
            found.append(f"minimum of {name}")
    for name, most in _amounts(item.get("max", {})).items():
        if name not in bounds or bounds[name] > most or requests.get(name, most) > most:
            found.append(f"maximum of {name}")
    for name, ratio in _amounts(item.get("maxLimitRequestRatio", {})).items():
        if (
            not requests.get(name)
            or not bounds.get(name)
            or float(bounds[name]) / float(requests[name]) > float(ratio)
        ):
            found.append(f"ratio of {name}")
    return found


def _containers(pod: Json) -> list[Json]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def _amounts(raw: Json) -> dict[str, Decimal]:
    return {name: parse_quantity(value) for name, value in raw.items()}


def _add(total: dict[str, Decimal], more: dict[str, Decimal]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Decimal(0)) + value
