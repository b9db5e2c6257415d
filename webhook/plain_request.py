"""The head of the one request that matters, as the API server sends it, read without a general HTTP parser.

A whole review in one Content-Length body, with none but well-known headers, each once: nothing in it can mean two things to two
readers. Whatever is not exactly that is left to aiohttp's parser.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from webhook.metrics import Path

HEAD_MAX = 4096

_REQUEST_LINE = re.compile(rb"POST (/mutate|/validate)(?:\?([A-Za-z0-9=&.]{0,200}))? HTTP/1\.1")
_VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")
_LENGTH = re.compile(rb"[1-9][0-9]{0,7}")
_QUESTIONS = {b"/mutate": Path.MUTATE, b"/validate": Path.VALIDATE}

# What client-go sends, with the tracing header of an API server that traces. None of the others changes what is answered.
_HOST, _TYPE, _LENGTH_FIELD = b"host", b"content-type", b"content-length"
_FIELDS = frozenset(
    {_HOST, _TYPE, _LENGTH_FIELD, b"user-agent", b"accept", b"accept-encoding", b"traceparent"}
)


@dataclass(frozen=True, slots=True)
class PlainHead:
    """Head of a request whose body follows: `head_size` and `body_size` in bytes."""

    question: Path
    query: str
    head_size: int
    body_size: int


def parse_plain_head(received: bytes, body_max: int) -> PlainHead | None:
    """Return the head that `received` begins with, None if it is anything but plain, incomplete or with a larger body."""
    end = received.find(b"\r\n\r\n", 0, HEAD_MAX)
    if end < 0:
        return None
    head = _parse(received[:end])
    return head if head is not None and head.body_size <= body_max else None


# Pods of one workload differ in their names' random ends: their reviews have the same size and so the same head.
@lru_cache(maxsize=1024)
def _parse(text: bytes) -> PlainHead | None:
    request_line, *lines = text.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(request_line)
    if line is None:
        return None
    fields: dict[bytes, bytes] = {}
    for field in lines:
        name, _, value = field.partition(b": ")
        name = name.lower()
        if name not in _FIELDS or name in fields or not _VALUE.fullmatch(value):
            return None
        fields[name] = value
    length = fields.get(_LENGTH_FIELD, b"")
    if fields.get(_TYPE) != b"application/json" or _HOST not in fields or not _LENGTH.fullmatch(length):
        return None
    query = line[2]
    return PlainHead(_QUESTIONS[line[1]], query.decode() if query else "", len(text) + 4, int(length))
