"""Text without secrets, in whatever spelling a program has put them there: as they are, by lines, by words, escaped, encoded."""

import base64
import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

HIDDEN = "***"
_CHARS_MIN = 4  # shorter ones would blacken everything


def spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """Return what must not be shown of secrets, longest first, so that no part of one stays of a longer one."""
    found: set[str] = set()
    for secret in secrets:
        whole = secret.strip()
        for encoded in {secret, whole}:
            found.add(base64.b64encode(encoded.encode("utf-8", "surrogateescape")).decode("ascii"))
        for part in {whole, *whole.splitlines(), *whole.split()}:
            found.update(_spelled(part))
    return tuple(sorted((text for text in found if len(text) >= _CHARS_MIN), key=len, reverse=True))


def without(text: str, hidden: Iterable[str]) -> str:
    """Return the text with `***` for each of the spellings."""
    for spelling in hidden:
        text = text.replace(spelling, HIDDEN)
    return text


def _spelled(part: str) -> Iterator[str]:
    yield part
    yield json.dumps(part)[1:-1]
    yield json.dumps(part, ensure_ascii=False)[1:-1]
    yield repr(part)[1:-1]
    for safe in ("", "/"):
        yield quote(part, safe=safe, errors="surrogateescape")
        yield quote_plus(part, safe=safe, errors="surrogateescape")
