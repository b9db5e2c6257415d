"""Each fault that the proxy can make, seen by a plain HTTP client; the server behind it sees what it should."""

import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from e2e.servers.fault_proxy import FaultProxy
from e2e.servers.faults import (
    SLOW_DOWN,
    ChangeHeaders,
    CorruptAnswer,
    CorruptRequest,
    Delay,
    Drip,
    Hang,
    LoseAnswer,
    Reset,
    ResetInBody,
    ResetInHead,
    Truncate,
)
from e2e.servers.process import LOOPBACK

_CONTENT = bytes(range(256)) * 4
_PUT: list[bytes] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("ETag", '"right"')
        self.send_header("Content-Length", str(len(_CONTENT)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(_CONTENT)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        _PUT.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    _PUT.clear()
    with ThreadingHTTPServer((LOOPBACK, 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with FaultProxy(server.server_port) as made:
            yield made
        server.shutdown()


def _ask(
    proxy: FaultProxy, method: str = "GET", body: bytes | None = None, timeout_s: float = 10
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, proxy.port, timeout=timeout_s)
    try:
        connection.request(method, "/a?b=c", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_without_a_rule_everything_passes(proxy: FaultProxy) -> None:
    assert _ask(proxy) == (200, _CONTENT)
    assert _ask(proxy, "HEAD") == (200, b"")
    assert _ask(proxy, "PUT", b"body") == (201, b"")
    assert _PUT == [b"body"]
    assert [(one.method, one.target) for one in proxy.asked] == [
        ("GET", "/a?b=c"),
        ("HEAD", "/a?b=c"),
        ("PUT", "/a?b=c"),
    ]


def test_one_connection_takes_several_requests(proxy: FaultProxy) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, proxy.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/")
        assert connection.getresponse().read() == _CONTENT
    connection.close()


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        pytest.param(Reset(), ConnectionResetError, id="before"),
        pytest.param(LoseAnswer(), ConnectionResetError, id="answer"),
        pytest.param(ResetInHead(), ConnectionResetError, id="head"),
        pytest.param(ResetInBody(100), (ConnectionResetError, http.client.IncompleteRead), id="body"),
        pytest.param(Truncate(100), http.client.IncompleteRead, id="truncated"),
    ],
)
def test_connections_end(
    proxy: FaultProxy, fault: Reset, raised: type[Exception] | tuple[type[Exception], ...]
) -> None:
    rule = proxy.add(fault)
    with pytest.raises(raised):
        _ask(proxy)
    assert _ask(proxy) == (200, _CONTENT)
    assert rule.hits == 1


def test_a_lost_answer_was_carried_out(proxy: FaultProxy) -> None:
    proxy.add(LoseAnswer(), "PUT")
    with pytest.raises(ConnectionResetError):
        _ask(proxy, "PUT", b"done")
    assert _PUT == [b"done"]


def test_a_reset_was_not(proxy: FaultProxy) -> None:
    proxy.add(Reset(), "PUT")
    with pytest.raises(ConnectionError):
        _ask(proxy, "PUT", b"done")
    assert _PUT == []


def test_contents_and_headers_change(proxy: FaultProxy) -> None:
    proxy.add(CorruptAnswer(300))
    assert _ask(proxy) == (200, _CONTENT[:300] + bytes([_CONTENT[300] ^ 0xFF]) + _CONTENT[301:])
    proxy.add(CorruptRequest(1), "PUT")
    assert _ask(proxy, "PUT", b"\0\0\0") == (201, b"")
    assert _PUT == [b"\0\xff\0"]
    proxy.add(ChangeHeaders({"ETag": '"wrong"'}))
    connection = http.client.HTTPConnection(LOOPBACK, proxy.port, timeout=10)
    connection.request("HEAD", "/")
    assert connection.getresponse().getheader("ETag") == '"wrong"'
    connection.close()


def test_requests_are_chosen_by_method_target_and_number(proxy: FaultProxy) -> None:
    proxy.add(SLOW_DOWN, "GET", r"b=c$", times=2, skip=1)
    assert [_ask(proxy)[0] for _ in range(4)] == [200, 503, 503, 200]
    proxy.add(SLOW_DOWN, "PUT")
    proxy.add(SLOW_DOWN, "GET", "/other")
    assert _ask(proxy)[0] == 200
    with proxy.doing(SLOW_DOWN):
        assert [_ask(proxy)[0] for _ in range(3)] == [503] * 3
    assert _ask(proxy)[0] == 200


def test_what_is_slow_comes_whole(proxy: FaultProxy) -> None:
    proxy.add(Delay(0.2))
    began = time.monotonic()
    assert _ask(proxy)[0] == 200
    assert time.monotonic() - began >= 0.2
    proxy.add(Drip(0.0002))
    assert _ask(proxy) == (200, _CONTENT)


def test_a_request_can_hang_until_the_client_gives_up(proxy: FaultProxy) -> None:
    proxy.add(Hang())
    with pytest.raises(TimeoutError):
        _ask(proxy, timeout_s=0.2)
    assert _ask(proxy) == (200, _CONTENT)


def test_connections_are_refused_and_taken_again(proxy: FaultProxy) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, proxy.port, timeout=10)
    connection.request("GET", "/")
    connection.getresponse().read()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        _ask(proxy)
    assert connection.sock is not None
    connection.sock.settimeout(10)
    with pytest.raises(ConnectionError):
        connection.sock.recv(1)
    connection.close()
    proxy.accept()
    assert _ask(proxy) == (200, _CONTENT)
