"""Globs over source URIs: `*` stays within a path segment, `**` does not; everything else stands for itself.

Matched by sets of positions, not by a backtracking expression: the time is bounded whatever the glob and the text.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

GLOB_MAX = 512

_GLOB = re.compile(r"[a-z][a-z0-9+.-]*://[!-~]+\Z")
_STARS = re.compile(r"(\*+)")


def glob_fault(glob: str) -> str:
    """Return why a text is no source glob, "" if it is one."""
    if len(glob) > GLOB_MAX:
        return f"is longer than {GLOB_MAX} characters"
    if not _GLOB.match(glob):
        return 'is not a glob such as "s3://**" or "dir:///srv/data/*": a literal scheme, :// and printable ASCII'
    if "***" in glob:
        return "has three stars in a row; ** already matches everything"
    for mark in "?[]{}#\\":
        if mark in glob:
            return f"has {mark}, which means nothing here; only * and ** are wildcards"
    return ""


def glob_scheme(glob: str) -> str:
    """Return the scheme of a glob that has passed `glob_fault`."""
    return glob.partition("://")[0]


def glob_matches(glob: str, source: str) -> bool:
    """Tell whether the whole source matches."""
    pieces = _pieces(glob)
    reached: Sequence[int] = (0,)
    for piece in pieces:
        match piece:
            case "**":
                reached = range(reached[0], len(source) + 1)
            case "*":
                reached = _within_segment(source, reached)
            case _:
                reached = [at + len(piece) for at in reached if source.startswith(piece, at)]
        if not reached:
            return False
    return reached[-1] == len(source)


def _within_segment(source: str, reached: Sequence[int]) -> list[int]:
    """Extend each position up to the end of its segment; positions stay sorted and distinct."""
    extended: list[int] = []
    for at in reached:
        if extended and extended[-1] >= at:
            continue
        end = source.find("/", at)
        extended.extend(range(at, (len(source) if end < 0 else end) + 1))
    return extended


@lru_cache(maxsize=4096)
def _pieces(glob: str) -> tuple[str, ...]:
    return tuple(piece for piece in _STARS.split(glob) if piece)
