"""Exchanges over HTTP: deadlines, kept-alive connections, bodies that break, TLS, names."""

import errno
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from sidemount.stores.http_message import (
    Answer,
    Endpoint,
    ExchangeFailed,
    Request,
    Sink,
    parse_endpoint,
)
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.http_proxies import proxy_of
from sidemount.stores.opening import tls_context
from sidemount.stores.store import Buffer, FaultKind, StoreFault
from tests.stores.http_script import Asked, HttpScript, hang_up, http_script, raw, say


@pytest.fixture
def server() -> Iterator[HttpScript]:
    with http_script() as running:
        yield running


@pytest.fixture
def pool() -> Iterator[HttpPool]:
    made = HttpPool(2)
    yield made
    made.close()


@pytest.fixture
def lone_pool() -> Iterator[HttpPool]:
    made = HttpPool(1)
    yield made
    made.close()


def get(server: HttpScript, target: str = "/x") -> Request:
    return Request(parse_endpoint(server.url)[0], "GET", target)


def failure(
    pool: HttpPool, request: Request, timeout_s: float = 5, sink: Sink | None = None
) -> ExchangeFailed:
    with pytest.raises(ExchangeFailed) as caught:
        pool.exchange(request, timeout_s, sink)
    return caught.value


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", id="length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: 1\r\n\r\n",
            b"abc",
            id="chunked, with a trailer",
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc", id="until the end of the connection"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
            b"abc",
            id="told something on the way",
        ),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="none"),
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", b"abc", id="bare line feeds"),
    ],
)
def test_bodies_of_every_form_are_read_whole(
    server: HttpScript, pool: HttpPool, answer: bytes, body: bytes
) -> None:
    keep = not answer.startswith(b"HTTP/1.0")
    server.then(raw(answer, keep=keep), raw(answer, keep=keep))
    assert pool.exchange(get(server), 5).body == body
    into = Sink(memoryview(bytearray(3)))
    pool.exchange(get(server), 5, into)
    assert bytes(into.buffer[: into.filled]) == body


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(b"", FaultKind.RESET, id="nothing"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", FaultKind.ANSWER, id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Len", FaultKind.ANSWER, id="half a head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", FaultKind.ANSWER, id="no length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            FaultKind.ANSWER,
            id="two lengths",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", FaultKind.TRUNCATED, id="half a body"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab",
            FaultKind.TRUNCATED,
            id="half a chunk",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n", FaultKind.ANSWER, id="endless head"
        ),
    ],
)
def test_answers_that_are_none_fail_with_their_kind(
    server: HttpScript, pool: HttpPool, answer: bytes, kind: FaultKind
) -> None:
    server.then(raw(answer), raw(answer))
    assert failure(pool, get(server)).kind is kind
    assert failure(pool, get(server), sink=Sink(memoryview(bytearray(9)))).kind is kind


def test_content_goes_behind_what_is_in_the_sink_and_stays_there_when_it_breaks(
    server: HttpScript, pool: HttpPool
) -> None:
    sink = Sink(memoryview(bytearray(b"ab......")))
    sink.filled = 2
    server.then(say(206, b"cd", size=6, keep=False), say(206, b"efgh"))
    assert failure(pool, get(server), sink=sink).kind is FaultKind.TRUNCATED
    assert (bytes(sink.buffer), sink.filled) == (b"abcd....", 4)
    pool.exchange(get(server), 5, sink)
    assert bytes(sink.buffer) == b"abcdefgh"


@pytest.mark.parametrize("part", ["head", "body"])
def test_one_byte_at_a_time_does_not_hold_an_exchange_beyond_its_deadline(
    server: HttpScript, pool: HttpPool, part: str
) -> None:
    over = threading.Event()

    def drip(asked: Asked, sock: socket.socket) -> bool:
        if part == "body":
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        else:
            sock.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not over.wait(0.02):
            sock.sendall(b"x")
        return False

    server.then(drip)
    began_s = time.monotonic()
    try:
        assert failure(pool, get(server), 0.3, Sink(memoryview(bytearray(1000)))).kind is FaultKind.TIMEOUT
    finally:
        over.set()
    assert time.monotonic() - began_s < 5


