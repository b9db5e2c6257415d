"""The short way for plain requests takes nothing that a general parser would read otherwise."""

import asyncio

import pytest
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st

from webhook.deadline import answer_within_s
from webhook.metrics import Path
from webhook.plain_request import HEAD_MAX, PlainHead, parse_plain_head

GO = (
    b"POST /mutate?timeout=3s HTTP/1.1\r\nHost: webhook.sidemount-system.svc:443\r\n"
    b"User-Agent: kube-apiserver-admission\r\nContent-Length: 5\r\nAccept: application/json, */*\r\n"
    b"Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\nhello"
)


def test_what_the_api_server_sends_is_plain() -> None:
    head = parse_plain_head(GO, 100)
    assert head == PlainHead(Path.MUTATE, "timeout=3s", len(GO) - 5, 5)
    assert parse_plain_head(GO.replace(b"/mutate?timeout=3s", b"/validate"), 100) == PlainHead(
        Path.VALIDATE, "", len(GO) - 5 - 9, 5
    )


@pytest.mark.parametrize(
    "change",
    [
        (b"POST", b"GET"),
        (b"/mutate", b"/mutate/"),
        (b"/mutate", b"//mutate"),
        (b"timeout=3s", b"a=%20"),
        (b"timeout=3s", b"a#b"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"HTTP/1.1", b"http/1.1"),
        (b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
        (b"Host: webhook", b"Host:  webhook"),
        (b"Host: webhook", b"Host:webhook"),
        (b"Host: ", b"Hosts: "),
        (b"Host: webhook.sidemount-system.svc:443\r\n", b""),
        (b"Accept-Encoding: gzip", b"Host: other"),
        (b"Accept-Encoding: gzip", b"Content-Length: 5"),
        (b"Accept-Encoding: gzip", b"Transfer-Encoding: chunked"),
        (b"Accept-Encoding: gzip", b"Content-Encoding: gzip"),
        (b"Accept-Encoding: gzip", b"Expect: 100-continue"),
        (b"Accept-Encoding: gzip", b"Connection: close"),
        (b"Accept-Encoding: gzip", b"Upgrade: h2c"),
        (b"Accept-Encoding: gzip", b"X: y"),
        (b"Accept-Encoding: gzip", b" folded"),
        (b"Accept-Encoding: gzip", b"accept-encoding : gzip"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: gz\x00ip"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: gz\rip"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: gz\xffip"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: gzip "),
        (b"Content-Type: application/json", b"Content-Type: application/json; charset=utf-8"),
        (b"Content-Type: application/json", b"Content-Type: text/plain"),
        (b"Content-Length: 5", b"Content-Length: 05"),
        (b"Content-Length: 5", b"Content-Length: 0"),
        (b"Content-Length: 5", b"Content-Length: -5"),
        (b"Content-Length: 5", b"Content-Length: 101"),
        (b"Content-Length: 5", b"Content-Length: \xd9\xa3"),
        (b"Content-Length: 5", b"Content-Length: 5, 5"),
        (b"Accept-Encoding: gzip\r\n\r\n", b"Accept-Encoding: gzip\n\n"),
        (b"Accept-Encoding: gzip\r\n\r\n", b"Accept-Encoding: gzip\r\n"),
        (b"Accept-Encoding: gzip", b"Accept-Encoding: " + b"a" * HEAD_MAX),
    ],
)
def test_anything_else_goes_the_general_way(change: tuple[bytes, bytes]) -> None:
    assert change[0] in GO
    assert parse_plain_head(GO.replace(*change, 1), 100) is None


_names = st.sampled_from(
    [b"Host", b"host", b"Content-Length", b"Content-Type", b"Accept", b"User-Agent", b"Traceparent", b"X-Y", b"Transfer-Encoding", b""]
)  # fmt: skip
_values = st.sampled_from(
    [b"a", b"5", b"application/json", b"chunked", b"", b"a b", b"\x7f", b"a\tb", b"6,"]
) | st.binary(max_size=4)
_fields = st.lists(st.tuples(_names, st.sampled_from([b": ", b":", b" : "]), _values), max_size=4)
_lines = st.sampled_from(
    [
        b"POST /mutate HTTP/1.1",
        b"POST /validate?timeout=3s HTTP/1.1",
        b"POST /mutate?a=b HTTP/1.1",
        b"GET / HTTP/1.1",
    ]
)


@settings(max_examples=500, deadline=None)
@given(line=_lines, fields=_fields, kept=st.integers(0, 3), end=st.sampled_from([b"\r\n", b"\n"]))
def test_aiohttp_reads_every_plain_request_the_same(
    line: bytes, fields: list[tuple[bytes, bytes, bytes]], kept: int, end: bytes
) -> None:
    """Whatever is taken as plain, a general parser takes as the same request with the same body."""
    usual = [
        (b"Host", b": ", b"a"),
        (b"Content-Type", b": ", b"application/json"),
        (b"Content-Length", b": ", b"5"),
    ]
    content = end.join(
        [line, *(name + colon + value for name, colon, value in (*usual[:kept], *fields)), b"", b"hello"]
    )
    head = parse_plain_head(content, 100)
    if head is None:
        return
    target, headers, body = asyncio.run(_parse_with_aiohttp(content[: head.head_size + head.body_size]))
    path, _, query = target.partition("?")
    assert (path, query) == (f"/{head.question.value}", head.query)
    assert headers["Content-Length"] == str(head.body_size)
    assert body == content[head.head_size : head.head_size + head.body_size]


async def _parse_with_aiohttp(content: bytes) -> tuple[str, dict[str, str], bytes]:
    class Protocol(asyncio.Protocol):
        def resume_reading(self, resume_parser: bool = True) -> None:
            """Never paused."""

    parser = HttpRequestParser(Protocol(), asyncio.get_running_loop(), 2**16)  # type: ignore[arg-type]
    try:
        messages, _, rest = parser.feed_data(content)
    except HttpProcessingError as error:
        raise AssertionError(f"aiohttp refuses what was taken as plain: {error}") from error
    assert rest == b""
    ((message, payload),) = messages
    assert payload.is_eof()
    return message.path, dict(message.headers), payload.read_nowait(-1)


@pytest.mark.parametrize(
    ("query", "within"),
    [
        ("timeout=10s", 9.5),
        ("timeout=1s", 0.9),
        ("timeout=3", 2.7),
        ("timeout=500ms", 0.45),
        ("timeout=1m", 30.0),
        ("timeout=30s", 30.0),
        ("timeout=0s", 30.0),
        ("timeout=-1s", 30.0),
        ("timeout=junk", 30.0),
        ("timeout=", 30.0),
        ("timeout=1s&timeout=2s", 1.8),
        ("a=b", 30.0),
        ("", 30.0),
        ("timeout=99999999999s", 30.0),
        ("&".join(f"a{n}=b" for n in range(100)), 30.0),
    ],
)
def test_the_callers_timeout_is_kept_with_a_margin(query: str, within: float) -> None:
    assert answer_within_s(query, 30.0) == pytest.approx(within)
