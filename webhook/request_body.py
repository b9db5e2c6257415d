"""The body of a request: bounded in size, in time and in memory altogether."""

import asyncio
from functools import lru_cache

from aiohttp import hdrs
from aiohttp.web import BaseRequest, RequestPayloadError

from webhook.limits import BodyBudget, Limits
from webhook.response import JSON, HttpRefusal

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RETRY = (("Retry-After", "1"),)


def check_headers(request: BaseRequest) -> None:
    """Raise HttpRefusal unless the body is declared to be plain JSON."""
    headers = request.headers
    content_type = headers.get(hdrs.CONTENT_TYPE, "")
    if not _is_json(content_type):
        raise HttpRefusal(415, f"Content-Type must be {JSON}, not {content_type or 'missing'}")
    if hdrs.CONTENT_ENCODING in headers:
        # Refused and never decoded: a few kilobytes of gzip can mean gigabytes.
        raise HttpRefusal(415, "Content-Encoding is not supported: send the JSON as it is", is_last=True)


async def read_body(
    request: BaseRequest, limits: Limits, budget: BodyBudget, deadline: float
) -> tuple[bytes, int]:
    """Return the whole body, and how much of `budget` it took: to be given back with the body.

    `deadline` is the loop's time. Raises: HttpRefusal.
    """
    content = request.content
    if content.is_eof():
        # It came with the headers, as small ones do: nothing to wait for, and already in memory.
        body = content.read_nowait(-1)
        if len(body) > limits.body_bytes:
            raise _too_large(limits)
        return body, 0
    _check_declared(request, limits)
    if hdrs.EXPECT in request.headers:
        _answer_expectation(request)
    gathered = bytearray()
    try:
        async with asyncio.timeout_at(deadline):
            while chunk := await content.readany():
                if len(gathered) + len(chunk) > limits.body_bytes:
                    raise _too_large(limits)
                if not budget.take(len(chunk)):
                    raise HttpRefusal(503, "too many large requests at once", headers=_RETRY, is_last=True)
                gathered += chunk
    except BaseException as error:
        budget.give_back(len(gathered))
        raise _refusal_of(error) from error
    return bytes(gathered), len(gathered)


def _refusal_of(error: BaseException) -> BaseException:
    match error:
        case TimeoutError():
            return HttpRefusal(408, "the request body did not arrive within its time", is_last=True)
        case RequestPayloadError():
            return HttpRefusal(400, "the request body is malformed", is_last=True)
    return error


def _too_large(limits: Limits) -> HttpRefusal:
    return HttpRefusal(413, f"the request body is larger than {limits.body_bytes} bytes", is_last=True)


def _check_declared(request: BaseRequest, limits: Limits) -> None:
    declared = request.headers.get(hdrs.CONTENT_LENGTH)
    if declared is not None and int(declared) > limits.body_bytes:
        raise _too_large(limits)


def _answer_expectation(request: BaseRequest) -> None:
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        raise HttpRefusal(417, "only Expect: 100-continue can be met", is_last=True)
    if request.transport is not None:
        request.transport.write(_CONTINUE)


@lru_cache(maxsize=128)
def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON
