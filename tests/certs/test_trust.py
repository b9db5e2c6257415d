"""What a client accepts: by the pure verdict, and by a real handshake that has to agree with it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kubernetes.aio import client

from certs.__main__ import main
from certs.api_clock import ApiClock
from certs.authority import Issued, create_authority, issue_serving
from certs.handshake import shake_hands
from certs.hosts import parse_hosts
from certs.live import ServiceName
from certs.pem import parse_bundle, render_bundle, render_certificate, render_key
from certs.replicas import ready_addresses, replicas_verify
from certs.trust import Trust, Verdict, verify
from sidemount.host.cluster import Cluster
from tests.certs.fake_cluster import SLICES, FakeCluster, serving

NOW = datetime.now(UTC).replace(microsecond=0)
NAME = "webhook.sidemount-system.svc"
DAY = timedelta(days=1)


def _by_hand(
    subject: str,
    signer: Issued | None,
    *,
    is_authority: bool,
    names: tuple[x509.GeneralName, ...] = (),
    usage: x509.ObjectIdentifier | None = None,
    begins: datetime = NOW - DAY,
    ends: datetime = NOW + DAY,
) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(signer.certificate.subject if signer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return Issued(builder.sign(signer.key if signer else key, hashes.SHA256()), key)


AUTHORITY = create_authority("an authority", now=NOW)
TWIN = create_authority("an authority", now=NOW)
LEAF = issue_serving(AUTHORITY, parse_hosts([NAME, "127.0.0.1", "*.wild.svc"]), now=NOW)
OLD = _by_hand("old", None, is_authority=True, begins=NOW - 9 * DAY, ends=NOW - DAY)
ROOT = _by_hand("root", None, is_authority=True)
MIDDLE = _by_hand("middle", ROOT, is_authority=True)
TOO_DEEP = _by_hand("too deep", AUTHORITY, is_authority=True)
HOSTS = tuple(parse_hosts([NAME]))
_CASES = [
    pytest.param(LEAF, (), [AUTHORITY], NAME, Trust.VERIFIED, id="good"),
    pytest.param(LEAF, (), [TWIN, AUTHORITY], NAME, Trust.VERIFIED, id="two-authorities-of-one-name"),
    pytest.param(LEAF, (), [AUTHORITY], "127.0.0.1", Trust.VERIFIED, id="address"),
    pytest.param(LEAF, (), [AUTHORITY], "a.wild.svc", Trust.VERIFIED, id="wildcard"),
    pytest.param(LEAF, (), [AUTHORITY], "a.b.wild.svc", Trust.WRONG_NAME, id="wildcard-is-one-label"),
    pytest.param(LEAF, (), [AUTHORITY], "other.svc", Trust.WRONG_NAME, id="other-name"),
    pytest.param(LEAF, (), [AUTHORITY], "127.0.0.2", Trust.WRONG_NAME, id="other-address"),
    pytest.param(LEAF, (), [TWIN], NAME, Trust.UNKNOWN_AUTHORITY, id="twin"),
    pytest.param(LEAF, (), [OLD], NAME, Trust.UNKNOWN_AUTHORITY, id="other-authority"),
    pytest.param(LEAF, (), [], NAME, Trust.NO_BUNDLE, id="no-bundle"),
    pytest.param(
        _by_hand("l", AUTHORITY, is_authority=False, names=HOSTS, ends=NOW - timedelta(hours=1)),
        (), [AUTHORITY], NAME, Trust.EXPIRED, id="expired",
    ),
    pytest.param(
        _by_hand("l", AUTHORITY, is_authority=False, names=HOSTS, begins=NOW + timedelta(hours=1)),
        (), [AUTHORITY], NAME, Trust.NOT_YET_VALID, id="not-yet",
    ),
    pytest.param(
        _by_hand("l", AUTHORITY, is_authority=False, names=HOSTS, usage=ExtendedKeyUsageOID.CLIENT_AUTH),
        (), [AUTHORITY], NAME, Trust.NOT_FOR_SERVERS, id="client-only",
    ),
    pytest.param(
        _by_hand(NAME, AUTHORITY, is_authority=False), (), [AUTHORITY], NAME, Trust.WRONG_NAME, id="common-name-only"
    ),
    pytest.param(
        _by_hand("l", OLD, is_authority=False, names=HOSTS), (), [OLD], NAME, Trust.AUTHORITY_EXPIRED, id="old-authority"
    ),
    pytest.param(
        _by_hand("l", MIDDLE, is_authority=False, names=HOSTS), (MIDDLE,), [ROOT], NAME, Trust.VERIFIED, id="chain"
    ),
    pytest.param(
        _by_hand("l", TOO_DEEP, is_authority=False, names=HOSTS), (TOO_DEEP,), [AUTHORITY], NAME,
        Trust.UNKNOWN_AUTHORITY, id="path-length",
    ),
    pytest.param(
        _by_hand("l", MIDDLE, is_authority=False, names=HOSTS), (), [ROOT], NAME, Trust.UNKNOWN_AUTHORITY, id="gap"
    ),
    pytest.param(
        _by_hand("l", MIDDLE, is_authority=False, names=HOSTS), (), [MIDDLE], NAME, Trust.VERIFIED, id="middle-trusted"
    ),
    pytest.param(
        _by_hand("l", LEAF, is_authority=False, names=HOSTS), (LEAF,), [AUTHORITY], NAME, Trust.UNKNOWN_AUTHORITY,
        id="signed-by-a-leaf",
    ),
    pytest.param(
        self_signed := _by_hand("l", None, is_authority=False, names=HOSTS), (), [self_signed], NAME, Trust.VERIFIED,
        id="leaf-in-the-bundle",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("leaf", "between", "bundle", "name", "trust"), _CASES)
def test_the_pure_verdict_and_a_real_handshake_agree(
    tmp_path: Path, leaf: Issued, between: tuple[Issued, ...], bundle: list[Issued], name: str, trust: Trust
) -> None:
    chain = [issued.certificate for issued in (leaf, *between)]
    trusted = [issued.certificate for issued in bundle]
    verdict = verify(chain, trusted, name, now=NOW)
    assert verdict.trust is trust
    assert bool(verdict.message) != verdict.is_verified

    async def shake() -> Verdict:
        async with _tls_server(tmp_path, leaf, chain) as port:
            return await shake_hands("127.0.0.1", port, name, trusted)

    met = asyncio.run(shake())
    # OpenSSL does not tell an expired authority from an expired certificate.
    expected = Trust.EXPIRED if trust is Trust.AUTHORITY_EXPIRED else trust
    assert met.trust is expected, met


def test_no_chain_is_no_certificate() -> None:
    assert verify([], [AUTHORITY.certificate], NAME, now=NOW).trust is Trust.NO_CERTIFICATE


@contextlib.asynccontextmanager
async def _tls_server(
    directory: Path, leaf: Issued, chain: list[x509.Certificate], host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (directory / "served.crt").write_bytes(render_bundle(chain))
    (directory / "served.key").write_bytes(render_key(leaf.key))
    context.load_cert_chain(directory / "served.crt", directory / "served.key")

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(close, host, port, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_whatever_does_not_speak_tls_is_told_apart_and_waited_for_in_bounds() -> None:
    async def work() -> None:
        async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(babble, "127.0.0.1", 0) as plain:
            port = plain.sockets[0].getsockname()[1]
            verdict = await shake_hands("127.0.0.1", port, NAME, [AUTHORITY.certificate])
            assert verdict.trust in (Trust.NOT_TLS, Trust.UNREACHABLE)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            verdict = await shake_hands("127.0.0.1", port, NAME, [AUTHORITY.certificate], timeout_s=0.3)
            assert verdict.trust is Trust.TIMED_OUT
        verdict = await shake_hands("127.0.0.1", port, NAME, [AUTHORITY.certificate])
        assert verdict.trust is Trust.UNREACHABLE
        assert f"127.0.0.1:{port}" in verdict.message

    asyncio.run(work())


def test_a_bundle_is_read_as_an_api_server_reads_it() -> None:
    one, two = render_certificate(AUTHORITY.certificate), render_certificate(TWIN.certificate)
    key = render_key(AUTHORITY.key)
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    content = (
        b"# comment\n"
        + one
        + broken
        + key
        + b"junk\xff"
        + one.replace(b"\n", b"\r\n")
        + two
        + b"-----BEGIN CERT"
    )
    assert parse_bundle(content) == (AUTHORITY.certificate, TWIN.certificate)
    assert parse_bundle(b"") == parse_bundle(b"\n") == ()


def test_replicas_are_seen_by_handshakes_with_every_ready_endpoint(tmp_path: Path) -> None:
    """Retiring an authority needs all of them: one that is behind, gone, or unknown to be ready holds it up."""

    async def work() -> None:
        with serving(FakeCluster()) as server:
            clock = ApiClock(lambda: NOW, lambda: 0.0)
            async with Cluster(client.Configuration(host=server.url), clock) as cluster:
                new_leaf, old_leaf = LEAF, issue_serving(TWIN, HOSTS, now=NOW)
                (tmp_path / "a").mkdir()
                (tmp_path / "b").mkdir()
                service = ServiceName("sidemount-system", "webhook")

                async def verified(port: int, *endpoints: Mapping[str, object]) -> bool:
                    labels = {"kubernetes.io/service-name": "webhook"}
                    document = {"metadata": {"labels": labels}, "endpoints": list(endpoints)}
                    server.put(f"{SLICES}/webhook-1", document)
                    return await replicas_verify(cluster, service, port, [AUTHORITY.certificate])

                async with (
                    _tls_server(tmp_path / "a", new_leaf, [new_leaf.certificate]) as port,
                    _tls_server(tmp_path / "b", old_leaf, [old_leaf.certificate], "127.0.0.2", port),
                ):
                    good = {"addresses": ["127.0.0.1"], "conditions": {"ready": True}}
                    behind = {"addresses": ["127.0.0.2"], "conditions": {}}
                    assert not await replicas_verify(cluster, service, port, [AUTHORITY.certificate])
                    assert await verified(port, good)
                    assert not await verified(port)
                    assert not await verified(port, good, behind)
                    unready = {"ready": False, "serving": False, "terminating": True}
                    assert await verified(port, good, {**behind, "conditions": unready})
                    leaving = {"ready": False, "serving": True, "terminating": True}
                    assert not await verified(port, good, {**behind, "conditions": leaving})
                    assert not await verified(port, good, {"addresses": ["127.0.0.3"]})

    asyncio.run(work())


@pytest.mark.parametrize(
    "slices",
    [{}, {"items": None}, {"items": [None, {"endpoints": [None, {"addresses": None, "conditions": []}]}]}],
)
def test_endpoint_slices_of_any_shape_are_read(slices: dict[str, object]) -> None:
    assert ready_addresses(slices) == ()


def test_the_command_tells_what_a_client_would_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, leaf = tmp_path / "ca.crt", tmp_path / "tls.crt"
    bundle.write_bytes(render_certificate(AUTHORITY.certificate))
    leaf.write_bytes(render_certificate(LEAF.certificate))
    arguments = ["verify", "--bundle", str(bundle), "--cert", str(leaf), "--name"]
    assert main([*arguments, NAME]) == 0
    assert capsys.readouterr().out == "Verified\n"
    assert main([*arguments, "other.svc"]) == 1
    assert capsys.readouterr().out.startswith("WrongName: it is for webhook.sidemount-system.svc")
    assert main(["verify", "--bundle", str(bundle), "--connect", "127.0.0.1:1", "--name", NAME]) == 1
    assert capsys.readouterr().out.startswith("Unreachable: 127.0.0.1:1")
    for wrong, said in (
        ("x", "is not HOST:PORT"),
        ("::1:443", "in brackets"),
        ("a:99999", "is not HOST:PORT"),
    ):
        assert main(["verify", "--bundle", str(bundle), "--connect", wrong, "--name", NAME]) == 2
        assert said in capsys.readouterr().err
