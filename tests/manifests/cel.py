"""As much of the Common Expression Language as the manifests use, so that their rules can be tried without an API server.

The same cases are tried on a real one (`e2e/tests/test_manifests.py`), which is what keeps this honest.
Source: https://github.com/google/cel-spec/blob/master/doc/langdef.md
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sidemount.model.errors import InvalidRequest
from sidemount.model.quantity import parse_quantity

Env = Mapping[str, Any]
Node = Callable[[Env], Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")|(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<mark>\|\||&&|==|!=|<=|>=|[-!<>?:.,()\[\]{}+]))"
)
_ESCAPE = re.compile(r"\\(.)")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b),
    "!=": lambda a, b: bool(a != b),
    "<=": lambda a, b: bool(a <= b),
    ">=": lambda a, b: bool(a >= b),
    "<": lambda a, b: bool(a < b),
    ">": lambda a, b: bool(a > b),
    "in": lambda a, b: a in b,
}
_DURATION = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?\Z")


class CelError(Exception):
    """An expression that has no value: a missing key, a wrong type."""


def evaluate(expression: str, env: Env) -> Any:
    """Return the value of an expression. Raises CelError where an API server would see an error."""
    try:
        return _parsed(expression)(env)
    except (TypeError, AttributeError, IndexError) as error:
        raise CelError(f"{expression}: {error}") from error


@lru_cache(maxsize=512)
def _parsed(expression: str) -> Node:
    parser = _Parser(expression)
    node = parser.choice()
    parser.expect_end()
    return node


class _Parser:
    """Recursive descent; each method returns what evaluates to the value of its part."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            assert found is not None, f"no token at {text[at:]!r}"
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()
        self._at = 0

    def expect_end(self) -> None:
        assert self._at == len(self._tokens), f"more than one expression: {self._tokens[self._at :]}"

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, *marks: str) -> str:
        kind, text = self._next()
        if kind in ("mark", "name") and text in marks:
            self._at += 1
            return text
        return ""

    def _expect(self, mark: str) -> None:
        assert self._take(mark), f"{mark!r} expected before {self._tokens[self._at :]}"

    def choice(self) -> Node:
        condition = self._any()
        if not self._take("?"):
            return condition
        then = self.choice()
        self._expect(":")
        other = self.choice()
        return lambda env: then(env) if _boolean(condition(env)) else other(env)

    def _any(self) -> Node:
        node = self._all()
        while self._take("||"):
            node = _logical(node, self._all(), decisive=True)
        return node

    def _all(self) -> Node:
        node = self._relation()
        while self._take("&&"):
            node = _logical(node, self._relation(), decisive=False)
        return node

    def _relation(self) -> Node:
        left = self._sum()
        mark = self._take(*_COMPARED)
        if not mark:
            return left
        right = self._sum()
        compare = _COMPARED[mark]
        return lambda env: compare(left(env), right(env))

    def _sum(self) -> Node:
        node = self._unary()
        while self._take("+"):
            node = _added(node, self._unary())
        return node

    def _unary(self) -> Node:
        if self._take("!"):
            inner = self._unary()
            return lambda env: not _boolean(inner(env))
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._take("."):
                name = self._name()
                node = self._method(node, name) if self._take("(") else _selected(node, name)
            elif self._take("["):
                key = self.choice()
                self._expect("]")
                node = _indexed(node, key)
            else:
                return node

    def _name(self) -> str:
        kind, text = self._next()
        assert kind == "name", f"a name expected, not {text!r}"
        self._at += 1
        return text

    def _arguments(self, end: str) -> list[Node]:
        found: list[Node] = []
        while not self._take(end):
            found.append(self.choice())
            self._take(",")
        return found

    def _method(self, target: Node, name: str) -> Node:
        if name in _MACROS:
            variable = self._name()
            self._expect(",")
            body = self.choice()
            self._expect(")")
            macro = _MACROS[name]
            return lambda env: macro(target(env), lambda item: body({**env, variable: item}))
        method, arguments = _METHODS[name], self._arguments(")")
        return lambda env: method(target(env), *(argument(env) for argument in arguments))

    def _primary(self) -> Node:
        kind, text = self._next()
        self._at += 1
        match kind, text:
            case "text", _:
                value = _ESCAPE.sub(r"\1", text[1:-1])
                return lambda env: value
            case "number", _:
                return lambda env: int(text)
            case "mark", "(":
                inner = self.choice()
                self._expect(")")
                return inner
            case "mark", "[":
                items = self._arguments("]")
                return lambda env: [item(env) for item in items]
            case "mark", "{":
                self._expect("}")
                return lambda env: {}
            case "name", "true" | "false":
                return lambda env: text == "true"
            case "name", "has":
                return self._has()
            case "name", _ if self._take("("):
                function, arguments = _FUNCTIONS[text], self._arguments(")")
                return lambda env: function(*(argument(env) for argument in arguments))
            case "name", _:
                return lambda env: env[text]
        raise AssertionError(f"unexpected {text!r}")

    def _has(self) -> Node:
        self._expect("(")
        target = self._primary()
        names = []
        while self._take("."):
            names.append(self._name())
        while self._take("["):
            key = self.choice()
            self._expect("]")
            self._expect(".")
            target, names = _path(target, names, key), [self._name()]
        self._expect(")")
        for name in names[:-1]:
            target = _selected(target, name)
        return lambda env: names[-1] in target(env) and target(env)[names[-1]] is not None