def test_a_server_that_takes_nothing_does_not_hold_a_body_beyond_its_deadline(pool: HttpPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(False, "127.0.0.1", listener.getsockname()[1])
        request = Request(endpoint, "PUT", "/x", body=[bytes(8 << 20)])
        assert failure(pool, request, 0.3).kind is FaultKind.TIMEOUT


def test_a_large_body_may_take_longer_than_the_timeout_while_it_moves(
    server: HttpScript, pool: HttpPool
) -> None:
    def slow(asked: Asked, sock: socket.socket) -> bool:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 393216\r\n\r\n")
        for _ in range(6):
            time.sleep(0.35)
            sock.sendall(bytes(64 << 10))
        return True

    server.then(slow)
    assert len(pool.exchange(get(server), 1.5).body) == 393216


def test_connections_are_used_again_and_never_more_than_allowed(server: HttpScript, pool: HttpPool) -> None:
    running = []
    most = []

    def count(asked: Asked, sock: socket.socket) -> bool:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return say(200, b"ok")(asked, sock)

    server.then(*[count] * 12)
    threads = [threading.Thread(target=pool.exchange, args=(get(server), 5)) for _ in range(12)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(server.asked) == 12
    assert max(most) <= 2
    assert server.connections <= 2


def test_waiting_for_a_free_connection_has_a_deadline(server: HttpScript, lone_pool: HttpPool) -> None:
    pool = lone_pool
    enough = threading.Event()
    arrived = threading.Event()

    def wait(asked: Asked, sock: socket.socket) -> bool:
        arrived.set()
        enough.wait(10)
        return say(200)(asked, sock)

    server.then(wait)
    first = threading.Thread(target=pool.exchange, args=(get(server), 10))
    first.start()
    arrived.wait(5)
    assert failure(pool, get(server), 0.1).kind is FaultKind.TIMEOUT
    enough.set()
    first.join()


def test_a_connection_that_the_server_has_ended_meanwhile_is_not_used(
    server: HttpScript, pool: HttpPool
) -> None:
    server.then(say(200), say(200))
    pool.exchange(get(server), 5)
    server.hang_up_all()
    time.sleep(0.05)
    assert pool.exchange(get(server), 5).status == 200
    assert server.connections == 2


def test_a_connection_that_has_been_idle_for_long_is_not_used(server: HttpScript) -> None:
    pool = HttpPool(1, idle_s=0.0)
    server.then(say(200), say(200))
    pool.exchange(get(server), 5)
    pool.exchange(get(server), 5)
    assert server.connections == 2
    pool.close()


def test_an_end_just_when_an_idle_connection_is_used_is_told_as_stale(
    server: HttpScript, pool: HttpPool
) -> None:
    server.then(say(200), hang_up, hang_up)
    pool.exchange(get(server), 5)
    assert failure(pool, get(server)).stale
    assert not failure(pool, get(server)).stale  # this one was fresh


@pytest.mark.parametrize("size", [3, 1 << 20])
def test_after_content_that_is_not_wanted_the_connection_is_good_or_ended(
    server: HttpScript, pool: HttpPool, size: int
) -> None:
    server.then(say(200, bytes(size)), say(200, b"next"))
    pool.exchange(get(server), 5, Sink(memoryview(bytearray(2))))
    assert pool.exchange(get(server), 5).body == b"next"


def test_a_body_of_buffers_goes_out_whole_and_an_early_refusal_is_heard(
    server: HttpScript, pool: HttpPool
) -> None:
    server.then(say(200))
    body: list[Buffer] = [b"ab", bytearray(b"cd"), memoryview(b"efgh")[1:3], bytes(200_000)]
    pool.exchange(Request(parse_endpoint(server.url)[0], "PUT", "/x", {"a": "b"}, body), 5)
    assert server.asked[0].body == b"abcdfg" + bytes(200_000)
    assert server.asked[0].headers["content-length"] == "200006"


def test_a_server_that_refuses_in_the_middle_of_a_body_is_understood(pool: HttpPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1000)
                sock.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwhy?")
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 20):
                    pass

        thread = threading.Thread(target=refuse)
        thread.start()
        endpoint = Endpoint(False, "127.0.0.1", listener.getsockname()[1])
        answer = pool.exchange(Request(endpoint, "PUT", "/x", body=[bytes(4 << 20)]), 5)
        assert (answer.status, answer.body) == (403, b"why?")
        thread.join()


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "a\nb", "a\rb", "a\0b", "…"])
def test_nothing_can_be_smuggled_into_a_head(server: HttpScript, pool: HttpPool, value: str) -> None:
    request = get(server)
    request.headers["x"] = value
    assert failure(pool, request).kind is FaultKind.REQUEST
    assert server.asked == []


