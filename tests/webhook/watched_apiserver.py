"""A fake API server over real HTTP: lists with pages, watches with bookmarks, single reads, and every way to fail.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/ (resource versions, limit and continue, watch, bookmarks).
"""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Manifest = dict[str, Any]

# plural → kind, apiVersion, namespaced
SERVED = {
    "fusedriverclasses": ("FuseDriverClass", "sidemount.io/v1alpha1"),
    "namespaces": ("Namespace", "v1"),
    "persistentvolumes": ("PersistentVolume", "v1"),
    "persistentvolumeclaims": ("PersistentVolumeClaim", "v1"),
    "storageclasses": ("StorageClass", "storage.k8s.io/v1"),
    "csidrivers": ("CSIDriver", "storage.k8s.io/v1"),
    "nodes": ("Node", "v1"),
    "limitranges": ("LimitRange", "v1"),
    "resourcequotas": ("ResourceQuota", "v1"),
    "pods": ("Pod", "v1"),
}
PLURALS = {kind: plural for plural, (kind, _) in SERVED.items()}


@dataclass
class _Collection:
    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    history: list[tuple[int, str, Manifest]] = field(default_factory=list)
    compacted: int = 0


class WatchedApiServer:
    """Objects, their history, and what is wrong just now.

    `answers`: for a plural (or "*"), HTTP answers to give instead, first to last; None serves as usual. `always`: the same for
    every request. `is_frozen`: watches tell nothing. `gone_in_stream`: an old version is refused by an event.
    """

    def __init__(self) -> None:
        self.version = 100
        self.collections = {plural: _Collection() for plural in SERVED}
        self.answers: dict[str, list[int | bytes | str]] = {}
        self.always: dict[str, int] = {}
        self.calls: list[tuple[str, str]] = []
        self.is_frozen = False
        self.gone_in_stream = False
        self.token = ""
        self.expire_tokens = 0
        self.raw_lines: list[bytes] = []
        self.page_max = 1000
        self.delay_s = 0.0
        self.port = 0
        self.runner: web.AppRunner | None = None
        self._changed = asyncio.Condition()
        self._snapshots: dict[str, tuple[int, list[Manifest]]] = {}
        self._epoch = 0
        self._ending = ""

    # What a test does

    async def put(self, manifest: Manifest) -> Manifest:
        """Create or change an object."""
        manifest = copy.deepcopy(manifest)
        collection = self.collections[PLURALS[manifest["kind"]]]
        metadata = manifest["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        kind = "MODIFIED" if key in collection.objects else "ADDED"
        collection.objects[key] = manifest
        collection.history.append((self.version, kind, manifest))
        await self.tell()
        return manifest

    async def delete(self, kind: str, name: str, namespace: str = "") -> None:
        """Delete an object, if it is there."""
        collection = self.collections[PLURALS[kind]]
        manifest = collection.objects.pop((namespace, name), None)
        if manifest is None:
            return
        self.version += 1
        gone = copy.deepcopy(manifest)
        gone["metadata"]["resourceVersion"] = str(self.version)
        collection.history.append((self.version, "DELETED", gone))
        await self.tell()

    async def compact(self) -> None:
        """Forget all history: who watches from before gets 410."""
        self.version += 1
        for collection in self.collections.values():
            collection.compacted = self.version
            collection.history.clear()
        await self.end_streams("drop")

    async def end_streams(self, how: str) -> None:
        """End every open watch: `drop` the connection, `close` as by timeout, `garbage`, `gone`, `cut` within a line."""
        self._epoch += 1
        self._ending = how
        await self.tell()

    async def tell(self) -> None:
        """Wake every watch."""
        async with self._changed:
            self._changed.notify_all()

    def count(self, verb: str, plural: str = "") -> int:
        """Return how many calls there were."""
        return sum(v == verb and plural in ("", p) for v, p in self.calls)

    async def start(self) -> None:
        """Listen, on the port that it had before."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        """Be away."""
        await self.end_streams("drop")
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    # What it answers

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(parts) >= 3 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        plural, name = parts[0], parts[1] if len(parts) > 1 else ""
        is_watch = "watch" in request.query
        self.calls.append(("get" if name else "watch" if is_watch else "list", plural))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        told = self._told(plural)
        if isinstance(told, int):
            return _status(told, {403: "Forbidden", 410: "Expired", 404: "NotFound"}.get(told, "Failed"))
        if told == "drop":
            assert request.transport is not None
            request.transport.abort()
        if isinstance(told, bytes):
            return web.Response(body=told, content_type="application/json")
        if name:
            found = self.collections[plural].objects.get((namespace, name))
            return web.json_response(found) if found is not None else _status(404, "NotFound")
        return await self._watch(request, plural) if is_watch else self._list(request, plural, namespace)

    def _told(self, plural: str) -> int | bytes | str | None:
        for which in (plural, "*"):
            if which in self.always:
                return self.always[which]
            if self.answers.get(which):
                return self.answers[which].pop(0)
        return None

    def _list(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        kind, api_version = SERVED[plural]
        limit = min(int(request.query.get("limit", "0")) or 10**9, self.page_max)
        start = 0
        if token := request.query.get("continue"):
            if self.expire_tokens > 0 or token not in self._snapshots:
                self.expire_tokens -= 1
                return _status(410, "Expired")
            start, items = self._snapshots.pop(token)
            version = token.split("-")[0]
        else:
            objects = sorted(self.collections[plural].objects.items())
            items = [item for (space, _), item in objects if namespace in ("", space)]
            version = str(self.version)
        page = items[start : start + limit]
        metadata: Manifest = {"resourceVersion": version}
        if start + limit < len(items):
            metadata["continue"] = token = f"{version}-{plural}-{start + limit}"
            self._snapshots[token] = (start + limit, items)
        # Items of a list carry no kind of their own, but those of custom resources do.
        shown = (
            page
            if "." in api_version.partition("/")[0] and kind == "FuseDriverClass"
            else [_bare(i) for i in page]
        )
        return web.json_response(
            {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": shown or None}
        )

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        collection = self.collections[plural]
        version = int(request.query["resourceVersion"])
        if version < collection.compacted and not self.gone_in_stream:
            return _status(410, "Expired")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if version < collection.compacted:
            await response.write(_line("ERROR", _error(410, "Expired")))
            return response
        epoch = self._epoch
        while True:
            if version < collection.compacted:  # what came before is not there to be told any more
                return await self._end(request, response)
            events = [] if self.is_frozen else [e for e in collection.history if e[0] > version]
            for number, kind, manifest in events:
                await response.write(_line(kind, manifest))
                version = number
            while self.raw_lines:
                await response.write(self.raw_lines.pop(0))
            if self._epoch != epoch:
                return await self._end(request, response)
            async with self._changed:
                fresh = [e for e in collection.history if e[0] > version]
                if not self.raw_lines and self._epoch == epoch and (self.is_frozen or not fresh):
                    await self._changed.wait()

    async def _end(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        match self._ending:
            case "close":
                return response
            case "garbage":
                await response.write(b"<html>502 Bad Gateway</html>\n")
            case "gone":
                await response.write(_line("ERROR", _error(410, "Gone")))
            case "cut":
                await response.write(b'{"type":"ADDED","object":{"metad')
        assert request.transport is not None
        request.transport.close()
        return response

    async def bookmark(self) -> None:
        """Send a bookmark on the next watch that wakes."""
        self.raw_lines.append(_line("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))
        await self.tell()


def _bare(manifest: Manifest) -> Manifest:
    return {key: value for key, value in manifest.items() if key not in ("kind", "apiVersion")}


def _line(kind: str, manifest: Manifest) -> bytes:
    return json.dumps({"type": kind, "object": manifest}).encode() + b"\n"


def _error(code: int, reason: str) -> Manifest:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}


def _status(code: int, reason: str) -> web.Response:
    return web.json_response(_error(code, reason), status=code, headers={"Retry-After": "0"})


@asynccontextmanager
async def watched_apiserver() -> AsyncIterator[WatchedApiServer]:
    """Serve for as long as the block lasts."""
    server = WatchedApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def namespace(name: str, *, enabled: bool = True, **labels: str) -> Manifest:
    """Return a namespace."""
    own = {"sidemount.io/injection": "enabled"} if enabled else {}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**own, **labels}}}


def volume(name: str, handle: str = "h", driver: str = "csi.sidemount.io", **spec: Any) -> Manifest:
    """Return a CSI PersistentVolume."""
    csi = {"driver": driver, "volumeHandle": handle, "volumeAttributes": {"source": "s3://bucket/data"}}
    whole = {"accessModes": ["ReadWriteMany"], "csi": csi, **spec}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": whole}


def claim(name: str, space: str, volume_name: str = "") -> Manifest:
    """Return a claim, bound if a volume is given."""
    spec = {"volumeName": volume_name} if volume_name else {}
    metadata = {"name": name, "namespace": space}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def node(name: str, version: str = "v1.37.0") -> Manifest:
    """Return a node."""
    status = {"nodeInfo": {"kubeletVersion": version}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