def _path(target: Node, names: list[str], key: Node) -> Node:
    for name in names:
        target = _selected(target, name)
    return _indexed(target, key)


def _selected(target: Node, name: str) -> Node:
    return _indexed(target, lambda env: name)


def _indexed(target: Node, key: Node) -> Node:
    def index(env: Env) -> Any:
        try:
            return target(env)[key(env)]
        except (KeyError, IndexError) as error:
            raise CelError(f"no such key: {error}") from error

    return index


def _added(left: Node, right: Node) -> Node:
    return lambda env: left(env) + right(env)


def _logical(left: Node, right: Node, *, decisive: bool) -> Node:
    """`||` (decisive: true) and `&&` (decisive: false): either side decides, even where the other is an error."""

    def decide(env: Env) -> bool:
        try:
            if _boolean(left(env)) is decisive:
                return decisive
        except CelError:
            if _boolean(right(env)) is decisive:
                return decisive
            raise
        return _boolean(right(env))

    return decide


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is not a boolean")
    return value


def _duration(text: str) -> timedelta:
    found = _DURATION.match(text)
    if found is None or not text:
        raise CelError(f"{text!r} is no duration")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        return timedelta(hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise CelError(f"{text!r} is too long a duration") from error


def _quantity(text: str) -> Any:
    try:
        return parse_quantity(text)
    except InvalidRequest as error:
        raise CelError(str(error)) from error


def _is_quantity(text: str) -> bool:
    with suppress(CelError):
        _quantity(text)
        return True
    return False


def _matches(text: str, pattern: str) -> bool:
    return re.search(re.sub(r"\$$", r"\\Z", pattern), text) is not None


_MACROS: Mapping[str, Callable[[Any, Node], Any]] = {
    "exists": lambda items, test: any(test(item) for item in items),
    "all": lambda items, test: all(test(item) for item in items),
    "exists_one": lambda items, test: sum([test(item) for item in items]) == 1,
    "filter": lambda items, test: [item for item in items if test(item)],
    "map": lambda items, test: [test(item) for item in items],
}
_METHODS: Mapping[str, Callable[..., Any]] = {
    "startsWith": lambda text, start: text.startswith(start),
    "contains": lambda text, part: part in text,
    "matches": _matches,
    "substring": lambda text, start: text[start:],
    "join": lambda items, between: between.join(items),
    "isGreaterThan": lambda a, b: a > b,
    "isLessThan": lambda a, b: a < b,
    "compareTo": lambda a, b: (a > b) - (a < b),
    # Of the authorizer, which is what the requester may do: a set of (group, resource, verb).
    "group": lambda rights, group: (rights, group),
    "resource": lambda asked, resource: (*asked, resource),
    "check": lambda asked, verb: (*asked[1:], verb) in asked[0],
    "allowed": lambda is_allowed: is_allowed,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "size": len,
    "string": str,
    "duration": _duration,
    "quantity": _quantity,
    "isQuantity": _is_quantity,
}
