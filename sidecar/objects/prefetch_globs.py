"""Globs over keys: `*` is anything but "/", `**` anything, `**/` any directories or none, `?` one character, `[a-z]` and `[!a-z]` one of a set.

Matched in time that grows with the length of key and glob alone: a workload writes the glob, and the daemon has other things to do.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

SEPARATOR = ";"
_WILD = "*?["
_MOST_REMEMBERED = 4096

One = Callable[[str], bool]


def parse_globs(text: str) -> tuple["Glob", ...]:
    """Return the globs of a text, each once. They are separated by ";"; what ends with "/" means all that is beneath."""
    found: dict[str, None] = {}
    for part in text.split(SEPARATOR):
        pattern = part.strip().removeprefix("/")
        if part.strip():
            found[pattern + "**" if pattern.endswith("/") or not pattern else pattern] = None
    return tuple(_compile(pattern) for pattern in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glob:
    """A compiled glob. `prefix` is what all keys begin with that it matches; `is_key`: it matches that key alone.

    It is a machine whose states are bits of a number: one for each token, and the last for the end. `within` are tokens that
    take any character but "/" and stay, `across` those that take any; `optional` may be left out together with the two that follow.
    """

    pattern: str
    prefix: str
    is_key: bool
    ones: tuple[tuple[int, One], ...]
    within: int
    across: int
    optional: int
    last: int
    remembered: dict[str, int] = field(default_factory=dict, compare=False)

    def matches(self, key: str) -> bool:
        """Tell whether it matches a whole key."""
        if self.is_key or not key.startswith(self.prefix):
            return key == self.pattern
        states = self._spread(1)
        for char in key:
            stays = states & self.across | (0 if char == "/" else states & self.within)
            states = self._spread((states & self._takers(char)) << 1 | stays)
            if not states:
                return False
        return bool(states & self.last)

    def _spread(self, states: int) -> int:
        """Add the states that are reached by taking nothing."""
        while True:
            optional = states & self.optional
            wider = states | optional << 1 | optional << 3 | (states & (self.within | self.across)) << 1
            if wider == states:
                return states
            states = wider

    def _takers(self, char: str) -> int:
        found = self.remembered.get(char)
        if found is None:
            found = sum(bit for bit, takes in self.ones if takes(char))
            if len(self.remembered) < _MOST_REMEMBERED:
                self.remembered[char] = found
        return found


def _compile(pattern: str) -> Glob:
    wild = next((at for at, char in enumerate(pattern) if char in _WILD), None)
    ones: list[tuple[int, One]] = []
    within = across = optional = 0
    state = 1
    at = 0
    while at < len(pattern):
        if pattern.startswith("**", at):
            begins = at == 0 or pattern[at - 1] == "/"
            while at < len(pattern) and pattern[at] == "*":
                at += 1
            if begins and pattern.startswith("/", at):
                optional |= state
                state <<= 1
            across |= state
        elif pattern[at] == "*":
            within |= state
            at += 1
        else:
            one, at = _one(pattern, at)
            ones.append((state, one))
        state <<= 1
    return Glob(
        pattern=pattern,
        prefix=pattern if wild is None else pattern[:wild],
        is_key=wild is None,
        ones=tuple(ones),
        within=within,
        across=across,
        optional=optional,
        last=state,
    )


def _one(pattern: str, at: int) -> tuple[One, int]:
    """Return what takes one character, and where the next token begins. A "[" that nothing closes is itself."""
    if pattern[at] == "?":
        return (lambda char: char != "/"), at + 1
    end = pattern.find("]", at + 3 if pattern.startswith("[!", at) else at + 2)
    if pattern[at] == "[" and end > 0:
        return _set(pattern[at + 1 : end]), end + 1
    literal = pattern[at]
    return (lambda char: char == literal), at + 1


def _set(text: str) -> One:
    is_negated = text.startswith("!")
    text = text[is_negated:]
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        if text[at + 1 : at + 2] == "-" and at + 2 < len(text):
            ranges.append((text[at], text[at + 2]))
            at += 3
        else:
            ranges.append((text[at], text[at]))
            at += 1
    return lambda char: char != "/" and is_negated != any(first <= char <= last for first, last in ranges)
