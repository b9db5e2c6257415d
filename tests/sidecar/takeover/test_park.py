"""The park: descriptors outlive the process that put them there, and are let go when it says so."""

import os
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.takeover.park import Park
from sidemount.host.readiness import wait_readable
from tests.sidecar.takeover.processes import die, ended, in_child


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def park() -> Iterator[Park]:
    park = Park.make()
    yield park
    park.close()


def file_of(number: int, directory: Path) -> int:
    """Return a file without a name."""
    file = os.open(directory, os.O_TMPFILE | os.O_RDWR)
    os.write(file, b"%d" % number)
    return file


def recovered(park: Park) -> dict[int, bytes]:
    """Return the content of what another process finds there."""

    def look() -> dict[int, bytes]:
        other = Park.adopt(*(os.dup(end) for end in park.descriptors))
        return {key: os.pread(descriptor, 100, 0) for key, descriptor in other.recover().items()}

    found: dict[int, bytes] = in_child(look)
    return found


def test_descriptors_outlive_whoever_parked_them(park: Park, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        for number in range(700):
            park.hold(number, file_of(number, tmp_path))
        for number in range(0, 700, 7):
            park.release(number)
        die()
    assert ended(child) == -signal.SIGKILL
    found = recovered(park)
    assert {number: content for number, content in found.items() if number % 7} == {
        number: b"%d" % number for number in range(700) if number % 7
    }
    assert recovered(park) == found, "looking takes nothing away"


def test_what_is_released_is_let_go_at_once_while_there_is_little(park: Park) -> None:
    """The space of a deleted file must come back when its last user closes it; a pipe tells when that is."""
    told, held = os.pipe()
    assert park.hold(1, held)
    os.close(held)
    assert not wait_readable(told, 0.1), "it is kept"
    park.release(1)
    assert wait_readable(told, 5), "nobody has it any more"
    assert recovered(park) == {}
    os.close(told)


def test_key_that_is_held_again_leads_to_the_later_descriptor(park: Park, tmp_path: Path) -> None:
    first, second = file_of(1, tmp_path), file_of(2, tmp_path)
    assert park.hold(5, first)
    assert park.hold(5, second)
    assert recovered(park) == {5: b"2"}
    assert len(park) == 1
    os.close(first)
    os.close(second)


def test_any_sequence_leaves_what_is_held_and_little_else(park: Park, tmp_path: Path) -> None:
    dice = random.Random(1)
    files = {number: file_of(number, tmp_path) for number in range(400)}
    held: set[int] = set()
    for _ in range(6000):
        number = dice.choice(list(files))
        if number in held:
            park.release(number)
            held.discard(number)
        elif park.hold(number, files[number]):
            held.add(number)
    found = recovered(park)
    assert {number for number in held if found.get(number) != b"%d" % number} == set()
    assert len(found) - len(held) <= max(64, len(held) // 8 + 1)
    for file in files.values():
        os.close(file)


def test_there_is_an_end_to_what_can_be_held(park: Park, tmp_path: Path) -> None:
    park._inlet.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)  # net.core.wmem_max of most machines
    file = file_of(0, tmp_path)
    held = sum(park.hold(number, file) for number in range(5000))
    assert held == len(park) == 4096
    park.release(17)
    assert park.hold(9999, file)
    assert len(recovered(park)) >= 4096
    os.close(file)


def test_clearing_takes_everything_whoever_put_it_there(park: Park, tmp_path: Path) -> None:
    file = file_of(0, tmp_path)
    park.hold(1, file)
    other = Park.adopt(*(os.dup(end) for end in park.descriptors))
    other.clear()
    assert recovered(park) == {}
    assert other.hold(2, file)
    assert recovered(park) == {2: b"0"}
    other.close()
    os.close(file)


def test_successors_that_are_killed_at_any_time_lose_nothing(park: Park, tmp_path: Path) -> None:
    """S4-09. Each takes over what is there, adds, releases and is killed in the midst of it."""
    dice = random.Random(3)
    sure: dict[int, bytes] = {}
    for number in range(100):
        file = file_of(number, tmp_path)
        assert park.hold(number, file)
        sure[number] = b"%d" % number
        os.close(file)
    for generation in range(20):
        child = os.fork()
        if child == 0:
            own = Park.adopt(*(os.dup(end) for end in park.descriptors))
            for left in own.recover():  # what its predecessor had just released
                if left >= 1000:
                    own.release(left)
            key = 1000 * (generation + 1)
            while True:
                own.hold(key, file_of(key, tmp_path))
                own.release(key)
                key += 1
        time.sleep(0.005 + dice.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        ended(child)
        found = recovered(park)
        assert {key: content for key, content in found.items() if key < 1000} == sure
        assert len(found) < 300
    park.clear()
