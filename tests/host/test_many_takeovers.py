"""Keeper and first process after many takeovers: as many descriptors as before, and as much memory."""

import contextlib
import json
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, process_state
from tests.host.test_keeper_recovery import end_cleanly
from tests.host.test_takeover import read_from, takeover_pod

pytestmark = [pytest.mark.fuse, pytest.mark.root]
WARM = 20
GROWTH_KIB = 768  # what the allocator of C and that of Python keep for later
SUCCEEDED_S = 30.0
ALIKE = 6  # looks in a row: by then the keeper has heard, what the last one left is closed, and no child is looking
TOLD_S = 0.03  # until the first process has heard that something was done


def _serving(log: Path) -> Iterator[int]:
    """Yield the process that serves, each time there is another one, without reading anything twice."""
    with log.open() as lines:
        until = time.monotonic() + SUCCEEDED_S
        while True:
            line = lines.readline()
            if line.endswith("\n"):
                event = json.loads(line)
                if event["event"] == "serving":
                    yield event["pid"]
                    until = time.monotonic() + SUCCEEDED_S
                continue
            assert time.monotonic() < until, "nobody serves any more"
            time.sleep(0.002)
            lines.seek(lines.tell() - len(line))


def _succeeded(last: int, serving: Iterator[int], seen: Path) -> int:
    """Kill the process that serves when it has done something, for which there are no pauses, and return the next one."""
    size, until = seen.stat().st_size, time.monotonic() + SUCCEEDED_S
    while seen.stat().st_size < size + 30:
        assert time.monotonic() < until, "the reader does not go on"
        time.sleep(0.002)
    time.sleep(TOLD_S)
    os.kill(last, signal.SIGKILL)
    return next(serving)


def _descriptors(pid: int) -> list[str]:
    """Return what a process has open, by kind; the numbers of sockets and pipes are new each time."""
    links: list[str] = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(os.readlink(entry))
    return sorted(link.partition(":[")[0] for link in links)


def _memory_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def _settled(pod: Pod) -> dict[str, tuple[list[str], int]]:
    """Return descriptors and memory of both, once the waiting processes are there again."""
    first = pod.daemons["train"].pid
    until = time.monotonic() + SUCCEEDED_S
    while len([pid for pid in pod.processes() if process_state(pid) in "SR"]) < 4:
        assert time.monotonic() < until, pod.processes()
        time.sleep(0.02)
    pids = {"keeper": pod.keeper.pid, "first": first}
    looks: deque[dict[str, list[str]]] = deque(maxlen=ALIKE)
    while len(looks) < ALIKE or any(look != looks[0] for look in looks):
        assert time.monotonic() < until, list(looks)
        looks.append({name: _descriptors(pid) for name, pid in pids.items()})
        time.sleep(0.1)
    return {name: (descriptors, _memory_kib(pids[name])) for name, descriptors in looks[0].items()}


@pytest.mark.parametrize(
    "count", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_nothing_piles_up(make_pod: MakePod, count: int) -> None:
    pod = takeover_pod(make_pod).start()
    reader = read_from(pod)
    serving = _serving(pod.daemon_log("train"))
    last = next(serving)
    for _ in range(WARM):
        last = _succeeded(last, serving, pod.node.work / "reader")
    before = _settled(pod)
    for _ in range(count):
        last = _succeeded(last, serving, pod.node.work / "reader")
    after = _settled(pod)
    for name, (descriptors, memory_kib) in after.items():
        assert descriptors == before[name][0], name
        assert memory_kib - before[name][1] < GROWTH_KIB, (name, before[name][1], memory_kib)
    assert reader.goes_on()
    assert reader.faults() == set()
    reader.process.kill()
    reader.process.wait(20)
    end_cleanly(pod)
