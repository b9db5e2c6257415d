"""Every error of ours has a code, and no answer says more than it may."""

import asyncio
from typing import Any

import grpc
import pytest

from csi.boundary import CODES, Method, code_of, generic_handler
from csi.faults import BeyondRange, NoRoom, NotFound, TooLate, WrongState
from csi.proto import csi_pb2
from sidemount.model.errors import Faults, HostFailure, InvalidRequest, PolicyDenied, VolumeError


def test_every_class_of_the_error_tree_has_a_code_of_its_own() -> None:
    missing = [kind for kind in _tree(VolumeError) if kind not in CODES and kind is not Faults]
    assert missing == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), 3),
        (TooLate("x"), 4),
        (NotFound("x"), 5),
        (PolicyDenied("x"), 7),
        (NoRoom("x"), 8),
        (WrongState("x"), 9),
        (BeyondRange("x"), 11),
        (HostFailure("x", errno=5), 13),
        (HostFailure("x", errno=28), 8),
        (Faults((PolicyDenied("x"), InvalidRequest("y"))), 7),
    ],
)
def test_codes(error: VolumeError, code: int) -> None:
    assert code_of(error).value[0] == code


def test_an_unexpected_error_is_internal_and_tells_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Any) -> Any:
        raise KeyError("s3cr3t")

    code, told = _call(broken)
    assert code is grpc.StatusCode.INTERNAL
    assert "KeyError" in told
    assert "s3cr3t" not in told
    assert "Traceback" not in told
    assert "call_broken" in caplog.text


def test_bytes_that_are_no_message_are_an_invalid_argument() -> None:
    async def never(request: Any) -> Any:
        raise AssertionError

    code, told = _call(never, b"\xff\xff\xff")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "NodeGetInfoRequest" in told


@pytest.mark.parametrize("message", ["ü" * 100_000, "\ud800" * 50, "line\n\0\x7f" * 2000, ""])
def test_any_message_fits_into_what_a_client_takes(message: str) -> None:
    async def refusing(request: Any) -> Any:
        raise InvalidRequest(message)

    code, told = _call(refusing)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert told


def test_an_operation_that_was_cancelled_beneath_its_call_is_answered() -> None:
    async def cancelled(request: Any) -> Any:
        raise asyncio.CancelledError

    code, told = _call(cancelled)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "try again" in told


def _tree(kind: type[VolumeError]) -> list[type[VolumeError]]:
    own = [
        found for found in kind.__subclasses__() if found.__module__.startswith(("sidemount.model", "csi."))
    ]
    return own + [deeper for found in own for deeper in _tree(found)]


def _call(answer: Any, raw: bytes = b"") -> tuple[grpc.StatusCode, str]:
    """Answer one call of a real server and return code and message as a client sees them."""

    async def main() -> tuple[grpc.StatusCode, str]:
        server = grpc.aio.server()
        methods = {"NodeGetInfo": Method(csi_pb2.NodeGetInfoRequest, answer)}
        server.add_generic_rpc_handlers((generic_handler("csi.v1.Node", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                try:
                    await channel.unary_unary("/csi.v1.Node/NodeGetInfo")(raw, timeout=20)
                except grpc.aio.AioRpcError as error:
                    return error.code(), error.details() or ""
                raise AssertionError("no error")
        finally:
            await server.stop(None)

    return asyncio.run(main())
