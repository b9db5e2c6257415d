"""The socket's rules: what may be there, who may connect, and that it is served again at the same place."""

import asyncio
import os
import shutil
import socket
import stat
from pathlib import Path

import grpc
import pytest

from csi import identity
from csi.boundary import Method
from csi.endpoint import parse_endpoint, prepare_socket
from csi.faults import WrongState
from csi.identity import IdentityService
from csi.proto import csi_pb2
from csi.server import Server
from sidemount.model.errors import InvalidRequest, OperationPending


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/run/csi.sock",
        "tcp://127.0.0.1:1",
        "unix://run/csi.sock",
        "unix:///run/csi",
        "unix:///run/../csi.sock",
        "unix:///run//csi.sock",
        "unix:///run/\0csi.sock",
        f"unix:///{'d' * 100}/csi.sock",
    ],
)
def test_endpoints_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is|does|names"):
        parse_endpoint(text)


def test_the_longest_path_that_a_socket_holds() -> None:
    path = f"/{'d' * 101}.sock"
    assert len(path) == 107
    assert parse_endpoint(f"unix://{path}") == path


def test_a_socket_that_nobody_listens_at_is_removed_and_one_that_is_served_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(OperationPending, match="another process serves it"):
            prepare_socket(path)
        assert os.path.exists(path)
    prepare_socket(path)
    assert not os.path.exists(path)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_is_never_removed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "csi.sock"
    if kind == "file":
        path.write_text("theirs")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    with pytest.raises(InvalidRequest, match="no socket"):
        prepare_socket(str(path))
    assert os.path.lexists(path)


@pytest.mark.parametrize("name", ["csi.sock", "with space %41 ü#?.sock"])
def test_it_is_served_at_the_very_path_and_again_after_a_restart(tmp_path: Path, name: str) -> None:
    path = tmp_path / "made" / name

    async def main() -> None:
        for _ in range(2):
            server = Server(str(path), {identity.SERVICE: IdentityService(lambda: True, "").methods()})
            await server.start()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.listdir(path.parent) == [name]
            assert await asyncio.to_thread(_probe, path)
            await server.stop(1)

    asyncio.run(main())


def test_a_socket_that_somebody_takes_away_is_made_again_and_costs_no_call(tmp_path: Path) -> None:
    path = tmp_path / "made" / "csi.sock"

    async def main() -> None:
        server = Server(str(path), {identity.SERVICE: IdentityService(lambda: True, "").methods()})
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            probe = channel.unary_unary("/csi.v1.Identity/Probe")
            await probe(b"")
            shutil.rmtree(path.parent)
            while not path.exists():
                await probe(b"")  # who is connected stays so
                await asyncio.sleep(0.1)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert await asyncio.to_thread(_probe, path)
        await server.stop(1)
        assert not path.exists()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_call_under_way_is_finished_when_the_server_ends(tmp_path: Path) -> None:
    async def main() -> None:
        service = IdentityService(lambda: True, "")
        began = asyncio.Event()

        async def slow(request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
            began.set()
            await asyncio.sleep(0.3)
            return csi_pb2.ProbeResponse()

        path = tmp_path / "csi.sock"
        methods = {**service.methods(), "Probe": Method(csi_pb2.ProbeRequest, slow)}
        server = Server(str(path), {identity.SERVICE: methods})
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary("/csi.v1.Identity/Probe")(b"")
            await began.wait()
            await server.stop(5)
            assert await call == b""

    asyncio.run(main())


def test_without_the_fuse_device_the_probe_says_so(tmp_path: Path) -> None:
    service = IdentityService(lambda: True, str(tmp_path / "fuse"))

    async def main() -> None:
        with pytest.raises(WrongState, match="modprobe fuse"):
            await service.methods()["Probe"].answer(csi_pb2.ProbeRequest())

    asyncio.run(main())


def _probe(path: Path) -> bool:
    """Connect as a client does that knows nothing of gRPC's own spelling of paths."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.settimeout(5)
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        return len(client.recv(9)) > 0
