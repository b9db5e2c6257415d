"""The webhook: throughput and processor time a review against a no-op aiohttp TLS handler, and the handler alone."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from certs.development import DevelopmentFiles, ensure_development
from certs.hosts import parse_hosts
from e2e.bench.load import Loader
from e2e.bench.reviews import make_envs_review, make_reviews
from e2e.bench.rows import Goal, Row, Sample, alternate, repeat
from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.facts import Facts
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings
from webhook.validate import validate

CONNECTIONS = 16
SECONDS = 1.0
ROUNDS = 11  # short turns and many: whatever else runs here meets both alike
BODIES = 64
SIZES = (("6 KB", 2, 6138), ("60 KB", 32, 61434))
VARIABLES = 5000

_ROOT = Path(__file__).parents[2]
_SAMPLES = _ROOT / "sidemount" / "samples"
_START_S = 30.0
_HANDLER_S = 0.3
_TICKS = os.sysconf("SC_CLK_TCK")
_Judge = Callable[..., object]
_NOOP = "no-op aiohttp TLS handler"


def rows() -> Iterator[Row]:
    """Measure everything about the webhook."""
    yield from _served_rows()
    yield from _handler_rows()


def _served_rows() -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sidemount-bench-")))
        files = DevelopmentFiles(directory)
        ensure_development(files, parse_hosts(["localhost", "127.0.0.1"]), now=datetime.now(UTC))
        ours = stack.enter_context(_running(_our_argv(files), r"https://127\.0\.0\.1:(\d+)"))
        noop_argv = ["-m", "e2e.bench.noop_webhook", str(files.serving), str(files.serving_key)]
        noop = stack.enter_context(_running(noop_argv, r"(\d+)"))
        for size, containers, size_bytes in SIZES:
            bodies = make_reviews(BODIES, containers=containers, size_bytes=size_bytes)
            loader = Loader(bodies, connections=CONNECTIONS, processor=_processors()[1])
            stack.callback(loader.close)
            figures = alternate(_measure(ours, loader), _measure(noop, loader), rounds=ROUNDS)
            note = f"by {loader.name}" + (
                f", {figures['errors'].ours:g} errors" if figures["errors"].ours else ""
            )
            yield Row(
                what=f"webhook {size}, {CONNECTIONS} connections: rate",
                ours=figures["rate"].ours,
                theirs=figures["rate"].theirs,
                unit="req/s",
                against=_NOOP,
                goal=Goal(at_least=0.75) if size == "6 KB" else None,
                note=note,
            )
            yield Row(
                what=f"webhook {size}: processor time a request",
                ours=figures["cpu_us"].ours,
                theirs=figures["cpu_us"].theirs,
                unit="µs",
                against=_NOOP,
            )


def _our_argv(files: DevelopmentFiles) -> list[str]:
    return [
        "-m", "webhook", "--listen", "127.0.0.1:0", "--tls-cert", str(files.serving), "--tls-key", str(files.serving_key),
        "--facts", str(_SAMPLES), "--lame-duck-seconds", "0",
    ]  # fmt: skip


class _Server:
    """A started server and what it spent."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process = process
        self.port = port

    def cpu_s(self) -> float:
        """Return the processor seconds it took so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextlib.contextmanager
def _running(arguments: list[str], port: str) -> Iterator[_Server]:
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        server_processor = _processors()[0]
        if server_processor is not None:
            os.sched_setaffinity(process.pid, {server_processor})
        readable, _, _ = select.select([process.stdout], [], [], _START_S)
        match = re.search(port, process.stdout.readline().decode() if readable else "")
        if match is None:
            raise RuntimeError(f"{arguments[1]} did not start")
        yield _Server(process, int(match[1]))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _processors() -> tuple[int | None, int | None]:
    """Return a processor for the server and one for the load, if there are two."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def _measure(server: _Server, loader: Loader) -> Callable[[], Sample]:
    def measure() -> Sample:
        before = server.cpu_s()
        load = loader.run(server.port, "/mutate", SECONDS)
        spent = server.cpu_s() - before
        return {"rate": load.rate, "cpu_us": spent / load.requests * 1e6, "errors": load.errors}

    return measure


def _handler_rows() -> Iterator[Row]:
    facts = FactsDirectory(_SAMPLES).facts()
    same = [InjectionSettings()] * 2
    # Settings that are never those of the call before: nothing decided earlier can be used again.
    changing = [InjectionSettings(probe_failures=number) for number in (100, 101)]

    def handler_us(judge: _Judge, bodies: list[bytes], settings: list[InjectionSettings]) -> float:
        return repeat(partial(_us, judge, bodies, facts, settings))

    for size, containers, size_bytes in SIZES:
        bodies = make_reviews(BODIES, containers=containers, size_bytes=size_bytes)
        yield Row(
            what=f"handler {size}, a pod of a workload seen before",
            ours=handler_us(mutate, bodies, same),
            unit="µs",
            goal=Goal(at_most=35, of_ours=True) if size == "6 KB" else None,
        )
        first = handler_us(mutate, bodies, changing)
        yield Row(what=f"handler {size}, the first pod of a workload", ours=first, unit="µs")
        yield Row(what=f"handler {size}, validating", ours=handler_us(validate, bodies, same), unit="µs")
    large = [make_envs_review(VARIABLES)]
    for what, settings in (("seen before", same), ("the first of a workload", changing)):
        yield Row(
            what=f"handler, {VARIABLES} variables, {what}",
            ours=handler_us(mutate, large, settings) / 1e3,
            unit="ms",
            goal=Goal(at_most=50, of_ours=True),
        )


def _us(judge: _Judge, bodies: list[bytes], facts: Facts, settings: list[InjectionSettings]) -> float:
    """Return the microseconds a body takes, over as many as fit in a while."""
    count = 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < _HANDLER_S:
        judge(bodies[count % len(bodies)], facts=facts, settings=settings[count % len(settings)])
        count += 1
    return elapsed / count * 1e6
