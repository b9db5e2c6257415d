"""The regular expressions that a class may give for its texts: bounded, and unable to run for long.

Python's matcher backtracks, so `(a+)+` takes exponential time on a hostile text. Patterns are the admin's, texts are anybody's:
a pattern is refused when the class is read if the number of ways in which it could be tried against its longest text is
too large, or cannot be told (back-references, look-arounds, flags).
"""

import re
import warnings
from dataclasses import dataclass

from sidemount.model.errors import InvalidRequest, shown

PATTERN_MAX = 512
WAYS_MAX = 2**27  # three open-ended repetitions over 256 characters: a fraction of a second at the worst

_DEPTH_MAX = 16
_ENDLESS = WAYS_MAX + 1
_REPEAT = re.compile(r"(?:[*+?]|\{(?P<low>[0-9]*)(?P<comma>,)?(?P<high>[0-9]*)\})[?+]?")
_GROUP = re.compile(r"\((?!\?)|\(\?:|\(\?P<[A-Za-z_][A-Za-z0-9_]*>")


def compile_pattern(pattern: str, max_length: int) -> re.Pattern[str]:
    """Compile for fullmatch against texts of at most `max_length`; classes are ASCII. Raises InvalidRequest."""
    if len(pattern) > PATTERN_MAX:
        raise InvalidRequest(f"pattern of {len(pattern)} characters is longer than {PATTERN_MAX}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python finds ambiguous, such as [[a], is no good pattern
            compiled = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise InvalidRequest(f"pattern {shown(pattern)} is not a regular expression: {error}") from error
    if _Scan(pattern, max_length).alternatives(0) > WAYS_MAX:
        raise InvalidRequest(
            f"pattern {shown(pattern)} could be tried in too many ways against {max_length} characters",
            hint="repeat single characters rather than groups, use fewer * and +, or lower maxLength",
        )
    return compiled


@dataclass(slots=True)
class _Scan:
    """Counts the ways of a pattern that compiles, by recursive descent; capped at `_ENDLESS`."""

    pattern: str
    max_length: int
    at: int = 0

    def alternatives(self, depth: int) -> int:
        ways = self._sequence(depth)
        while self.pattern.startswith("|", self.at):
            self.at += 1
            ways += self._sequence(depth)
        return min(ways, _ENDLESS)

    def _sequence(self, depth: int) -> int:
        ways = 1
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            ways = min(ways * self._repeated(self._atom(depth)), _ENDLESS)
        return ways

    def _atom(self, depth: int) -> int:
        char = self.pattern[self.at]
        if char == "(":
            return self._group(depth)
        if char == "[":
            self._skip_class()
        elif char == "\\":
            if self.pattern[self.at + 1] in "123456789":
                raise InvalidRequest(f"pattern {shown(self.pattern)} has a back-reference")
            self.at += 2
        else:
            self.at += 1
        return 1

    def _group(self, depth: int) -> int:
        opening = _GROUP.match(self.pattern, self.at)
        if opening is None:
            raise InvalidRequest(
                f"pattern {shown(self.pattern)} has a look-around, flags or another special group"
            )
        if depth >= _DEPTH_MAX:
            raise InvalidRequest(
                f"pattern {shown(self.pattern)} has groups nested more than {_DEPTH_MAX} deep"
            )
        self.at = opening.end()
        ways = self.alternatives(depth + 1)
        self.at += 1  # the closing parenthesis
        return ways

    def _skip_class(self) -> None:
        self.at += 2 if self.pattern.startswith("[^", self.at) else 1
        if self.pattern.startswith("]", self.at):
            self.at += 1  # a leading ] is a member
        while self.pattern[self.at] != "]":
            self.at += 2 if self.pattern[self.at] == "\\" else 1
        self.at += 1

    def _repeated(self, ways: int) -> int:
        repeat = _REPEAT.match(self.pattern, self.at)
        if repeat is None or repeat[0] == "{}":
            return ways
        self.at = repeat.end()
        low, high = self._bounds(repeat)
        if high is None or high > self.max_length:
            # Only what matches in one way can be repeated without end and still be tried in few.
            return self.max_length + 1 if ways == 1 else _ENDLESS
        if ways == 1:
            return high - low + 1
        return min(sum(ways**times for times in range(low, high + 1)), _ENDLESS) if high <= 64 else _ENDLESS

    def _bounds(self, repeat: re.Match[str]) -> tuple[int, int | None]:
        match repeat[0][0]:
            case "*":
                return 0, None
            case "+":
                return 1, None
            case "?":
                return 0, 1
        low = int(repeat["low"] or 0)
        if repeat["comma"] is None:
            return low, low
        return low, int(repeat["high"]) if repeat["high"] else None
