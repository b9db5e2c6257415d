"""Replicas of the rotating process inside a test: the real code and real HTTP, with a clock that the test turns."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from kubernetes.aio import client

from certs.api_clock import ApiClock
from certs.delivery import CERTIFICATE, Delivery
from certs.live import parse_configuration
from certs.pem import parse_bundle
from certs.rotate_settings import RotateSettings
from certs.rotator import Rotator
from certs.standing import Standing
from certs.trust import verify
from sidemount.host.cluster import Cluster, Document, Place
from sidemount.host.election import Election, lease_place
from sidemount.model.errors import VolumeError
from tests.certs.fake_cluster import MUTATING, VALIDATING, FakeCluster
from tests.certs.rotation_world import POLICY, SERVICE, START


class Crash(BaseException):
    """The process is gone, in the middle of whatever it did."""


@dataclass
class Clock:
    """Time that passes only when it is told to."""

    moment: datetime = START
    passed_s: float = 1000.0

    def now(self) -> datetime:
        """The wall clock of everybody."""
        return self.moment

    def monotonic_s(self) -> float:
        """The monotonic clock of everybody."""
        return self.passed_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.moment += timedelta(seconds=seconds)
        self.passed_s += seconds


class CrashingCluster(Cluster):
    """Counts its calls, and crashes before or after one of them."""

    calls = 0
    crash_at: int | None = None
    crash_after: bool = False

    async def _call(self, method: str, path: str, place: Place, body: Any = None) -> Document:
        number, self.calls = self.calls, self.calls + 1
        if number == self.crash_at and not self.crash_after:
            raise Crash
        try:
            return await super()._call(method, path, place, body)
        finally:
            if number == self.crash_at:
                raise Crash


@dataclass
class Replica:
    """One pod's rotating process. A new one is started in the same directory after a crash."""

    server: FakeCluster
    clock: Clock
    directory: Path
    name: str = "a"
    probe: tuple[str, int] | None = None
    wall: Callable[[], datetime] | None = None
    call_s: float = 10.0
    starts: int = 0
    cluster: CrashingCluster = field(init=False)
    rotator: Rotator = field(init=False)
    election: Election = field(init=False)
    standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        """Start the first process."""
        self.start()

    def start(self) -> None:
        """Start a process."""
        self.starts += 1
        settings = RotateSettings(
            namespace=SERVICE.namespace,
            secret="webhook-certs",
            lease="webhook-certs",
            configurations=("sidemount",),
            directory=self.directory,
            identity=f"{self.name}-{self.starts}",
            policy=POLICY,
            probe=self.probe,
        )
        wall = self.wall or self.clock.now
        clock = ApiClock(wall, self.clock.monotonic_s)
        self.cluster = CrashingCluster(client.Configuration(host=self.server.url), clock, call_s=self.call_s)
        self.standing = Standing(self.clock.monotonic_s, stepped_at_s=self.clock.monotonic_s())
        self.election = Election(
            self.cluster,
            lease_place(settings.namespace, settings.lease),
            settings.identity,
            wall=wall,
            monotonic_s=self.clock.monotonic_s,
        )
        self.rotator = Rotator(
            self.cluster,
            settings,
            clock,
            self.standing,
            leads=lambda: self.election.leads,
            monotonic_s=self.clock.monotonic_s,
        )
        self.rotator.read_present()

    async def turn(self) -> float:
        """Campaign, look and act once; return the pause that was asked for."""
        with contextlib.suppress(VolumeError):
            await self.election.step()
        return await self.rotator.step()

    async def crash(self) -> None:
        """End the process without a word."""
        await self.cluster.__aexit__()

    async def close(self) -> None:
        """Close its connections."""
        await self.cluster.__aexit__()

    @property
    def chain(self) -> tuple[x509.Certificate, ...]:
        """What a server in this pod serves now."""
        return parse_bundle(Delivery(self.directory).present())

    def is_accepted(self) -> bool:
        """Tell whether every client accepts it."""
        now = self.clock.now()
        return bool(self.chain) and all(
            verify(self.chain, bundle, SERVICE.host, now=now).is_verified
            for bundle in live_bundles(self.server)
        )

    @property
    def has_certificate(self) -> bool:
        """Whether there is a file at all."""
        return (self.directory / CERTIFICATE).exists()


def live_bundles(server: FakeCluster) -> list[tuple[x509.Certificate, ...]]:
    """Return what each entry of ours makes API servers trust."""
    found = []
    for path, kind in ((MUTATING, "M"), (VALIDATING, "V")):
        document = server.get(path)
        if document is not None:
            found += [entry.bundle for entry in parse_configuration(document, kind, SERVICE).entries]
    return found


async def turn_until(
    replicas: list[Replica], clock: Clock, done: Callable[[], bool], *, turns: int = 60, seconds: float = 4.0
) -> None:
    """Let everybody turn until something is so; fail if it never is."""
    for _ in range(turns):
        for replica in replicas:
            await replica.turn()
        if done():
            return
        clock.advance(seconds)
    raise AssertionError("it did not come to pass: " + "; ".join(r.standing.fault for r in replicas))


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, in a loop of its own."""
    asyncio.run(work)
