"""Events of the node service at an API server that is away, comes back, and refuses."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from csi.event_channel import EventChannel
from csi.event_reasons import Occurrence, Reason
from csi.event_subject import PodRef
from csi.settings import Settings, parse_settings

_POD = PodRef(namespace="ml", name="app", uid="u-1")


class EventApi:
    """Events of a cluster. `refuse` says with which status a call is answered instead, None for none."""

    def __init__(self) -> None:
        self.events: dict[str, Any] = {}
        self.calls: list[str] = []
        self.refuse: Callable[[], int | None] = lambda: None
        handler = type("Handler", (_Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True

    def messages(self) -> list[tuple[str, int]]:
        """Return message and count of every Event."""
        return [(event["message"], event["count"]) for event in self.events.values()]


class _Handler(BaseHTTPRequestHandler):
    api: EventApi
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _do(self) -> None:
        api, length = self.api, int(self.headers.get("Content-Length") or 0)
        body: Any = json.loads(self.rfile.read(length) or b"null")
        api.calls.append(f"{self.command} {self.path}")
        status = api.refuse()
        if status is not None:
            self._answer(status, {"kind": "Status", "code": status})
            return
        name = self.path.rpartition("/")[2]
        match self.command:
            case "POST":
                body["metadata"]["resourceVersion"] = "1"
                api.events[body["metadata"]["name"]] = body
                self._answer(201, body)
            case "PATCH":
                event = api.events[name]
                event |= {each["path"][1:]: each["value"] for each in body if each["path"].count("/") == 1}
                self._answer(200, event)
            case _:
                event = api.events.get(name)
                self._answer(200 if event else 404, event or {"kind": "Status", "code": 404})

    do_GET = do_POST = do_PATCH = _do

    def _answer(self, status: int, document: Any) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def serving(api: EventApi) -> Iterator[None]:
    thread = threading.Thread(target=api.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        api.server.shutdown()
        api.server.server_close()
        thread.join(10)


def settings(tmp_path: Path, api: EventApi, *flags: str) -> Settings:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    argv = ["node", "--endpoint=unix:///s/csi.sock", "--node-id=n1", "--state-dir=/st", "--target-root=/t"]
    argv += ["--kubeconfig", str(tmp_path / "config"), *(flags or ("--facts-from=cluster",))]
    return parse_settings(argv, {})


def occurrence(message: str, at_ms: int, about: str = "vol") -> Occurrence:
    return Occurrence(subject=_POD, reason=Reason.MOUNT_FAILED, at_ms=at_ms, message=message, about=about)


async def _until(check: Callable[[], bool]) -> None:
    ends = asyncio.get_running_loop().time() + 60
    while not check():
        assert asyncio.get_running_loop().time() < ends
        await asyncio.sleep(0.02)


async def _run(channel: EventChannel, work: Callable[[], Any]) -> None:
    running = asyncio.create_task(channel.run())
    try:
        await work()
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_what_happens_while_the_api_server_is_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    """Nobody waits for it meanwhile: to offer is a matter of memory."""
    api = EventApi()
    api.refuse = lambda: 503 if len(api.calls) < 2 else None
    channel = EventChannel(settings(tmp_path, api))
    channel.offer(occurrence("first", 1000))  # before anything runs

    async def work() -> None:
        for at_ms in range(2000, 5000, 1000):
            channel.offer(occurrence("again", at_ms))
        await _until(lambda: bool(api.events))
        await _until(lambda: len(channel) == 0)

    with serving(api):
        asyncio.run(_run(channel, work))
    (event,) = api.events.values()
    assert (event["count"], event["type"], event["reason"]) == (4, "Warning", "MountFailed")
    assert event["involvedObject"]["uid"] == "u-1"
    assert event["reportingComponent"] == "sidemount-csi-node"
    assert event["reportingInstance"] == "n1"
    assert channel.results["MountFailed", "retried"] >= 1


def test_a_storm_is_written_slowly_and_never_grows_without_bound(tmp_path: Path) -> None:
    api = EventApi()
    channel = EventChannel(settings(tmp_path, api))

    async def work() -> None:
        for n in range(20_000):
            channel.offer(occurrence("m", n, about=f"vol-{n % 5000}"))
        await _until(lambda: len(api.events) >= 10)

    with serving(api):
        asyncio.run(_run(channel, work))
    assert len(channel) <= 1000
    assert len(api.calls) < 200
    assert channel.results["MountFailed", "dropped"] + len(channel) > 0


def test_a_right_that_is_lacking_costs_an_event_and_nothing_else(tmp_path: Path) -> None:
    api = EventApi()
    api.refuse = lambda: 403
    channel = EventChannel(settings(tmp_path, api))

    async def work() -> None:
        channel.offer(occurrence("m", 1))
        await _until(lambda: channel.results["MountFailed", "refused"] == 1)

    with serving(api):
        asyncio.run(_run(channel, work))
    assert len(channel) == 0


def test_without_a_cluster_nothing_is_gathered(tmp_path: Path) -> None:
    api = EventApi()
    channel = EventChannel(settings(tmp_path, api, f"--facts={tmp_path}", "--launcher=process"))
    channel.offer(occurrence("m", 1))
    asyncio.run(channel.run())
    assert len(channel) == 0
    assert channel.results == {}
    api.server.server_close()
