"""A fake API server for pods over real HTTP: creations, deletions with grace, lists, watches; and whatever goes wrong.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/, pkg/registry/core/pod/strategy.go (graceful deletion).
"""

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonpatch

Manifest = dict[str, Any]
Key = tuple[str, str]


class PodApi:
    """The pods of a cluster. `refuse` is asked for every call: (method, path) → status to answer instead, or None."""

    def __init__(self) -> None:
        self.pods: dict[Key, Manifest] = {}
        self.calls: list[tuple[str, str]] = []
        self.made: list[Manifest] = []
        self.events: list[Manifest] = []  # every version of every Event that was written
        self.refuse: Callable[[str, str], int | None] = lambda method, path: None
        self.changed = threading.Condition()
        self.history: list[tuple[int, str, Manifest]] = []
        self.version = 100
        self.is_ended = False
        handler = type("Handler", (_Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def kubeconfig(self, path: Path) -> Path:
        """Write how to reach it."""
        url = f"http://127.0.0.1:{self.server.server_port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
        }
        path.write_text(json.dumps(config))
        return path

    def end(self) -> None:
        """Answer nobody any more."""
        with self.changed:
            self.is_ended = True
            self.changed.notify_all()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)

    # What a kubelet and a test do --------------------------------------------------------------------

    def put(self, manifest: Manifest, *, kind: str = "MODIFIED") -> Manifest:
        """Store a pod and tell who watches."""
        with self.changed:
            manifest = copy.deepcopy(manifest)
            self.version += 1
            manifest["metadata"]["resourceVersion"] = str(self.version)
            self.pods[_key(manifest)] = manifest
            self._tell(kind, manifest)
            return manifest

    def bind(self, key: Key, uid: str, node_name: str) -> Manifest | None:
        """Say where a pod runs, if it is still that one; None if it is gone."""
        with self.changed:
            pod = self.pods.get(key)
            if pod is None or pod["metadata"]["uid"] != uid:
                return None
            return self.put({**pod, "spec": {**pod["spec"], "nodeName": node_name}})

    def status(self, key: Key, uid: str, status: Manifest) -> None:
        """Write the status of a pod, if it is still that one."""
        with self.changed:
            pod = self.pods.get(key)
            if pod is not None and pod["metadata"]["uid"] == uid:
                self.put({**pod, "status": status})

    def remove(self, key: Key, uid: str = "") -> None:
        """Have a pod gone, if it is that one."""
        with self.changed:
            pod = self.pods.get(key)
            if pod is None or (uid and pod["metadata"]["uid"] != uid):
                return
            del self.pods[key]
            self.version += 1
            pod = copy.deepcopy(pod)
            pod["metadata"]["resourceVersion"] = str(self.version)
            self._tell("DELETED", pod)

    def delete(self, key: Key, *, grace_s: int | None = None, uid: str = "") -> tuple[int, Manifest]:
        """Delete as the API server does: what a kubelet runs is only marked."""
        with self.changed:
            pod = self.pods.get(key)
            if pod is None:
                return 404, _status(404, "NotFound", f'pods "{key[1]}" not found')
            if uid and pod["metadata"]["uid"] != uid:
                return 409, _status(409, "Conflict", "the UID in the precondition does not match")
            grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
            is_run = pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") in (
                "Pending",
                "Running",
            )
            if not is_run or grace_s == 0:
                self.remove(key)
                return 200, pod
            before = pod["metadata"].get("deletionGracePeriodSeconds", grace_s)
            metadata = {
                **pod["metadata"],
                "deletionTimestamp": pod["metadata"].get("deletionTimestamp") or "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": min(before, grace_s),
            }
            return 200, self.put({**pod, "metadata": metadata})

    def create(self, manifest: Manifest) -> tuple[int, Manifest]:
        """Create as the API server does."""
        with self.changed:
            if _key(manifest) in self.pods:
                name = manifest["metadata"]["name"]
                return 409, _status(409, "AlreadyExists", f'pods "{name}" already exists')
            manifest = copy.deepcopy(manifest)
            manifest["metadata"]["uid"] = str(uuid.uuid4())
            manifest["status"] = {"phase": "Pending"}
            self.made.append(manifest)
            return 201, self.put(manifest, kind="ADDED")

    def _tell(self, kind: str, manifest: Manifest) -> None:
        self.history.append((self.version, kind, manifest))
        self.changed.notify_all()

    def listed(self, namespace: str, selector: str) -> list[Manifest]:
        """Return the pods that a list shows."""
        return [pod for key, pod in sorted(self.pods.items()) if _is_picked(pod, namespace, selector)]


