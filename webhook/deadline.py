"""The `?timeout=` that the API server sends: how long it waits for us."""

import re
from functools import lru_cache
from urllib.parse import parse_qsl

_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s|m)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_MARGIN = 0.1  # of the time given, for the way back
_MARGIN_MAX_S = 0.5
_MAX_FIELDS = 16


@lru_cache(maxsize=128)
def answer_within_s(query: str, longest_s: float) -> float:
    """Return the seconds after its first byte within which a request must be answered.

    A missing, unreadable or zero timeout counts as none: the longest holds. Source: `?timeout=10s` of the API server.
    """
    given = _timeout_s(query)
    if given is None or given >= longest_s:
        return longest_s
    return given - min(given * _MARGIN, _MARGIN_MAX_S)


def _timeout_s(query: str) -> float | None:
    try:
        fields = dict(parse_qsl(query, max_num_fields=_MAX_FIELDS))
    except ValueError:
        return None
    match = _DURATION.fullmatch(fields.get("timeout", ""))
    if match is None:
        return None
    return float(match[1]) * _UNIT_S[match[2]] or None
