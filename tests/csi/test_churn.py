"""Many volumes come and go, at once and against each other: neighbours notice nothing, and nothing is left of any."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.csi.plugin import Plugin, Refused
from tests.csi.test_faults import Writer
from tests.host.mount_node import eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]


def _together(works: Sequence[Callable[[], object]]) -> None:
    faults: list[BaseException] = []

    def carefully(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=carefully, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive()
    assert faults == []


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_targets_of_one_volume_go_while_their_neighbours_write(plugin: Plugin, count: int) -> None:
    """S2-20: also of a target whose daemon is dead. No error, the same daemons, no user counted."""
    names = [f"t{number}" for number in range(count)]
    _together([lambda name=name: plugin.publish(name) for name in names])  # type: ignore[misc]  # bound now
    stay, go = names[::2], names[1::2]
    for name in names:
        (plugin.store() / name).mkdir()
    pid_files = {path: path.read_text() for path in (plugin.state / "daemons").iterdir()}
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(Writer(plugin.seen(name) / name)) for name in stay]
        dead = _name_of(plugin, go[0])
        os.killpg(int((plugin.state / "daemons" / f"{dead}.pid").read_text()), signal.SIGKILL)
        _together([lambda name=name: plugin.unpublish(name) for name in go])  # type: ignore[misc]  # bound now
        for writer in writers:
            writer.goes_on()
    left = {path: path.read_text() for path in (plugin.state / "daemons").iterdir()}
    assert len(left) == len(stay)
    assert left.items() <= pid_files.items()
    for name in stay:
        plugin.unpublish(name)
    assert plugin.leftovers() == []


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_an_unpublish_that_races_a_recovery_wins(plugin: Plugin, rounds: int) -> None:
    """S0-31: no mount and no daemon comes back after OK."""
    for number in range(rounds):
        plugin.publish()
        daemon = plugin.first_daemon()
        kill = threading.Timer(number % 10 / 200, _kill_group, (daemon,))
        kill.start()
        plugin.unpublish()
        assert plugin.mount_ids() == []
        kill.join()
        assert plugin.leftovers() == []


@pytest.mark.parametrize(
    ("cycles", "at_once"), [pytest.param(20, 10, id="short"), pytest.param(200, 20, marks=pytest.mark.slow)]
)
def test_nothing_grows_with_the_volumes_that_have_been(plugin: Plugin, cycles: int, at_once: int) -> None:
    """S0-13: mounts, processes, descriptors, files and memory of plugin, keeper and nursery are what they were."""
    eventually(lambda: plugin.events("nursery_ready"), what="the nursery", timeout_s=60)
    processes = (plugin.process.pid, plugin.keeper(), int(plugin.events("nursery_ready")[-1]["pid"]))

    def cycle(name: str) -> None:
        plugin.publish(name, name)
        (plugin.seen(name) / "file").write_text(name)
        plugin.unpublish(name, name)
        assert (plugin.store(name) / "file").read_text() == name

    def rounds(count: int) -> None:
        for _ in range(count):
            _together([lambda n=n: cycle(f"v{n}") for n in range(at_once)])  # type: ignore[misc]  # bound now

    rounds(2)  # warm: threads, buffers, caches
    before = [_descriptors(pid) for pid in processes]
    memory = [_memory(pid) for pid in processes]
    rounds(cycles // at_once)
    assert plugin.leftovers() == []
    # What was open for a moment when they were counted first may be closed by now.
    eventually(
        lambda: all(_descriptors(pid) <= then for pid, then in zip(processes, before, strict=True)),
        what="no descriptor more",
    )
    grown = [now - then for now, then in zip(map(_memory, processes), memory, strict=True)]
    assert max(grown) < 8 << 20, grown


def test_names_of_every_kind_and_length(plugin: Plugin) -> None:
    """128 bytes of id, unicode in id and target, a target name of 255 bytes: each its own, found by a restarted plugin."""
    names = ["v" * 128, "ü" * 64, "名" * 42, 'a b"c\\d', "-rf", "..x"]
    targets = ["t" * 255, "ü" * 127, "目" * 85, 'a b"c\\d', "-rf", "..x"]
    for name, target in zip(names, targets, strict=True):
        request = plugin.publish_request("t")
        request.volume_id = name
        request.target_path = str(plugin.target(target))
        plugin.call("Node", "NodePublishVolume", request)
    plugin.kill()
    plugin.start()
    (plugin.store() / "file").write_text("seen")
    for name, target in zip(names, targets, strict=True):
        assert (plugin.seen(target) / "file").read_text() == "seen"
        eventually(partial(_is_well, plugin, target, name), what="known again")
        with pytest.raises(Refused):
            plugin.unpublish(target, "another")
        plugin.unpublish(target, name)
    assert plugin.leftovers() == []


def _is_well(plugin: Plugin, target: str, volume: str) -> bool:
    return not plugin.stats(target, volume).volume_condition.abnormal


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _name_of(plugin: Plugin, target: str) -> str:
    (mount,) = (m for m in plugin.node.fuse_mounts() if m.mount_point == str(plugin.target(target)))
    return mount.source.rpartition("/")[2]


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _memory(pid: int) -> int:
    """Return what is a process's alone and not of a file, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError(pid)
