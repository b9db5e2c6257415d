"""Slow, many and greedy clients, and judges that fail: bounded, answered, and nobody else notices."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidemount.model.errors import HostFailure, NotReady
from tests.webhook.eventually import eventually
from tests.webhook.raw_client import RawClient, get, post
from tests.webhook.reviews import make_pod, make_review
from tests.webhook.threaded import ThreadedServer, threaded_server
from webhook import response as response_module
from webhook import server as server_module
from webhook.limits import BodyBudget, Limits
from webhook.metrics import Path as Question
from webhook.outcome import Answer

SMALL = Limits(
    connections=6,
    handshake_s=20.0,
    header_s=20.0,
    idle_s=20.0,
    request_s=20.0,
    body_bytes=4_000_000,
    buffered_bytes=1_500_000,
    thread_body_bytes=200_000,
    plain_body_bytes=100_000,
)


HASTY = replace(SMALL, header_s=0.4, request_s=3.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadedServer]:
    """A server with small limits, but of time: no machine is too slow for what a test does in it."""
    with threaded_server(tmp_path, SMALL) as started:
        yield started


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[ThreadedServer]:
    """A server that waits for no request for long."""
    with threaded_server(tmp_path, HASTY) as started:
        yield started


def _client(server: ThreadedServer) -> RawClient:
    return RawClient(server.port, server.files.bundle)


def _is_alive(server: ThreadedServer) -> bool:
    with _client(server) as client:
        response = client.ask(get("/healthz"), "GET")
        return response is not None and response.status == 200


@pytest.mark.parametrize(
    "start", [b"P", b"POST /mutate HTTP/1.1\r\nHost: a\r\n", b"\r\n"], ids=["byte", "headers", "blank"]
)
def test_headers_that_do_not_come_end_the_connection(hasty: ThreadedServer, start: bytes) -> None:
    with _client(hasty) as client:
        client.send(start)
        response = client.read()
        assert response is not None
        assert response.status == 408
        assert client.is_closed_by_peer()
    assert _is_alive(hasty)


def test_headers_that_trickle_end_the_connection(hasty: ThreadedServer) -> None:
    with _client(hasty) as client:
        client.send(b"POST /mutate HTTP/1.1\r\nX: ")
        closed = threading.Event()

        def trickle() -> None:
            while not closed.wait(0.05):
                client.send(b"a")

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            response = client.read()
        finally:
            closed.set()
            sender.join()
        assert response is None or response.status == 408
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("more", [(), ("X-Other: way",)], ids=["plain", "general"])
def test_a_body_that_does_not_come_is_answered_before_the_caller_gives_up(
    hasty: ThreadedServer, more: tuple[str, ...]
) -> None:
    """The API server says how long it waits: ?timeout=."""
    with _client(hasty) as client:
        began = time.monotonic()
        client.send(post(make_review(make_pod()), "/mutate?timeout=1s", *more)[:-10])
        response = client.read()
        elapsed = time.monotonic() - began
        assert response is not None
        assert response.status == 408
        assert response.headers["connection"] == "close"
        assert 0.7 <= elapsed < 2.6  # 2.7 without the parameter
    assert _is_alive(hasty)


def test_an_idle_connection_is_closed_in_the_end_and_a_used_one_is_not(tmp_path: Path) -> None:
    with (
        threaded_server(tmp_path, replace(SMALL, idle_s=2.0)) as server,
        _client(server) as idle,
        _client(server) as used,
    ):
        closed = threading.Event()
        watcher = threading.Thread(target=lambda: (idle.is_closed_by_peer(), closed.set()))  # type: ignore[func-returns-value]
        watcher.start()
        while not closed.wait(0.1):
            response = used.ask(post(make_review(make_pod())))
            assert response is not None
            assert response.status == 200
        watcher.join()
        assert used.ask(get("/healthz"), "GET") is not None


def test_a_handshake_that_does_not_go_on_is_given_up(tmp_path: Path) -> None:
    with threaded_server(tmp_path, replace(SMALL, handshake_s=1.5)) as server:
        with socket.create_connection(("127.0.0.1", server.port), 10) as plain:
            assert plain.recv(1) == b""
        with _client(server) as client:
            response = client.ask(get("/metrics"), "GET")
            assert response is not None
            assert 'sidemount_webhook_tls_failures_total{reason="timeout"} 1.0' in response.text


def test_one_connection_too_many_costs_the_longest_idle_one(server: ThreadedServer) -> None:
    clients = [_client(server) for _ in range(SMALL.connections)]
    try:
        for client in clients[1:]:
            response = client.ask(get("/healthz"), "GET")
            assert response is not None
        with _client(server) as late:
            response = late.ask(get("/healthz"), "GET")
            assert response is not None
        assert clients[0].is_closed_by_peer()
    finally:
        for client in clients:
            client.close()


def test_where_all_are_busy_one_more_is_turned_away_and_the_server_recovers(tmp_path: Path) -> None:
    limits = Limits(connections=4, header_s=20.0)
    with threaded_server(tmp_path, limits) as server:
        clients = [_client(server) for _ in range(4)]
        for client in clients:
            client.send(b"POST /mutate HTTP/1.1\r\n")
        eventually(lambda: _is_turned_away(server), "the fifth is turned away")
        for client in clients:
            client.close()
        eventually(lambda: not _is_turned_away(server), "there is room again")


def _is_turned_away(server: ThreadedServer) -> bool:
    try:
        return not _is_alive(server)
    except OSError:
        return True


def test_bodies_that_are_too_much_together_are_told_to_come_again(server: ThreadedServer) -> None:
    body = make_review(make_pod()).ljust(1_000_000)
    with _client(server) as first, _client(server) as second:
        first.send(post(body)[:-100])
        eventually(
            lambda: _metric(server, "sidemount_webhook_in_flight_requests") == 2, "the first is being read"
        )
        response = second.ask(post(body))
        assert response is not None
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        answer = first.ask(post(body)[-100:])
        assert answer is not None
        assert answer.status == 200
    with _client(server) as again:
        response = again.ask(post(body))
        assert response is not None
        assert response.status == 200


def _metric(server: ThreadedServer, name: str) -> float:
    with _client(server) as client:
        response = client.ask(get("/metrics"), "GET")
    assert response is not None
    return next(float(line.split()[1]) for line in response.text.splitlines() if line.startswith(name + " "))


def test_a_large_review_does_not_hold_up_the_others(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real = server_module._JUDGES["mutate"]

    def slow(body: bytes, **known: Any) -> Answer:
        if len(body) > SMALL.thread_body_bytes:
            assert release.wait(10)
        return real(body, **known)

    monkeypatch.setitem(server_module._JUDGES, "mutate", slow)
    large = make_review(make_pod()).ljust(300_000)
    with _client(server) as waiting, _client(server) as other:
        waiting.send(post(large))
        for _ in range(5):
            response = other.ask(post(make_review(make_pod())))
            assert response is not None
            assert response.status == 200
        release.set()
        answer = waiting.read()
        assert answer is not None
        assert answer.status == 200


def test_a_large_review_that_takes_too_long_is_given_up_in_time(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def stuck(body: bytes, **known: Any) -> Answer:
        release.wait(10)
        raise NotReady("too late")

    monkeypatch.setitem(server_module._JUDGES, "mutate", stuck)
    with _client(server) as client:
        began = time.monotonic()
        response = client.ask(post(make_review(make_pod()).ljust(300_000), "/mutate?timeout=2s"))
        assert response is not None
        assert response.status == 504
        assert time.monotonic() - began < 5.0
    release.set()
    assert _is_alive(server)


def _raising(error: Exception) -> Callable[..., Answer]:
    def judge(body: bytes, **known: Any) -> Answer:
        raise error

    return judge


@pytest.mark.parametrize("more", [(), ("X-Other: way",)], ids=["plain", "general"])
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        pytest.param(RuntimeError("s3cr3t"), 500, "could not be handled", id="unforeseen"),
        pytest.param(RecursionError(), 500, "could not be handled", id="recursion"),
        pytest.param(MemoryError(), 500, "could not be handled", id="memory"),
        pytest.param(NotReady("facts are missing"), 503, "facts are missing", id="not-ready"),
        pytest.param(HostFailure("no disk"), 500, "no disk", id="host"),
    ],
)
def test_a_judge_that_fails_costs_one_answer(
    server: ThreadedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
    said: str,
    more: tuple[str, ...],
) -> None:
    monkeypatch.setitem(server_module._JUDGES, "validate", _raising(error))
    with caplog.at_level(logging.ERROR), _client(server) as client:
        response = client.ask(post(make_review(make_pod()), "/validate", *more))
    assert response is not None
    assert response.status == status
    assert said in response.text
    assert "s3cr3t" not in response.text
    assert ("retry-after" in response.headers) is (status == 503)
    assert len([record for record in caplog.records if record.exc_info]) == (said == "could not be handled")
    assert _is_alive(server)


@pytest.mark.parametrize("large", [False, True], ids=["inline", "beside"])
def test_an_answer_that_leaves_it_to_the_failure_policy_is_a_500(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    real = server_module._JUDGES[Question.MUTATE.value]

    def judge(body: bytes, **known: Any) -> Answer:
        answer = real(body, **known)
        return Answer(body=answer.body, outcome=answer.outcome, http_status=500)

    monkeypatch.setitem(server_module._JUDGES, "mutate", judge)
    with _client(server) as client:
        response = client.ask(post(make_review(make_pod()).ljust(300_000 if large else 0)))
        assert response is not None
        assert response.status == 500
        assert json.loads(response.body)["kind"] == "AdmissionReview"
        assert client.ask(get("/healthz"), "GET") is not None, "the connection goes on"


def test_a_client_that_leaves_in_the_middle_is_no_error(
    server: ThreadedServer, caplog: pytest.LogCaptureFixture
) -> None:
    body = make_review(make_pod()).ljust(500_000)
    for content in (post(body)[:-5], post(body), post(make_review(make_pod()))[:-5], get("/metrics"), b"PO"):
        client = _client(server)
        client.send(content)
        client.socket.close()
    assert _is_alive(server)
    eventually(lambda: _metric(server, "sidemount_webhook_in_flight_requests") == 1, "nobody is waited for")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("more", [(), ("X-Other: way",)], ids=["plain", "general"])
def test_a_client_that_asks_and_does_not_read_is_cut_off(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """Its answers would pile up in memory."""
    monkeypatch.setattr(response_module, "WRITE_S", 0.3)
    content = post(make_review(make_pod()), "/mutate", *more) * 20
    with _client(server) as client:
        client.socket.settimeout(5)
        sent = 0
        cut_off = False
        while not cut_off and sent < 200_000_000:
            try:
                client.socket.sendall(content)
            except OSError:  # reset, or no room to send for seconds
                cut_off = True
            sent += len(content)
        assert cut_off
        eventually(lambda: _metric(server, "sidemount_webhook_connections") == 1, "the connection is gone")
    assert _is_alive(server)


def test_a_budget_never_goes_below_nothing() -> None:
    budget = BodyBudget(10)
    assert budget.take(6)
    assert not budget.take(5)
    assert budget.left_bytes == 4
    budget.give_back(6)
    assert budget.take(10)
