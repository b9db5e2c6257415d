"""The fake API server with what an observer asks for besides: logs, Events, Leases, status. It applies patches as a real one does."""

import copy
import json
from dataclasses import dataclass, field
from typing import Any

import jsonpatch
from aiohttp import web

from sidemount.model.timestamp import parse_timestamp_ms
from tests.webhook.watched_apiserver import Manifest, WatchedApiServer


@dataclass
class Log:
    """A pod's log, of the container that runs and of the one before."""

    lines: list[str] = field(default_factory=list)
    previous: list[str] = field(default_factory=list)


class ObservedApiServer(WatchedApiServer):
    """`written` are all writes: verb, plural, name. `refused`: plural → status that writes are answered with."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[tuple[str, str], Log] = {}
        self.log_queries: list[dict[str, str]] = []
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.written: list[tuple[str, str, str]] = []
        self.refused: dict[str, int] = {}

    def events(self, reason: str = "") -> list[Manifest]:
        """Return the Events that are there."""
        found = [item for (plural, _, _), item in self.objects.items() if plural == "events"]
        return [item for item in found if reason in ("", item["reason"])]

    async def start(self) -> None:
        """Listen, on the port that it had before."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self.runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if len(parts) >= 3 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        plural, name = parts[0], parts[1] if len(parts) > 1 else ""
        if parts[2:] == ["log"]:
            return self._log(request, namespace, name)
        if plural in ("events", "leases"):
            return await self._stored(request, plural, namespace, name)
        if parts[2:] == ["status"]:
            return await self._status(request, plural, name)
        if plural == "pods":
            assert request.query["labelSelector"] == "sidemount.io/injected=true"
        return await self._serve(request)

    def _log(self, request: web.Request, namespace: str, name: str) -> web.Response:
        query = dict(request.query)
        self.log_queries.append({"pod": name, **query})
        found = self.logs.get((namespace, name))
        if found is None:
            return _failure(400, "BadRequest")
        assert query["container"] == "sidemount-keeper"
        assert query["timestamps"] == "true"
        lines = found.previous if query.get("previous") == "true" else found.lines
        if "sinceTime" in query:
            since_ms = parse_timestamp_ms(query["sinceTime"]) or 0
            lines = [line for line in lines if (parse_timestamp_ms(line.split(" ")[0]) or 0) >= since_ms]
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        text = "".join(f"{line}\n" for line in lines).encode()[: int(query["limitBytes"])]
        return web.Response(body=text, content_type="text/plain")

    async def _stored(self, request: web.Request, plural: str, namespace: str, name: str) -> web.Response:
        if request.method != "GET" and plural in self.refused:
            return _failure(self.refused[plural], "Forbidden")
        body: Any = json.loads(await request.read()) if request.method != "GET" else None
        key = (plural, namespace, name or (body["metadata"]["name"] if request.method == "POST" else ""))
        found = self.objects.get(key)
        if request.method == "GET":
            return web.json_response(found) if found is not None else _failure(404, "NotFound")
        if (found is None) != (request.method == "POST"):
            return _failure(404 if found is None else 409, "AlreadyExists")
        if request.method == "PATCH":
            try:
                body = jsonpatch.apply_patch(copy.deepcopy(found), body)
            except jsonpatch.JsonPatchException:
                return _failure(422, "Invalid")
        elif found is not None and body["metadata"].get("resourceVersion") not in (
            None,
            found["metadata"]["resourceVersion"],
        ):
            return _failure(409, "Conflict")
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = body
        self.written.append((request.method, plural, key[2]))
        return web.json_response(body)

    async def _status(self, request: web.Request, plural: str, name: str) -> web.Response:
        found = self.collections[plural].objects[("", name)]
        try:
            changed = jsonpatch.apply_patch(copy.deepcopy(found), json.loads(await request.read()))
        except jsonpatch.JsonPatchException:
            return _failure(422, "Invalid")
        self.written.append((request.method, plural, name))
        return web.json_response(await self.put({**found, "status": changed["status"]}))


def _failure(code: int, reason: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response(status, status=code)
