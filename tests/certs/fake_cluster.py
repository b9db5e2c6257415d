"""A small API server over real HTTP: objects with optimistic concurrency, JSON Patch, and faults on demand.

As the real one does, it refuses a write with an old resourceVersion (409), a second creation (409) and a failed `test`
of a patch (422), gives back what it stores, tells its time, and selects by label.
"""

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonpatch

from tests.certs.rotation_world import START, webhook_configuration

Manifest = dict[str, Any]
SECRET = "/api/v1/namespaces/sidemount-system/secrets/webhook-certs"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/sidemount-system/leases/webhook-certs"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/sidemount"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/sidemount"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/sidemount-system/endpointslices"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call. `applied`: the write takes place although the caller does not hear of it."""

    status: int = 0
    reset: bool = False
    slow_s: float = 0.0
    applied: bool = False
    body: bytes = b""


@dataclass
class FakeCluster:
    """What is stored, what was asked, and what goes wrong. `fault` is asked for every call: (method, path) → Fault."""

    objects: dict[str, Manifest] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    fault: Callable[[str, str], Fault | None] = lambda method, path: None
    now: Callable[[], Any] = lambda: START
    says_time: bool = True
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: int = 0

    def put(self, path: str, document: Manifest) -> None:
        """Store, whatever is there."""
        with self._lock:
            self._store(path, document)

    def get(self, path: str) -> Manifest | None:
        """Return what is stored."""
        with self._lock:
            return copy.deepcopy(self.objects.get(path))

    def delete(self, path: str) -> None:
        """Remove."""
        with self._lock:
            self.objects.pop(path, None)

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Manifest]:
        """Do one call."""
        split = urlsplit(target)
        path, query = split.path, parse_qs(split.query)
        with self._lock:
            if method == "GET" and "labelSelector" in query:
                return 200, {"metadata": {}, "items": self._listed(path, query["labelSelector"][0])}
            if method == "GET":
                return self._found(path)
            if method == "POST":
                path = f"{path}/{body['metadata']['name']}"
                if path in self.objects:
                    return _status(409, "AlreadyExists")
                return 201, self._store(path, body)
            if path not in self.objects:
                return _status(404, "NotFound")
            return self._replaced(path, body) if method == "PUT" else self._patched(path, body)

    def _found(self, path: str) -> tuple[int, Manifest]:
        return (200, copy.deepcopy(self.objects[path])) if path in self.objects else _status(404, "NotFound")

    def _replaced(self, path: str, body: Manifest) -> tuple[int, Manifest]:
        version = body["metadata"].get("resourceVersion")
        if version != self.objects[path]["metadata"]["resourceVersion"]:
            return _status(409, "Conflict")
        return 200, self._store(path, body)

    def _patched(self, path: str, body: list[Manifest]) -> tuple[int, Manifest]:
        try:
            return 200, self._store(path, jsonpatch.apply_patch(self.objects[path], body))
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            return _status(422, "Invalid", str(error))

    def _listed(self, path: str, selector: str) -> list[Manifest]:
        key, _, value = selector.partition("=")
        return [
            copy.deepcopy(document)
            for name, document in self.objects.items()
            if name.startswith(f"{path}/") and document["metadata"].get("labels", {}).get(key) == value
        ]

    def _store(self, path: str, document: Manifest) -> Manifest:
        self._count += 1
        document = copy.deepcopy(document)
        document["metadata"]["resourceVersion"] = str(self._count)
        document["metadata"].setdefault("managedFields", [{"manager": "kubectl"}])
        self.objects[path] = document
        return copy.deepcopy(document)


def with_configurations(cluster: FakeCluster) -> FakeCluster:
    """Add our webhook configurations, as a chart does: with nothing in caBundle, or next to nothing."""
    cluster.put(MUTATING, webhook_configuration("MutatingWebhookConfiguration", 2))
    cluster.put(VALIDATING, webhook_configuration("ValidatingWebhookConfiguration", 1, bundle="Cg=="))
    return cluster


@contextmanager
def serving(cluster: FakeCluster) -> Iterator[FakeCluster]:
    """Serve it on a loopback port for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30
        # An answer in one piece: two small writes wait for each other's acknowledgement.
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            _handle(cluster, self, "GET")

        def do_POST(self) -> None:
            _handle(cluster, self, "POST")

        def do_PUT(self) -> None:
            _handle(cluster, self, "PUT")

        def do_PATCH(self) -> None:
            _handle(cluster, self, "PATCH")

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Callers that crash in the middle of a call are what is tested here."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    cluster.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _handle(cluster: FakeCluster, handler: BaseHTTPRequestHandler, method: str) -> None:
    length = int(handler.headers.get("Content-Length") or 0)
    raw = handler.rfile.read(length) if length else b""
    cluster.calls.append((method, handler.path))
    fault = cluster.fault(method, urlsplit(handler.path).path)
    if fault is None or fault.applied or fault.slow_s:
        if fault is not None and fault.slow_s:
            time.sleep(fault.slow_s)
        status, document = cluster.answer(method, handler.path, json.loads(raw) if raw else None)
        if fault is None or not (fault.reset or fault.status):
            _send(cluster, handler, status, json.dumps(document).encode())
            return
    if fault.reset:
        handler.close_connection = True
        with suppress(OSError):
            handler.connection.close()
        return
    _, told = _status(fault.status, "Fault", "it was asked for: " + raw.decode()[:20000])
    _send(cluster, handler, fault.status, fault.body or json.dumps(told).encode())


def _send(cluster: FakeCluster, handler: BaseHTTPRequestHandler, status: int, content: bytes) -> None:
    handler.send_response_only(status)
    if cluster.says_time:
        handler.send_header("Date", format_datetime(cluster.now(), usegmt=True))
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
    handler.wfile.flush()


def _status(code: int, reason: str, message: str = "") -> tuple[int, Manifest]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
