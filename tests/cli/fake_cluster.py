"""An API server for commands: canned answers over HTTP, kubeconfigs that lead to it, and every way to fail."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


def refusal(status: int, reason: str, message: str) -> tuple[int, Json]:
    """Return what an API server answers to what it does not do."""
    return status, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": status,
    }


def forbidden(what: str) -> tuple[int, Json]:
    """Return the answer to somebody without a right."""
    return refusal(
        403, "Forbidden", f'{what} is forbidden: User "dev" cannot list resource "{what}" in API group ""'
    )


class FakeCluster:
    """`objects` by collection path; `answers` by path, in place of those; `calls` are the requests that came.

    `admit` makes of a pod, by its path, what admission would make of it.
    """

    def __init__(self) -> None:
        self.objects: dict[str, list[Json]] = {}
        self.answers: dict[str, tuple[int, Any]] = {
            "/version": (200, {"gitVersion": "v1.31.2", "major": "1", "minor": "31"})
        }
        self.delays: dict[str, float] = {}
        self.logs: dict[str, str] = {}
        self.calls: list[str] = []
        self.writes: list[str] = []  # what is no dry run
        self.admit: Callable[[str, Json], Json] = lambda _, manifest: manifest
        self.port = 0

    def kubeconfig(self, directory: Path, **context: str) -> Path:
        """Write a kubeconfig that leads here."""
        path = directory / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                    "users": [{"name": "dev", "user": {"token": "tkn-never-shown"}}],
                    "contexts": [{"name": "dev", "context": {"cluster": "fake", "user": "dev", **context}}],
                    "current-context": "dev",
                }
            )
        )
        return path

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        """Return status and body."""
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        time.sleep(self.delays.get(url.path, 0.0))
        if method != "GET" and (method != "POST" or query.get("dryRun") != "All"):
            self.writes.append(f"{method} {target}")
        if url.path in self.answers:
            return self.answers[url.path]
        if method == "POST":
            return 201, self.admit(url.path, json.loads(body))
        if url.path.endswith("/log"):
            return (
                (200, self.logs[url.path])
                if url.path in self.logs
                else refusal(400, "BadRequest", "waiting to start")
            )
        if url.path in self.objects:
            return 200, _page(self.objects[url.path], query)
        collection, _, name = url.path.rpartition("/")
        for found in self.objects.get(collection, []):
            if found["metadata"]["name"] == name:
                return 200, found
        return refusal(404, "NotFound", f"{url.path} not found")


def _page(objects: list[Json], query: Mapping[str, str]) -> Json:
    start, limit = int(query.get("continue", "0")), int(query.get("limit", "500"))
    rest = len(objects) - start - limit
    metadata = {"resourceVersion": "7", **({"continue": str(start + limit)} if rest > 0 else {})}
    return {"kind": "List", "metadata": metadata, "items": objects[start : start + limit] or None}


@contextmanager
def fake_cluster() -> Iterator[FakeCluster]:
    """Serve for as long as the block lasts."""
    cluster = FakeCluster()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            cluster.calls.append(f"{self.command} {self.path}")
            status, answer = cluster.answer(self.command, self.path, body)
            text = answer if isinstance(answer, str) else json.dumps(answer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that gives up is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    cluster.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
