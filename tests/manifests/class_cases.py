"""Driver classes that are refused, from the parser's own tests, and which of them the type itself lets through."""

from typing import Any

from tests.model import test_driver_class_manifest as parser_tests

# Only the webhook's /validate can say these: they need a number's unit, a pattern's structure, or the value of any type.
ONLY_THE_WEBHOOK = frozenset(
    {
        "min above max",
        "default out of range",
        "default of another type",
        "default against the pattern",
        "broken pattern",
        "pattern that could run long",
        "credential as option",
        "template of an unknown key",
    }
)
# What kubectl and the API server see before any schema: an object of another type, or none.
NOT_OF_OUR_TYPE = frozenset({"null", "list", "empty", "apiVersion", "kind", "metadata as list", "no name"})


def refused_specs() -> dict[str, dict[str, Any]]:
    """Return manifests by the name of their case; a field of None is left out, as YAML's null counts as absent."""
    (mark,) = parser_tests.test_each_fault_names_class_and_path.pytestmark
    found = {}
    for case in mark.args[1]:
        base, changes = case.values[:2]
        spec = {key: value for key, value in {**base, **changes}.items() if value is not None}
        found[str(case.id)] = manifest(spec)
    return found


def manifest(spec: dict[str, Any], name: str = "x") -> dict[str, Any]:
    """Return a class."""
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": name},
        "spec": spec,
    }
