"""Whom an API server would call for a pod, and what the policies say of it."""

from collections.abc import Mapping
from typing import Any

from tests.manifests.cel import evaluate
from tests.manifests.files import Json, of_base

_NAME_LABEL = "kubernetes.io/metadata.name"


def called(
    kind: str,
    pod: Json,
    namespace: str,
    labels: Mapping[str, str],
    *,
    operation: str = "CREATE",
    old: Any = None,
) -> list[str]:
    """Return the names of the entries of a webhook configuration that are called for a pod."""
    return [
        entry["name"]
        for entry in of_base(kind, "sidemount")["webhooks"]
        if any(operation in rule["operations"] and "pods" in rule["resources"] for rule in entry["rules"])
        and selects(entry["namespaceSelector"], {**labels, _NAME_LABEL: namespace})
        and _holds(entry["matchConditions"], {"object": pod, "oldObject": old})
    ]


def refusals(
    policy: str,
    pod: Json,
    namespace: str,
    labels: Mapping[str, str],
    *,
    old: Any = None,
    rights: frozenset[tuple[str, str, str]] = frozenset(),
) -> list[str]:
    """Return the messages with which a policy refuses a pod. `rights` of the requester: group, resource, verb."""
    spec = of_base("ValidatingAdmissionPolicy", policy)["spec"]
    all_labels = {**labels, _NAME_LABEL: namespace}
    env: dict[str, Any] = {
        "object": pod,
        "oldObject": old,
        "namespaceObject": {"metadata": {"name": namespace, "labels": all_labels}},
        "authorizer": rights,
    }
    if not selects(spec["matchConstraints"]["namespaceSelector"], all_labels):
        return []
    if not _holds(spec.get("matchConditions", ()), env):
        return []
    variables: dict[str, Any] = {}
    env["variables"] = variables
    for variable in spec["variables"]:
        variables[variable["name"]] = evaluate(variable["expression"], env)
    return [
        _message(validation, env)
        for validation in spec["validations"]
        if evaluate(validation["expression"], env) is not True
    ]


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Tell whether a selector of In and NotIn selects these labels."""
    return all(
        (labels.get(each["key"]) in each["values"]) == (each["operator"] == "In")
        for each in selector["matchExpressions"]
    )


def _message(validation: Json, env: Mapping[str, Any]) -> str:
    if "messageExpression" in validation:
        return str(evaluate(validation["messageExpression"], env))
    return str(validation["message"])


def _holds(conditions: Any, env: Mapping[str, Any]) -> bool:
    return all(evaluate(condition["expression"], env) for condition in conditions)
