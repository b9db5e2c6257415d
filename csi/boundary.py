"""The one table from our errors to gRPC codes, and the one way from a raw request to a raw answer.

Source: https://github.com/container-storage-interface/spec/blob/v1.12.0/spec.md#error-scheme
"""

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from csi.faults import BeyondRange, NoRoom, NotFound, PoolClosed, TooLate, WrongState
from sidemount.host.logs import log
from sidemount.model.errors import (
    BadMessage,
    HostFailure,
    InvalidRequest,
    NotReady,
    OperationPending,
    PolicyDenied,
    PublishConflict,
    UnknownDriverClass,
    Unsupported,
    VolumeError,
)

# The most derived class counts. Kubelet takes ABORTED, UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED for an operation
# that may still come to something; after any other code it may never call unpublish, so nothing may be left behind then.
CODES: Mapping[type[VolumeError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownDriverClass: grpc.StatusCode.INVALID_ARGUMENT,
    PolicyDenied: grpc.StatusCode.PERMISSION_DENIED,
    PublishConflict: grpc.StatusCode.ALREADY_EXISTS,
    OperationPending: grpc.StatusCode.ABORTED,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    HostFailure: grpc.StatusCode.INTERNAL,
    BadMessage: grpc.StatusCode.INTERNAL,
    NotFound: grpc.StatusCode.NOT_FOUND,
    WrongState: grpc.StatusCode.FAILED_PRECONDITION,
    PoolClosed: grpc.StatusCode.FAILED_PRECONDITION,
    BeyondRange: grpc.StatusCode.OUT_OF_RANGE,
    TooLate: grpc.StatusCode.DEADLINE_EXCEEDED,
    NoRoom: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# The message travels percent-encoded in a trailer, of which a client takes 8 KiB.
_MESSAGE_MAX_BYTES = 3000
_ENCODED_BYTES = 3
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

Raw = Callable[[bytes, Any], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: the type of its request, and what answers it."""

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]]


class CallWatch(Protocol):
    """Counts calls."""

    def began(self, method: str) -> None:
        """Take note of a call."""
        ...

    def ended(self, method: str, code: str, elapsed_s: float) -> None:
        """Take note of its answer, or of its end without one."""
        ...


class Unwatched:
    """Counts nothing."""

    def began(self, method: str) -> None:
        """Do nothing."""

    def ended(self, method: str, code: str, elapsed_s: float) -> None:
        """Do nothing."""


def code_of(error: VolumeError) -> grpc.StatusCode:
    """Return the code of an error's class; of several faults together, the first one's."""
    faults: tuple[VolumeError, ...] = getattr(error, "faults", ())
    first = faults[0] if faults else error
    if isinstance(first, HostFailure) and first.errno in _FULL:
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return next(CODES[kind] for kind in type(first).__mro__ if kind in CODES)


def generic_handler(
    service: str, methods: Mapping[str, Method], watch: CallWatch | None = None
) -> grpc.GenericRpcHandler:
    """Return what answers the RPCs of one service, such as "csi.v1.Node"."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(_raw(name, method, watch or Unwatched()))
        for name, method in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, handlers)


def _raw(name: str, method: Method, watch: CallWatch) -> Raw:
    """Return the RPC on bytes: so that a request that cannot be decoded gets a code of ours, too."""

    async def call(raw: bytes, context: Any) -> bytes:
        began = time.monotonic()
        watch.began(name)
        code = grpc.StatusCode.CANCELLED
        try:
            code, told, answer = await _answered(name, method, raw)
        finally:
            elapsed_s = round(time.monotonic() - began, 3)
            watch.ended(name, code.name, elapsed_s)
        if code is grpc.StatusCode.OK:
            log("csi").info("call", method=name, code=code.name, elapsed_s=elapsed_s)
            return answer
        log("csi").warning("call_failed", method=name, code=code.name, fault=told, elapsed_s=elapsed_s)
        await context.abort(code, told)
        raise AssertionError("abort returns never")

    return call


async def _answered(name: str, method: Method, raw: bytes) -> tuple[grpc.StatusCode, str, bytes]:
    try:
        request = method.request.FromString(raw)
    except DecodeError:
        return grpc.StatusCode.INVALID_ARGUMENT, f"{name}: the request is no {method.request.__name__}", b""
    try:
        answer = await method.answer(request)
        return grpc.StatusCode.OK, "", answer.SerializeToString()
    except VolumeError as error:
        return code_of(error), _bounded(str(error)), b""
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Not this call was cancelled but what it waited for; gRPC would never answer.
        return grpc.StatusCode.UNAVAILABLE, f"{name}: the plugin is ending; try again", b""
    except Exception as error:
        logging.getLogger("sidemount.csi").error("call_broken", extra={"method": name}, exc_info=error)
        return grpc.StatusCode.INTERNAL, f"{name} failed ({type(error).__name__}); the log has the trace", b""


def _bounded(message: str) -> str:
    """Return what a trailer can hold: no lone surrogate, and not too long. Never empty."""
    clean = message.encode("utf-8", "replace").decode()
    size = 0
    for place, char in enumerate(clean):
        size += len(char.encode()) * (1 if char.isascii() and char.isprintable() else _ENCODED_BYTES)
        if size > _MESSAGE_MAX_BYTES:
            return f"{clean[:place]}…"
    return clean or "failed"
