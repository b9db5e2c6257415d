"""The text of a manifest file → its documents: multi-document YAML, or JSON where the file's name says so."""

import json
from collections import Counter
from typing import Any, NoReturn

from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.yamltext import MANIFEST_DEPTH_MAX, parse_documents


def parse_manifests(text: str, *, is_json: bool) -> tuple[Any, ...]:
    """Return every document that is not empty, in order.

    JSON is not left to the YAML parser, which knows no surrogate pairs in escapes.
    Raises: InvalidRequest, for YAML naming line and column.
    """
    if not is_json:
        return parse_documents(text)
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise InvalidRequest(f"nested more than {MANIFEST_DEPTH_MAX} deep") from error
    except ValueError as error:
        raise InvalidRequest(f"not valid JSON: {error}") from error
    if _is_deeper_than(document, MANIFEST_DEPTH_MAX):
        raise InvalidRequest(f"nested more than {MANIFEST_DEPTH_MAX} deep")
    return (document,)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise InvalidRequest(f"the key {shown(twice)} is there twice", hint="keep one of them")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is no JSON number")


def _is_deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True
