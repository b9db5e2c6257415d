"""The way out: nobody who got through is turned away, and it ends in time."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.webhook.eventually import eventually
from tests.webhook.fake_apiserver import CallFailed, RemoteWebhook, check_response
from tests.webhook.raw_client import RawClient, get, post
from tests.webhook.reviews import make_pod, make_review
from tests.webhook.running import RunningServer, running_server

REVIEW = make_review(make_pod())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path, ["--lame-duck-seconds", "1", "--grace-seconds", "20"]) as started:
        yield started


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with so long a lame-duck period that no machine is too slow for what a test does in it."""
    with running_server(tmp_path, ["--lame-duck-seconds", "20", "--grace-seconds", "30"]) as started:
        yield started


def _client(server: RunningServer) -> RawClient:
    return RawClient(server.port, server.files.bundle)


def _is_ready(server: RunningServer) -> bool:
    try:
        with _client(server) as client:
            response = client.ask(get("/readyz"), "GET")
            return response is not None and response.status == 200
    except OSError:  # it does not even listen any more
        return False


def _begin(server: RunningServer, number: int = signal.SIGTERM) -> float:
    """Send the signal, wait until it is noticed, and return when it was sent."""
    began = time.monotonic()
    server.signal(number)
    eventually(lambda: not _is_ready(server), "it is not ready any more", 5.0)
    return began


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_readiness_goes_at_once_and_late_connections_are_served(patient: RunningServer, number: int) -> None:
    """k/k#127335: endpoints and callers notice later than we do."""
    with _client(patient) as kept:
        assert kept.ask(post(REVIEW)) is not None
        _begin(patient, number)
        response = kept.ask(post(REVIEW))
        assert response is not None
        assert response.status == 200
        assert response.headers["connection"] == "close"
        assert kept.is_closed_by_peer()
        with _client(patient) as late:
            response = late.ask(get("/readyz"), "GET")
            assert response is not None
            assert response.status == 503
            assert "draining" in response.text
        with _client(patient) as late:
            response = late.ask(post(REVIEW, "/mutate", "X-Other: way"))
            assert response is not None
            assert response.status == 200
            assert response.headers["connection"] == "close"
        with _client(patient) as late:
            response = late.ask(get("/healthz"), "GET")
            assert response is not None
            assert response.status == 200, "it lives"
    patient.signal(number)
    assert patient.wait() == 0
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset
        _client(patient)


@pytest.mark.parametrize("more", [(), ("X-Other: way",)], ids=["plain", "general"])
def test_a_request_in_flight_is_answered_after_listening_ended(
    server: RunningServer, more: tuple[str, ...]
) -> None:
    content = post(REVIEW, "/mutate", *more)
    with _client(server) as slow:
        slow.send(content[:-5])
        began = _begin(server)
        eventually(lambda: not _accepts(server), "it listens no more")
        assert time.monotonic() - began >= 0.9, "the lame-duck period was cut short"
        response = slow.ask(content[-5:])
        assert response is not None
        assert response.status == 200
        assert response.headers["connection"] == "close"
    assert server.wait() == 0


def _accepts(server: RunningServer) -> bool:
    try:
        _client(server).close()
    except OSError:
        return False
    return True


def test_idle_connections_hold_nothing_up(server: RunningServer) -> None:
    clients = [_client(server) for _ in range(5)]
    for client in clients:
        assert client.ask(post(REVIEW)) is not None
    began = _begin(server)
    assert server.wait() == 0
    assert time.monotonic() - began < 10.0, "long before the grace period"
    assert all(client.is_closed_by_peer() for client in clients)
    for client in clients:
        client.close()


def test_a_client_that_never_finishes_ends_with_the_grace_period(tmp_path: Path) -> None:
    with (
        running_server(tmp_path, ["--lame-duck-seconds", "0", "--grace-seconds", "1.5"]) as server,
        _client(server) as stuck,
    ):
        stuck.send(post(REVIEW, "/mutate", "X-Other: way")[:-5])
        began = time.monotonic()
        server.signal()
        assert server.wait() == 1
        assert 1.4 < time.monotonic() - began < 10.0
        assert '"clean": false' in server.log.read_text()


def test_a_second_signal_shortens_it(patient: RunningServer) -> None:
    with _client(patient) as stuck:
        stuck.send(post(REVIEW)[:-5])
        began = _begin(patient)
        patient.signal()
        patient.wait()
        assert time.monotonic() - began < 15.0, "the lame-duck period alone is longer"


def test_a_drain_says_what_it_does_and_loses_no_log_line(server: RunningServer) -> None:
    with _client(server) as client:
        assert client.ask(post(REVIEW)) is not None
        server.signal()
    assert server.wait() == 0
    events = [json.loads(line)["event"] for line in server.log.read_text().splitlines()]
    assert [event for event in events if event in ("draining", "review_decided", "drained")] in (
        ["draining", "review_decided", "drained"],
        ["review_decided", "draining", "drained"],
    )


class Pool:
    """Clients as an API server's: keep-alive connections to whichever endpoint is ready, used without a pause."""

    def __init__(self, endpoints: list[RunningServer], workers: int) -> None:
        self.endpoints = endpoints
        self.answered = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(workers)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        calls: dict[int, RemoteWebhook] = {}
        turn = number
        while not self._stop.is_set():
            with self._lock:
                endpoint = self.endpoints[turn % len(self.endpoints)]
            turn += 1
            if endpoint.port not in calls:
                calls[endpoint.port] = RemoteWebhook(endpoint.port, "/mutate", endpoint.files.bundle)
            call = calls[endpoint.port]
            uid = f"{number}-{turn}"
            try:
                check_response(call(make_review(make_pod(), uid=uid), 5), uid)
            except CallFailed as error:
                with self._lock:
                    self.failures.append(f"{endpoint.port}: {error}")
            else:
                with self._lock:
                    self.answered += 1
        for call in calls.values():
            call.close()

    def use(self, endpoints: list[RunningServer]) -> None:
        """Change the endpoints, as a Service does some time after readiness changed."""
        with self._lock:
            self.endpoints = endpoints

    def stop(self) -> None:
        """End the load."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


def test_a_rolling_restart_under_load_loses_no_call(tmp_path: Path) -> None:
    """J#714, k/k#127335, openchoreo#3723: every call is answered while each replica is replaced in turn."""
    arguments = ["--lame-duck-seconds", "4", "--grace-seconds", "20"]
    servers = [_started(tmp_path / name, arguments) for name in ("one", "two")]
    pool = Pool(list(servers), workers=6)
    try:
        for turn in range(2):
            leaving = servers.pop(0)
            leaving.signal()
            eventually(lambda server=leaving: not _is_ready(server), "it is not ready", 3.0)  # type: ignore[misc]
            _await_calls(pool, 20)  # the endpoint is still in use for a while
            pool.use(list(servers))
            assert leaving.wait() == 0
            servers.append(_started(tmp_path / f"new-{turn}", arguments))
            pool.use(list(servers))
            _await_calls(pool, 20)
    finally:
        pool.stop()
        for server in servers:
            server.kill()
    assert pool.failures == []
    assert pool.answered > 80


def _started(directory: Path, arguments: list[str]) -> RunningServer:
    directory.mkdir()
    return RunningServer(directory, arguments)


def _await_calls(pool: Pool, count: int) -> None:
    goal = pool.answered + count
    eventually(lambda: pool.answered >= goal, f"{count} calls are answered")
