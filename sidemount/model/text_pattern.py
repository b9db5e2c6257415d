"""The regular expressions that a class may give for its texts: bounded, and unable to run for long.

Python's matcher backtracks, so a nested repetition such as `(a+)+` takes exponential time on a hostile text. Patterns are
the admin's, texts are anybody's: a pattern with a repetition inside a repeated group, a back-reference or a look-around
is refused when the class is read, and so are more unbounded repetitions than a bounded text can be tried against quickly.
"""

import re

from sidemount.model.errors import InvalidRequest, shown

PATTERN_MAX = 512
_REPETITIONS_MAX = 3
_REPEAT = re.compile(r"[*+?]|\{[0-9]+(?P<range>,[0-9]*)?\}|\{,[0-9]+\}")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile for fullmatch, ASCII classes only. Raises InvalidRequest saying what is wrong with it."""
    if len(pattern) > PATTERN_MAX:
        raise InvalidRequest(f"pattern of {len(pattern)} characters is longer than {PATTERN_MAX}")
    try:
        compiled = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"pattern {shown(pattern)} is not a regular expression: {error}") from error
    why = _danger(pattern)
    if why:
        raise InvalidRequest(
            f"pattern {shown(pattern)} {why}", hint="write it without nested or many open-ended repetitions"
        )
    return compiled


def _danger(pattern: str) -> str:
    """Scan a pattern that compiles; return why it could take long on some text, "" if it cannot."""
    open_ended = 0
    groups = [False]  # for each open group: does it hold a repetition
    i = 0
    closed = False  # whether the atom before i is a group that holds a repetition
    while i < len(pattern):
        char = pattern[i]
        repeat = _REPEAT.match(pattern, i)
        if repeat is not None:
            if closed and repeat[0] != "?":
                return "repeats a group that itself holds a repetition"
            open_ended += repeat[0] in ("*", "+") or repeat[0].endswith(",}")
            groups[-1] = True
            i, closed = repeat.end(), False
            continue
        closed = False
        if char == "(":
            opening, why = _group_opening(pattern, i)
            if why:
                return why
            groups.append(False)
            i += opening
            continue
        if char == ")":
            closed = groups.pop()
            groups[-1] = groups[-1] or closed
        elif char == "\\" and pattern[i + 1 : i + 2] in tuple("123456789"):
            return "holds a back-reference"
        i = _after_atom(pattern, i)
    return "holds too many open-ended repetitions" if open_ended > _REPETITIONS_MAX else ""


def _group_opening(pattern: str, i: int) -> tuple[int, str]:
    """Return the length of a group's opening, and why that kind of group is refused."""
    if not pattern.startswith("(?", i):
        return 1, ""
    if pattern.startswith("(?:", i):
        return 3, ""
    named = re.compile(r"\(\?P<[A-Za-z_]\w*>").match(pattern, i)
    if named:
        return len(named[0]), ""
    return 0, "holds a look-around, flag or back-reference group"


def _after_atom(pattern: str, i: int) -> int:
    """Return where the atom at i ends: an escape, a character class, or one character."""
    if pattern[i] == "\\":
        return i + 2
    if pattern[i] != "[":
        return i + 1
    i += 2 if pattern.startswith("[^", i) else 1
    i += pattern.startswith("]", i)  # a leading ] is a member
    while pattern[i] != "]":
        i += 2 if pattern[i] == "\\" else 1
    return i + 1
