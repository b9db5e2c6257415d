"""Checks an object against a structural schema as an API server does: types and bounds first, then the rules."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.manifests.cel import CelError, evaluate

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}
_LEAST = {"minItems": "items", "minLength": "characters", "minProperties": "properties"}
_MOST = {"maxItems": "items", "maxLength": "characters", "maxProperties": "properties"}

Schema = Mapping[str, Any]


def faults_of(schema: Schema, value: Any) -> list[str]:
    """Return why an API server would refuse a value; the rules are tried only where everything else holds."""
    structural = list(_structure(schema, value, ""))
    return structural or list(_rules(schema, value, ""))


def _structure(schema: Schema, value: Any, path: str) -> Iterator[str]:
    if not _has_type(schema, value):
        yield f"{path}: {value!r} is not of type {schema.get('type', 'int or string')}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str) and "pattern" in schema and not _found(schema["pattern"], value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value} is out of bounds"
    if isinstance(value, str | list | dict):
        yield from _sizes(schema, value, path)
    for child, item, where in _children(schema, value, path):
        yield from _structure(child, item, where)
    if isinstance(value, dict):
        yield from _keys(schema, value, path)
    is_set = schema.get("x-kubernetes-list-type") == "set"
    if is_set and len({repr(item) for item in value}) < len(value):
        yield f"{path}: an item is there twice"


def _rules(schema: Schema, value: Any, path: str) -> Iterator[str]:
    for validation in schema.get("x-kubernetes-validations", ()):
        try:
            if evaluate(validation["rule"], {"self": value}) is not True:
                yield f"{path}: {validation['message']}"
        except CelError as error:
            yield f"{path}: {error}"
    for child, item, where in _children(schema, value, path):
        yield from _rules(child, item, where)


def _children(schema: Schema, value: Any, path: str) -> Iterator[tuple[Schema, Any, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            child = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if child is not None:
                yield child, item, f"{path}.{key}"
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield schema["items"], item, f"{path}[{index}]"


def _keys(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[str]:
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{path}.{key}: is missing"
    is_open = "additionalProperties" in schema or "properties" not in schema
    for key in () if is_open else value:
        if key not in schema["properties"]:
            yield f"{path}.{key}: is unknown"


def _sizes(schema: Schema, value: Any, path: str) -> Iterator[str]:
    for key, what in _LEAST.items():
        if len(value) < schema.get(key, 0):
            yield f"{path}: has fewer than {schema[key]} {what}"
    for key, what in _MOST.items():
        if key in schema and len(value) > schema[key]:
            yield f"{path}: has more than {schema[key]} {what}"


def _has_type(schema: Schema, value: Any) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, str) or type(value) is int
    if "type" not in schema:
        return True
    return isinstance(value, _TYPES[schema["type"]]) and (
        schema["type"] == "boolean" or type(value) is not bool
    )


def _found(pattern: str, text: str) -> bool:
    return re.search(re.sub(r"\$$", r"\\Z", pattern), text) is not None
