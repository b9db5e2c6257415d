"""`python -m e2e.tests.load_process`: the process that makes a load, on the cluster's network. Its order is one line of JSON.

It ends when standard input does, or when it has made as many calls as it was told to. Each half second, and at the end, it
prints what has become of the calls.
"""

import asyncio
import base64
import json
import re
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from e2e.tests.load_http import Connection, Lost, Reply, get, post
from e2e.tests.load_tally import Outcome, Tally

_TELL_S, _LOOK_S = 0.5, 0.25
_KEEPER = "sidemount-keeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do. With `slices` set, `body` is a review for every ready endpoint of these slices; else a pod to create at `path`.

    `carries`: the init containers that a created pod has to have, each natively restarted. `most` 0: until the end of
    standard input. `rate` 0: as many calls a second as are answered.
    """

    host: str
    port: int
    authority: str
    token: str
    path: str
    body: str
    carries: tuple[str, ...] = ()
    slices: str = ""
    serving_authority: str = ""
    serving_name: str = ""
    connections: int = 8
    most: int = 0
    rate: float = 0.0
    call_s: float = 60.0

    def render(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))


class _Container(msgspec.Struct, rename="camel"):
    name: str
    restart_policy: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    init_containers: list[_Container] = []


class _Pod(msgspec.Struct, rename="camel"):
    spec: _Spec


class _Response(msgspec.Struct):
    allowed: bool = False
    patch: str = ""


class _Review(msgspec.Struct):
    response: _Response


_read_pod, _read_review = msgspec.json.Decoder(_Pod).decode, msgspec.json.Decoder(_Review).decode


class LoadMaker:
    """Keeps all connections busy."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._tally = Tally()
        self._headers = f"Authorization: Bearer {order.token}\r\n"
        self._api_context = trusting(order.authority)
        self._direct_context = trusting(order.serving_authority) if order.serving_authority else None
        self._endpoints: tuple[tuple[str, int], ...] = ()
        self._begun = 0
        self._opened = 0
        self._first_s = time.monotonic()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Make the load until it is to end."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(tell(lambda: self._tally.outcome(self._opened)))]
            if self._order.slices:
                await self._look()
                beside.append(group.create_task(self._follow()))
            ending = group.create_task(until_told(self._ended))
            workers = [group.create_task(self._work(number)) for number in range(self._order.connections)]
            await asyncio.wait(workers)
            for task in (*beside, ending):
                task.cancel()
        print(self._tally.outcome(self._opened).render(), flush=True)

    async def _work(self, number: int) -> None:
        calls: dict[tuple[str, int], tuple[Connection, bytes]] = {}
        turn = number
        while not self._ended.is_set() and not (self._order.most and self._begun >= self._order.most):
            self._begun += 1
            await self._pace()
            turn += 1
            where = self._where(turn)
            if where is None:
                self._tally.failed("no ready endpoint")
                await asyncio.sleep(_LOOK_S)
                continue
            if where not in calls:
                calls[where] = self._connection(*where), self._request(where[0])
            await self._call(*calls[where])
        for connection, _ in calls.values():
            connection.close()

    async def _pace(self) -> None:
        if self._order.rate:
            due_s = self._first_s + self._begun / self._order.rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def _call(self, connection: Connection, request: bytes) -> None:
        began, opened = time.monotonic(), connection.opened
        try:
            reply = await connection.call(request)
        except Lost as error:
            self._tally.failed(str(error))
        else:
            fault = self._fault(reply)
            if fault:
                self._tally.failed(fault)
            else:
                self._tally.good(time.monotonic() - began)
        self._opened += connection.opened - opened

    def _fault(self, reply: Reply) -> str:
        if self._order.slices:
            if reply.status != 200:
                return f"{reply.status}: {_sort(reply.body)}"
            response = _read_review(reply.body).response
            return "" if response.allowed and response.patch else "an answer without a patch"
        if reply.status != 201:
            return f"{reply.status}: {_sort(reply.body)}"
        found = {each.name: each.restart_policy for each in _read_pod(reply.body).spec.init_containers}
        missing = [name for name in self._order.carries if found.get(name) != "Always"]
        return f"admitted without {', '.join(missing)}" if missing else ""

    def _where(self, turn: int) -> tuple[str, int] | None:
        if not self._order.slices:
            return self._order.host, self._order.port
        return self._endpoints[turn % len(self._endpoints)] if self._endpoints else None

    def _connection(self, host: str, port: int) -> Connection:
        order = self._order
        if self._direct_context is None:
            return Connection(host, port, self._api_context, order.host, call_s=order.call_s)
        return Connection(host, port, self._direct_context, order.serving_name, call_s=order.call_s)

    def _request(self, host: str) -> bytes:
        headers = "" if self._order.slices else self._headers
        return post(self._order.path, host, self._order.body.encode(), headers)

    async def _follow(self) -> None:
        """Learn of endpoints a moment late, as a kube-proxy does."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    async def _look(self) -> None:
        """Learn the ready endpoints. While the API server is away, what is known stays."""
        order = self._order
        connection = Connection(order.host, order.port, self._api_context, order.host, call_s=order.call_s)
        try:
            reply = await connection.call(get(order.slices, order.host, self._headers))
        except Lost:
            return
        finally:
            connection.close()
        if reply.status == 200:
            self._endpoints = ready_endpoints(json.loads(reply.body))


def ready_endpoints(slices: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return address and port of every ready endpoint of a list of EndpointSlices."""
    return tuple(
        sorted(
            (address, port["port"])
            for each in slices["items"]
            for endpoint in each["endpoints"] or ()
            for address in endpoint["addresses"]
            for port in each["ports"]
            if endpoint.get("conditions", {}).get("ready", True)
        )
    )


def trusting(authority: str) -> ssl.SSLContext:
    """Return the context of a client that trusts this authority, in base64, and speaks HTTP/1.1."""
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    context.set_alpn_protocols(["http/1.1"])
    return context


async def until_told(ended: asyncio.Event) -> None:
    """Set an event when standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()
    ended.set()


async def tell(outcome: Callable[[], Outcome]) -> None:
    """Print how it stands, each half second."""
    while True:
        await asyncio.sleep(_TELL_S)
        print(outcome().render(), flush=True)


def read_order() -> Order:
    """Return the order that comes first on standard input."""
    told = json.loads(sys.stdin.readline())
    return Order(**{**told, "carries": tuple(told["carries"])})


def _sort(body: bytes) -> str:
    """Return what an error says, without what differs between two of a sort."""
    try:
        text = str(json.loads(body).get("message", ""))
    except ValueError:
        text = body.decode(errors="replace")
    return re.sub(r"\d+", "N", text)[:300]


if __name__ == "__main__":
    asyncio.run(LoadMaker(read_order()).run())
