"""Calls that fail: what is tried again, for how long, and what is told in the end."""

import errno
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sidemount.stores.faults import ERRNO, RETRIED, Counts, fault, kind_of_status
from sidemount.stores.http_message import Answer, ExchangeFailed, Request, parse_endpoint
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.retries import Calls, Operation, Refusal, Refused
from sidemount.stores.store import FaultKind, StoreFault
from sidemount.stores.throttle import Throttle
from tests.stores.http_script import Asked, HttpScript, Step, hang_up, http_script, raw, say

OPERATION = Operation(name="GET", what="'x'", lane="a")


class Dialect:
    """Understands HTTP and nothing else; `lessons` is how often it learns something from a refusal."""

    def __init__(self) -> None:
        self.lessons = 0
        self.prepared = 0

    def prepare(self, request: Request) -> Request:
        self.prepared += 1
        return request

    def explain(self, request: Request, answer: Answer) -> Refusal | None:
        if answer.status < 300:
            return None
        pause_s = float(answer.headers.get("retry-after", 0))
        return Refusal(
            kind_of_status(answer.status), f"HTTP {answer.status}", status=answer.status, pause_s=pause_s
        )

    def adapt(self, refusal: Refusal, answer: Answer) -> bool:
        self.lessons -= 1
        return self.lessons >= 0


class Place:
    def __init__(self, server: HttpScript, retry_timeout_s: float = 5, timeout_s: float = 5) -> None:
        self.server = server
        self.dialect = Dialect()
        self.heard: list[FaultKind] = []
        self.pauses = 0
        self.counts = Counts(self.heard.append)
        self.throttle = Throttle()
        self.calls = Calls(
            HttpPool(4),
            self.dialect,
            timeout_s=timeout_s,
            retry_timeout_s=retry_timeout_s,
            counts=self.counts,
            throttle=self.throttle,
            jitter=self._jitter,
        )

    def _jitter(self) -> float:
        self.pauses += 1
        return 0.0

    def call(self, read: Callable[[Answer], bytes] = lambda answer: answer.body) -> bytes:
        endpoint = parse_endpoint(self.server.url)[0]
        return self.calls.call(OPERATION, lambda: Request(endpoint, "GET", "/x"), read)

    def refused(self) -> Refused:
        with pytest.raises(Refused) as caught:
            self.call()
        return caught.value


@pytest.fixture
def place() -> Iterator[Place]:
    with http_script() as server:
        made = Place(server)
        yield made
        made.calls.close()


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        pytest.param(say(500), FaultKind.SERVER, id="500"),
        pytest.param(say(502), FaultKind.SERVER, id="502"),
        pytest.param(say(503), FaultKind.THROTTLED, id="503"),
        pytest.param(say(429), FaultKind.THROTTLED, id="429"),
        pytest.param(say(408), FaultKind.TIMEOUT, id="408"),
        pytest.param(hang_up, FaultKind.RESET, id="reset"),
        pytest.param(say(200, b"ab", size=4, keep=False), FaultKind.TRUNCATED, id="truncated"),
        pytest.param(raw(b"what?\r\n\r\n"), FaultKind.ANSWER, id="nonsense"),
    ],
)
def test_what_may_pass_is_tried_again_and_counted(place: Place, step: Step, kind: FaultKind) -> None:
    place.server.then(step, step, say(200, b"there"))
    assert place.call() == b"there"
    assert place.heard == [kind, kind]
    numbers = place.counts.numbers()
    assert (numbers["requests"], numbers["retries"], numbers[f"faults_{kind.value}"]) == (3, 2, 2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 412, 413, 501])
def test_what_is_an_answer_is_not_tried_again(place: Place, status: int) -> None:
    place.server.then(say(status))
    refused = place.refused()
    assert len(place.server.asked) == 1
    assert refused.kind is kind_of_status(status)
    assert refused.errno == ERRNO[refused.kind]
    assert refused.status == status
    assert not refused.lost


def test_an_answer_that_cannot_be_read_is_tried_again(place: Place) -> None:
    place.server.then(say(200, b"bad"), say(200, b"good"))

    def read(answer: Answer) -> bytes:
        if answer.body == b"bad":
            raise ExchangeFailed(FaultKind.ANSWER, "bad", sent=True)
        return answer.body

    assert place.call(read) == b"good"


