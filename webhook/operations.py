"""JSON Patch operations (RFC 6902): their values, and what they mean. The `jsonpatch` library is the oracle in tests.

Source: https://www.rfc-editor.org/rfc/rfc6902, https://www.rfc-editor.org/rfc/rfc6901
"""

from collections.abc import Iterable
from typing import Any

Operation = dict[str, Any]
END = "-"


class NotApplicable(Exception):
    """An operation does not apply to the document. The API server answers 500 to such a patch."""


def pointer(*tokens: str | int) -> str:
    """Return the JSON Pointer of a path."""
    return "".join(["/" + _escaped(token) for token in tokens])


def _escaped(token: str | int) -> str:
    text = str(token)
    return text.replace("~", "~0").replace("/", "~1") if "~" in text or "/" in text else text


def add(path: tuple[str | int, ...], value: Any) -> Operation:
    """Insert into a list, or set a member whether or not it is there."""
    return {"op": "add", "path": pointer(*path), "value": value}


def replace(path: tuple[str | int, ...], value: Any) -> Operation:
    """Set a member or item that is there."""
    return {"op": "replace", "path": pointer(*path), "value": value}


def move(source: tuple[str | int, ...], path: tuple[str | int, ...]) -> Operation:
    """Take an item out and insert it elsewhere; `path` counts without it."""
    return {"op": "move", "from": pointer(*source), "path": pointer(*path)}


def apply(document: Any, operations: Iterable[Operation]) -> Any:
    """Return the patched document; the original is untouched, and what no operation reaches is the same object.

    Raises NotApplicable.
    """
    copies: dict[int, Any] = {}
    for operation in operations:
        match operation:
            case {"op": "add" | "replace" as name, "path": str(path), "value": value, **rest} if not rest:
                document = _set(document, _tokens(path), value, name == "add", copies)
            case {"op": "move", "from": str(source), "path": str(path), **rest} if not rest:
                if path.startswith(source + "/"):
                    raise NotApplicable(f"move of {source} into itself")
                document, value = _take(document, _tokens(source), copies)
                document = _set(document, _tokens(path), value, True, copies)
            case _:
                raise NotApplicable(f"not an operation of ours: {str(operation)[:80]}")
    return document


def _tokens(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise NotApplicable(f"path {path!r} does not start with /")
    found = path.split("/")[1:]
    if "~" not in path:
        return found
    for token in found:
        if "~" in token.replace("~0", "").replace("~1", ""):
            raise NotApplicable(f"path {path!r} has a ~ that escapes nothing")
    return [token.replace("~1", "/").replace("~0", "~") for token in found]


def _own(value: Any, copies: dict[int, Any]) -> Any:
    """Return a shallow copy that is ours to change: one for each original, made when first needed."""
    if id(value) in copies:
        return value
    own = dict(value) if isinstance(value, dict) else list(value)
    copies[id(own)] = own
    return own


def _parent(document: Any, tokens: list[str], copies: dict[int, Any]) -> tuple[Any, Any]:
    """Return the document and the container that holds the last token, every copied node on the way ours."""
    document = _own(_container(document), copies)
    node = document
    for token in tokens[:-1]:
        key = _existing_key(node, token)
        child = _own(_container(node[key]), copies)
        node[key] = child
        node = child
    return document, node


def _container(value: Any) -> Any:
    if not isinstance(value, dict | list):
        raise NotApplicable(f"path leads through a {type(value).__name__}")
    return value


def _set(document: Any, tokens: list[str], value: Any, is_add: bool, copies: dict[int, Any]) -> Any:
    if not tokens:
        return value
    document, parent = _parent(document, tokens, copies)
    last = tokens[-1]
    if isinstance(parent, list) and is_add:
        parent.insert(len(parent) if last == END else _index(last, len(parent)), value)
    elif is_add:
        parent[last] = value
    else:
        parent[_existing_key(parent, last)] = value
    return document


def _take(document: Any, tokens: list[str], copies: dict[int, Any]) -> tuple[Any, Any]:
    if not tokens:
        raise NotApplicable("the whole document cannot be moved")
    document, parent = _parent(document, tokens, copies)
    return document, parent.pop(_existing_key(parent, tokens[-1]))


def _existing_key(node: Any, token: str) -> Any:
    if isinstance(node, list):
        return _index(token, len(node) - 1)
    if token not in node:
        raise NotApplicable(f"there is no {token!r}")
    return token


def _index(digits: str, highest: int) -> int:
    if not digits.isascii() or not digits.isdigit() or (digits != "0" and digits.startswith("0")):
        raise NotApplicable(f"{digits!r} is no list index")
    index = int(digits) if len(digits) <= 9 else highest + 1
    if index > highest:
        raise NotApplicable(f"index {digits} is beyond the list")
    return index