def test_refused_connections_and_unknown_names_are_told_apart(pool: HttpPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refused = failure(pool, Request(Endpoint(False, "127.0.0.1", port), "GET", "/"))
    assert refused.kind is FaultKind.RESET
    assert not refused.sent
    unknown = failure(pool, Request(Endpoint(False, "no-such-host.invalid", 80), "GET", "/"))
    assert unknown.kind is FaultKind.NAME
    assert failure(pool, Request(Endpoint(False, "." * 70, 80), "GET", "/")).kind is FaultKind.NAME


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a Secret would be: `ca.crt`, and the server's key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "store")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    (directory / "ca.crt").write_bytes(made.public_bytes(Encoding.PEM))
    (directory / "tls.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return directory


def test_tls_trusts_the_authority_in_the_secrets_and_nobody_else(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "ca.crt", certificate / "tls.key")
    body = bytes(range(256)) * 4096
    with http_script(context) as server:
        trusting = HttpPool(2, tls=tls_context(str(certificate)))
        server.then(say(200, body), say(200, b"", Connection="close"))
        sink = Sink(memoryview(bytearray(len(body))))
        assert trusting.exchange(get(server), 5, sink) == Answer(200, sink_headers(len(body)), b"")
        assert bytes(sink.buffer) == body
        put = Request(parse_endpoint(server.url)[0], "PUT", "/x", body=[body, body])
        assert trusting.exchange(put, 5).status == 200
        assert server.asked[1].body == body + body
        assert server.connections == 1
        assert failure(HttpPool(2), get(server)).kind is FaultKind.TLS
        trusting.close()


def sink_headers(size: int) -> dict[str, str]:
    return {"content-length": str(size)}


def test_a_proxy_gets_the_whole_url_and_never_more_than_a_tunnel_of_tls(server: HttpScript) -> None:
    proxy = parse_endpoint(server.url)[0]
    pool = HttpPool(1, proxy_of=lambda endpoint: proxy)
    server.then(say(200, b"ok"))
    assert pool.exchange(Request(Endpoint(False, "store.invalid", 80), "GET", "/a?b"), 5).body == b"ok"
    assert (server.asked[0].target, server.asked[0].headers["host"]) == (
        "http://store.invalid/a?b",
        "store.invalid",
    )
    pool.close()
    server.then(say(403, b"no"))
    refused = failure(
        pool, Request(Endpoint(True, "store.invalid", 443), "GET", "/", {"authorization": "s3cret"})
    )
    assert refused.kind is FaultKind.RESET
    assert (server.asked[1].method, server.asked[1].target) == ("CONNECT", "store.invalid:443")
    assert "s3cret" not in str(server.asked[1].headers)


@pytest.mark.parametrize(
    "url", ["ftp://x", "x", "http://", "http://u:p@host", "http://host/?q", "http://h:x"]
)
def test_endpoints_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_endpoint(url)


def test_endpoints_have_a_host_a_port_and_a_path() -> None:
    assert parse_endpoint("https://h/a/b/") == (Endpoint(True, "h", 443), "/a/b")
    assert parse_endpoint("http://[::1]:9000") == (Endpoint(False, "::1", 9000), "")
    assert Endpoint(False, "::1", 9000).authority == "[::1]:9000"
    assert Endpoint(True, "h", 443).authority == "h"


STORE = Endpoint(True, "store.example", 443)
PROXY = {"HTTPS_PROXY": "http://proxy.example:3128"}


@pytest.mark.parametrize(
    ("endpoint", "environment", "proxy"),
    [
        pytest.param(STORE, {}, None, id="none"),
        pytest.param(STORE, PROXY, Endpoint(False, "proxy.example", 3128), id="for TLS"),
        pytest.param(STORE._replace(is_tls=False, port=80), PROXY, None, id="not for TLS alone"),
        pytest.param(
            STORE, {"https_proxy": "p:1"}, Endpoint(False, "p", 1), id="in lower case, without a scheme"
        ),
        pytest.param(STORE, PROXY | {"NO_PROXY": "x, .example"}, None, id="a domain that is exempt"),
        pytest.param(STORE, PROXY | {"no_proxy": "store.example"}, None, id="a host that is exempt"),
        pytest.param(STORE, PROXY | {"no_proxy": "*"}, None, id="all exempt"),
        pytest.param(
            STORE,
            PROXY | {"no_proxy": "ore.example,"},
            Endpoint(False, "proxy.example", 3128),
            id="another host",
        ),
    ],
)
def test_proxies_are_those_of_the_environment(
    endpoint: Endpoint, environment: dict[str, str], proxy: Endpoint | None
) -> None:
    assert proxy_of(endpoint, environment) == proxy


def test_a_proxy_that_is_none_fails_the_request(server: HttpScript) -> None:
    pool = HttpPool(1, proxy_of=lambda endpoint: proxy_of(endpoint, {"http_proxy": "socks5://p:1"}))
    assert failure(pool, get(server)).kind is FaultKind.REQUEST


class Piece(bytearray):
    """One that can be referred to weakly."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # each is another


class Read(Sequence[Buffer]):
    """A body that is read as it is sent. `late`: there is none of its second half then."""

    def __init__(self, late: StoreFault | None = None) -> None:
        self.alive: weakref.WeakSet[Piece] = weakref.WeakSet()
        self.most = 0
        self.rounds = 0
        self.late = late

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: Any) -> Any:
        if index >= 8:
            self.rounds += 1
            raise IndexError(index)
        if self.late is not None and self.rounds and index == 4:
            raise self.late
        made = Piece(1 << 20)
        self.alive.add(made)
        self.most = max(self.most, len(self.alive))
        return made


def test_a_large_body_is_not_in_memory_as_a_whole(server: HttpScript, pool: HttpPool) -> None:
    body = Read()
    server.then(say(200))
    pool.exchange(Request(parse_endpoint(server.url)[0], "PUT", "/x", body=body), 20)
    assert len(server.asked[0].body) == 8 << 20
    assert body.most <= 3


def test_a_body_that_cannot_be_read_says_why(server: HttpScript, pool: HttpPool) -> None:
    body = Read(StoreFault(errno.ESTALE, FaultKind.CHANGED, "a"))
    server.then(say(200))
    with pytest.raises(StoreFault) as raised:
        pool.exchange(Request(parse_endpoint(server.url)[0], "PUT", "/x", body=body), 20)
    assert raised.value.kind is FaultKind.CHANGED