class _Handler(BaseHTTPRequestHandler):
    api: PodApi
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _do(self) -> None:
        split = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.api.calls.append((self.command, split.path))
        refused = self.api.refuse(self.command, split.path)
        if refused == 0:
            self.close_connection = True
            return
        if refused is not None:
            self._answer(refused, _status(refused, "Refused", "as the test wants it"))
            return
        parts = split.path.strip("/").split("/")  # api v1 namespaces NS pods [NAME]
        namespace, name = parts[3], parts[5] if len(parts) > 5 else ""
        if parts[4] == "events":
            self._answer(*self._event(name, body))
            return
        match self.command:
            case "POST":
                self._answer(*self.api.create(body or {}))
            case "DELETE":
                body = body or {}
                grace_s, uid = body.get("gracePeriodSeconds"), body.get("preconditions", {}).get("uid", "")
                self._answer(*self.api.delete((namespace, name), grace_s=grace_s, uid=uid))
            case _ if name:
                pod = self.api.pods.get((namespace, name))
                self._answer(*((200, pod) if pod is not None else (404, _status(404, "NotFound", name))))
            case _ if "watch" in query:
                self._watch(namespace, query.get("labelSelector", ""), int(query["resourceVersion"]))
            case _:
                with self.api.changed:
                    items = self.api.listed(namespace, query.get("labelSelector", ""))
                    metadata = {"resourceVersion": str(self.api.version)}
                self._answer(200, {"kind": "PodList", "metadata": metadata, "items": items or None})

    do_GET = do_POST = do_PATCH = do_DELETE = _do

    def _event(self, name: str, body: Any) -> tuple[int, Manifest]:
        with self.api.changed:
            known = [event for event in self.api.events if event["metadata"]["name"] == name]
            if self.command == "GET":
                return (200, known[-1]) if known else (404, _status(404, "NotFound", name))
            event = jsonpatch.apply_patch(known[-1], body) if self.command == "PATCH" else body
            self.api.version += 1
            metadata = {**event["metadata"], "resourceVersion": str(self.api.version)}
            self.api.events.append({**event, "metadata": metadata})
            return (201 if self.command == "POST" else 200), self.api.events[-1]

    def _answer(self, status: int, document: Manifest) -> None:
        raw = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _watch(self, namespace: str, selector: str, version: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        api = self.api
        while not api.is_ended:
            with api.changed:
                fresh = [entry for entry in api.history if entry[0] > version]
                if not fresh:
                    api.changed.wait(1.0)
                    if api.refuse("GET", self.path) is not None:
                        break
                    continue
            for number, kind, pod in fresh:
                version = number
                if _is_picked(pod, namespace, selector):
                    line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
                    try:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                        self.wfile.flush()
                    except OSError:
                        return
        self.close_connection = True


def _is_picked(pod: Manifest, namespace: str, selector: str) -> bool:
    labels = pod["metadata"].get("labels", {})
    wanted = [part.split("=") for part in selector.split(",") if part]
    return pod["metadata"]["namespace"] == namespace and all(
        labels.get(key) == value for key, value in wanted
    )


def _key(manifest: Manifest) -> Key:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _status(code: int, reason: str, message: str) -> Manifest:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Tell whether it has become true in time."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
