"""YAML and JSON text as plain values, safe for any input.

Built from parser events, so that nesting is bounded before anything recurses. Aliases, anchors, tags, duplicate keys and keys that
are not text are refused: none is needed, and each has been used to make a small text mean something large or different.

An unquoted scalar of an annotation is what JSON says it is: `true`, `false`, `null` (also empty and `~`) and JSON's numbers; all
else is text. So `yes`, `on`, `010`, `1:30`, `0x1F`, `1_000` and `2001-01-01` are text, and where a boolean or number is wanted they are
refused there. Manifests read as kubectl reads them: there `0644` is octal, `yes` is true, and a number or boolean
as a key is its text.
"""

import json
import re
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, NoReturn

import yaml

from sidemount.model.errors import InvalidRequest, shown

ANNOTATION_MAX = 256 * 1024
MANIFEST_MAX = 16 * 1024 * 1024
ANNOTATION_DEPTH_MAX = 32
MANIFEST_DEPTH_MAX = 100

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the parser of libyaml where it is built in
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?\Z")
_NUMBER_MAX = 40  # digits: longer than any number that means something here, short enough to convert
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_KUBECTL_TRUE = _TRUE | {"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"}
_KUBECTL_FALSE = _FALSE | {"n", "N", "no", "No", "NO", "off", "Off", "OFF"}
_KUBECTL_INT = re.compile(
    r"[-+]?(?:0[bB](?P<bin>[01_]+)|0[xX](?P<hex>[0-9a-fA-F_]+)|0[oO]?(?P<oct>[0-7_]+)|(?P<dec>0|[1-9][0-9_]*))\Z"
)
_KUBECTL_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")

_Resolve = Callable[[str], Any]


def parse_yaml(text: str) -> Any:
    """Parse the one document of an annotation. Raises InvalidRequest; an empty text is None."""
    if len(text) > ANNOTATION_MAX:
        raise InvalidRequest(f"the text is longer than {ANNOTATION_MAX} characters")
    if text.lstrip()[:1] in ("[", "{"):
        # YAML's parser knows no surrogate pairs in escapes, which json.dumps writes for characters beyond the BMP.
        try:
            return _parse_json(text)
        except json.JSONDecodeError:
            pass
    documents = _Builder(text, _json_scalar, ANNOTATION_DEPTH_MAX).documents()
    if len(documents) > 1:
        raise InvalidRequest(f"the text holds {len(documents)} documents", hint="write one")
    return documents[0] if documents else None


def parse_documents(text: str) -> tuple[Any, ...]:
    """Parse the documents of a manifest file, without the empty ones. Raises InvalidRequest."""
    if len(text) > MANIFEST_MAX:
        raise InvalidRequest(f"the text is longer than {MANIFEST_MAX} characters")
    documents = _Builder(text, _kubectl_scalar, MANIFEST_DEPTH_MAX).documents()
    return tuple(document for document in documents if document is not None)


def is_read_as_text(text: str) -> bool:
    """Tell whether kubectl reads an unquoted scalar as this very text, not as a number, boolean or null."""
    if len(text) > _NUMBER_MAX:
        return not (_KUBECTL_INT.match(text) or _KUBECTL_FLOAT.match(text.replace("_", "")))
    return isinstance(_kubectl_scalar(text), str)


class _Builder:
    """Builds values from the parser's events, one collection deep per call."""

    def __init__(self, text: str, resolve: _Resolve, depth_max: int) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._resolve = resolve
        self._depth_max = depth_max

    def documents(self) -> list[Any]:
        try:
            return [
                self._value(next(self._events), 0)
                for event in self._events
                if isinstance(event, yaml.DocumentStartEvent)
            ]
        except yaml.YAMLError as error:
            raise InvalidRequest(f"not valid YAML: {_parser_message(error)}") from error
        except UnicodeError as error:
            raise InvalidRequest("not valid YAML: the text is not valid Unicode") from error

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            raise _refused(event, f"the alias {shown(event.anchor)} is not allowed", "write the value itself")
        if event.anchor is not None:
            raise _refused(
                event, f"the anchor {shown(event.anchor)} is not allowed", "write the value where it is used"
            )
        if event.tag is not None:
            raise _refused(event, f"the tag {shown(event.tag)} is not allowed", "write the plain value")
        if isinstance(event, yaml.ScalarEvent):
            return self._resolve(event.value) if event.implicit[0] else event.value
        if depth >= self._depth_max:
            raise _refused(event, f"nested more than {self._depth_max} deep", "")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth + 1)
        return self._mapping(depth + 1)

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = _key(event, self._value(event, depth), self._resolve is _kubectl_scalar)
            if key in fields:
                raise _refused(event, f"the key {shown(key)} is there twice", "keep one of them")
            fields[key] = self._value(next(self._events), depth)
        return fields


def _key(event: Any, key: Any, keys_as_kubectl: bool) -> str:
    if key == "<<" and event.implicit[0]:
        raise _refused(event, "the merge key << is not allowed", "write the fields themselves")
    if isinstance(key, int) and keys_as_kubectl:
        return str(key).lower()
    if not isinstance(key, str):
        raise _refused(event, f"the key {shown(key)} is not a text", "put it in quotes")
    return key


def _json_scalar(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    number = _JSON_NUMBER.match(text) if len(text) <= _NUMBER_MAX else None
    if number is None:
        return text
    return _finite(text) if number["fraction"] or number["exponent"] else int(text)


def _kubectl_scalar(text: str) -> Any:
    """Resolve as go-yaml v2 does, which kubectl uses: https://github.com/kubernetes-sigs/yaml/blob/master/goyaml.v2/resolve.go"""
    if text in _NULL:
        return None
    if text in _KUBECTL_TRUE or text in _KUBECTL_FALSE:
        return text in _KUBECTL_TRUE
    if len(text) > _NUMBER_MAX or text[0] not in "+-.0123456789":
        return text
    whole = _KUBECTL_INT.match(text)
    if whole is not None:
        base, digits = next((b, whole[g]) for g, b in _BASES if whole[g] is not None)
        digits = digits.replace("_", "")
        if digits:
            return -int(digits, base) if text[0] == "-" else int(digits, base)
    plain = text.replace("_", "")
    return _finite(plain) if _KUBECTL_FLOAT.match(plain) else text


def _finite(text: str) -> float | str:
    """Return the number, or the text where only infinity could stand for it."""
    number = float(text)
    return number if isfinite(number) else text


_BASES = (("bin", 2), ("hex", 16), ("oct", 8), ("dec", 10))


def _parse_json(text: str) -> Any:
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_json_scalar,
            parse_float=_json_scalar,
            parse_constant=_no_constant,
        )
    except RecursionError as error:
        raise InvalidRequest(f"nested more than {ANNOTATION_DEPTH_MAX} deep") from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(ANNOTATION_DEPTH_MAX):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
    if any(isinstance(value, dict | list) for value in level):
        raise InvalidRequest(f"nested more than {ANNOTATION_DEPTH_MAX} deep")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise InvalidRequest(f"the key {shown(key)} is there twice", hint="keep one of them")
        fields[key] = value
    return fields


def _no_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is no JSON number")


def _refused(event: Any, what: str, hint: str) -> InvalidRequest:
    mark = event.start_mark
    return InvalidRequest(f"line {mark.line + 1}, column {mark.column + 1}: {what}", hint=hint)


def _parser_message(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{where}{shown(str(problem))[1:-1]}"
