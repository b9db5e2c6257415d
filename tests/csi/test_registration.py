"""Registration with kubelet: the socket in its directory, what is answered there, and what becomes of it."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio
import pytest

from csi.proto import registration_pb2
from csi.registration import SERVICE, SOCKET, Registration
from tests.csi.plugin import Plugin
from tests.csi.wire import read_fields, written
from tests.host.mount_node import eventually

_ENDPOINT = "/var/lib/kubelet/plugins/csi.sidemount.io/csi.sock"
_WITHIN_S = 20.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name: a socket's path has 107 bytes at most."""
    with TemporaryDirectory(prefix="sm") as directory:
        yield Path(directory)


@asynccontextmanager
async def _kept(directory: Path, *, silence_s: float = 600.0) -> AsyncIterator[Registration]:
    registration = Registration(str(directory), _ENDPOINT, look_s=0.02, silence_s=silence_s)
    task = asyncio.create_task(registration.run())
    try:
        yield registration
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await registration.stop()


async def _call(path: Path, method: str, request: bytes = b"") -> bytes:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        answer: bytes = await channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=_WITHIN_S)
        return answer


async def _until(condition: Any) -> None:
    async with asyncio.timeout(_WITHIN_S):
        while not condition():  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.01)


async def _told(path: Path, **status: Any) -> None:
    request = registration_pb2.RegistrationStatus(**status).SerializeToString()
    assert await _call(path, "NotifyRegistrationStatus", request) == b""


@pytest.mark.asyncio
async def test_kubelet_is_told_who_we_are_byte_by_byte(place: Path) -> None:
    """S4-36. Numbers of pluginregistration v1, decoded by a second encoder's reader."""
    async with _kept(place):
        path = place / SOCKET
        await _until(path.is_socket)
        assert read_fields(await _call(path, "GetInfo")) == {
            1: [b"CSIPlugin"],
            2: [b"csi.sidemount.io"],
            3: [_ENDPOINT.encode()],
            4: [b"1.0.0"],
        }
        assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(place) == []


@pytest.mark.asyncio
async def test_what_kubelet_says_is_what_health_says(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with _kept(place) as registration:
        path = place / SOCKET
        await _until(path.is_socket)
        assert registration.fault == "kubelet has not asked yet"
        await _call(path, "NotifyRegistrationStatus", written({1: 1}))
        assert registration.fault == ""
        await _told(path, error="no CSINode")
        assert registration.fault == "kubelet refuses to register csi.sidemount.io: no CSINode"
        await _told(path, plugin_registered=True)
        assert registration.fault == ""


@pytest.mark.asyncio
@pytest.mark.parametrize("there", ["nothing", "stale", "file"])
async def test_the_socket_is_made_anew_when_another_lies_there(place: Path, there: str) -> None:
    """Kubelet has made its directory anew, or somebody has cleared it."""
    async with _kept(place) as registration:
        path = place / SOCKET
        await _until(path.is_socket)
        await _told(path, plugin_registered=True)
        first = path.stat().st_ctime_ns  # numbers of files come again
        if there == "nothing":
            path.unlink()
        elif there == "stale":
            _stale_socket(place / "other")
            (place / "other").rename(path)
        else:
            (place / "other").write_text("")
            (place / "other").rename(path)
        if there == "file":
            await _until(lambda: "no socket" in registration.fault)
            path.unlink()
        await _until(lambda: registration.fault and path.is_socket() and path.stat().st_ctime_ns != first)
        assert await _call(path, "GetInfo")


@pytest.mark.asyncio
async def test_a_stale_socket_of_a_plugin_that_was_killed_is_replaced(place: Path) -> None:
    _stale_socket(place / SOCKET)
    async with _kept(place) as registration:
        await _until(lambda: registration.is_open)
        assert await _call(place / SOCKET, "GetInfo")


@pytest.mark.asyncio
async def test_a_kubelet_that_says_nothing_is_shown_the_socket_again(place: Path) -> None:
    """It forgets a socket whose event it has missed. Once it has registered us nothing is touched any more."""
    async with _kept(place, silence_s=0.1) as registration:
        path = place / SOCKET
        await _until(path.is_socket)
        made: set[int] = set()
        while len(made) < 3:
            await asyncio.sleep(0.01)
            with suppress(FileNotFoundError):  # between one and the next
                made.add(path.stat().st_ctime_ns)
        async with asyncio.timeout(_WITHIN_S):
            while registration.fault:
                with suppress(grpc.aio.AioRpcError):  # as kubelet finds out whose socket is being made anew
                    await _told(path, plugin_registered=True)
        last = path.stat().st_ctime_ns
        await asyncio.sleep(0.3)
        assert path.stat().st_ctime_ns == last


@pytest.mark.asyncio
async def test_a_directory_that_cannot_be_used_is_told_and_tried_again(place: Path) -> None:
    directory = place / "plugins_registry"
    directory.write_text("a file")
    async with _kept(directory) as registration:
        await _until(lambda: "plugins_registry" in registration.fault)
        directory.unlink()
        await _until((directory / SOCKET).is_socket)


def _stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.fuse
@pytest.mark.root
def test_a_plugin_is_registered_from_its_readiness_to_its_sigterm(plugin: Plugin) -> None:
    """SIGTERM takes the registration away, SIGKILL cannot, and the next start replaces what is left."""
    directory = plugin.node.work / "plugins_registry"
    directory.mkdir()
    plugin.stop()
    plugin.flags = (*plugin.flags, "--registration-dir", str(directory))
    plugin.start()
    path = directory / SOCKET
    eventually(path.is_socket, what="the socket")
    info = registration_pb2.PluginInfo.FromString(asyncio.run(_call(path, "GetInfo")))
    assert info.endpoint == str(plugin.socket)
    plugin.kill()
    stale = os.lstat(path).st_ctime_ns
    plugin.start()
    eventually(lambda: path.exists() and os.lstat(path).st_ctime_ns != stale, what="a socket of its own")
    assert plugin.stop() == 0
    assert not path.exists()