def test_the_time_for_retries_ends_a_call_with_the_last_fault() -> None:
    with http_script() as server:
        place = Place(server, retry_timeout_s=1.5)
        server.then(*[say(500)] * 50)
        began_s = time.monotonic()
        refused = place.refused()
        assert time.monotonic() - began_s < 5
        assert refused.kind is FaultKind.SERVER
        assert refused.errno == errno.EIO
        assert 2 <= len(server.asked) < 30
        assert f"({len(server.asked)} attempts)" in str(refused)
        assert refused.lost
        place.calls.close()


def test_a_store_that_is_away_for_a_while_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    counts = Counts()
    calls = Calls(HttpPool(1), Dialect(), timeout_s=5, retry_timeout_s=20, counts=counts)
    endpoint = parse_endpoint(f"http://127.0.0.1:{port}")[0]
    found: list[bytes] = []
    thread = threading.Thread(
        target=lambda: found.append(
            calls.call(OPERATION, lambda: Request(endpoint, "GET", "/"), lambda answer: answer.body)
        )
    )
    thread.start()
    while not counts.faults[FaultKind.RESET]:
        time.sleep(0.01)
    with socket.create_server(("127.0.0.1", port)) as listener:
        sock, _ = listener.accept()
        with sock:
            sock.recv(1000)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nback")
            thread.join(10)
    assert found == [b"back"]
    calls.close()


def test_a_dead_connection_costs_no_pause_and_the_other_idle_ones_are_dropped(place: Place) -> None:
    place.server.then(say(200), hang_up, say(200, b"there"))
    place.call()
    assert place.call() == b"there"
    assert place.pauses == 0
    assert place.server.connections == 2


def test_what_is_learnt_from_a_refusal_is_used_at_once_but_not_for_ever(place: Place) -> None:
    place.dialect.lessons = 2
    place.server.then(say(403), say(403), say(200, b"there"))
    assert place.call() == b"there"
    assert place.dialect.prepared == 3
    place.dialect.lessons = 1000
    place.server.then(*[say(403)] * 50)
    assert place.refused().kind is FaultKind.DENIED
    assert len(place.server.asked) < 12


def test_a_throttled_prefix_is_slowed_down_and_the_pause_of_the_store_is_kept(place: Place) -> None:
    place.server.then(say(503, Retry_After="1"), say(200, b"there"))
    began_s = time.monotonic()
    assert place.call() == b"there"
    assert time.monotonic() - began_s >= 0.9
    assert set(place.throttle.slowed()) == {"a"}


def test_no_turn_within_the_time_for_retries_is_told_at_once(place: Place) -> None:
    place.throttle.slow_down("a", 1000)
    began_s = time.monotonic()
    assert place.refused().kind is FaultKind.THROTTLED
    assert time.monotonic() - began_s < 4  # and not the 5 s for retries
    assert place.server.asked == []


def test_a_time_out_has_its_own_errno() -> None:
    with http_script() as server:
        place = Place(server, retry_timeout_s=0.2, timeout_s=0.2)
        over = threading.Event()

        def hang(asked: Asked, sock: socket.socket) -> bool:
            over.wait(10)
            return False

        server.then(hang)
        assert place.refused().errno == errno.ETIMEDOUT
        over.set()
        place.calls.close()


def test_closing_ends_the_waiting_of_calls(place: Place) -> None:
    place.server.then(*[say(500)] * 100)
    timer = threading.Timer(0.2, place.calls.close)
    timer.start()
    began_s = time.monotonic()
    place.refused()
    assert time.monotonic() - began_s < 3
    timer.join()


def test_a_fault_can_cross_a_process(place: Place) -> None:
    place.server.then(say(404))
    refused = place.refused()
    copy = pickle.loads(pickle.dumps(refused))
    assert (str(copy), copy.kind, copy.errno, copy.status) == (str(refused), refused.kind, errno.ENOENT, 404)


def test_every_kind_has_an_errno_and_what_is_retried_is_no_answer() -> None:
    assert set(ERRNO) == set(FaultKind)
    assert not RETRIED & {FaultKind.MISSING, FaultKind.DENIED, FaultKind.EXISTS, FaultKind.CHANGED}
    assert fault(FaultKind.NAME, "x").errno == errno.EHOSTUNREACH
    assert isinstance(fault(FaultKind.MISSING, "x"), StoreFault)


def test_nothing_is_learnt_when_the_time_is_over() -> None:
    with http_script() as server:
        place = Place(server, retry_timeout_s=0)
        place.dialect.lessons = 3
        server.then(say(403), say(200))
        place.refused()
        place.calls.close()
        assert len(server.asked) == 1
