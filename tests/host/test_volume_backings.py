"""What a keeper registers with the kernel, and for whom."""

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidemount.host import volume_backings
from sidemount.host.handover import BACKINGS_MAX
from sidemount.host.volume_backings import Backings
from tests.host.keeper_pod import directory_spec
from tests.host.mount_node import eventually


class Kernel:
    """Stands in for the ioctls of a connection."""

    def __init__(self) -> None:
        self.next = 1
        self.registered: set[int] = set()
        self.fault: int | None = None

    def ioctl(self, descriptor: int, request: int, argument: bytes) -> int:
        """Register or forget."""
        if self.fault is not None:
            raise OSError(self.fault, os.strerror(self.fault))
        if request == 0x4010E501:
            file, flags, padding = struct.unpack("=iIQ", argument)
            assert flags == padding == 0
            os.fstat(file)
            self.registered.add(self.next)
            self.next += 1
            return self.next - 1
        assert request == 0x4004E502
        self.registered.remove(struct.unpack("=I", argument)[0])
        return 0


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    replaced = SimpleNamespace(ioctl=kernel.ioctl, fcntl=fcntl.fcntl, F_DUPFD_CLOEXEC=fcntl.F_DUPFD_CLOEXEC)
    monkeypatch.setattr(volume_backings, "fcntl", replaced)
    return kernel


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file that is open for reading."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def backings(**changes: Any) -> Backings:
    """Return those of a volume whose connection has just been made; `super_options`: of one that was found."""
    options = changes.pop("super_options", None)
    places = SimpleNamespace(find=lambda: SimpleNamespace(minor=7, super_options=options))
    connection = SimpleNamespace(device=os.open(os.devnull, os.O_RDONLY), mount=3 if options is None else -1)
    spec = directory_spec(**{"read_only": True, **changes})
    state: Any = SimpleNamespace(spec=spec, connection=connection, places=places, number=7)
    return Backings(state)


def test_a_file_is_registered_until_it_is_not_needed(kernel: Kernel, file: int) -> None:
    ours = backings()
    one, two = ours.register(file), ours.register(file)
    assert kernel.registered == {one, two} == {1, 2}
    ours.unregister(one)
    ours.unregister(one)
    ours.unregister(99)
    eventually(lambda: kernel.registered == {two}, what="it is forgotten, once")


def test_what_the_daemon_does_not_know_of_is_forgotten(kernel: Kernel, file: int) -> None:
    ours = backings()
    numbers = [ours.register(file) for _ in range(3)]
    ours.settle(numbers[1:2])
    eventually(lambda: kernel.registered == {numbers[1]}, what="two are forgotten")


def test_what_an_earlier_keeper_has_registered_can_be_forgotten(kernel: Kernel, file: int) -> None:
    number = backings().register(file)
    later = backings()
    later.settle([number])
    later.unregister(number)
    eventually(lambda: not kernel.registered, what="it is forgotten")


def test_there_are_only_so_many(kernel: Kernel, file: int) -> None:
    ours = backings()
    assert all(ours.register(file) for _ in range(BACKINGS_MAX))
    assert ours.register(file) == 0
    ours.unregister(1)
    assert ours.register(file) == BACKINGS_MAX + 1
    eventually(lambda: 1 not in kernel.registered, what="it is forgotten")


@pytest.mark.parametrize(
    "changes",
    [
        {"read_only": False},
        {"filesystem": "objects"},
        {"filesystem": "", "descriptor": False},
        {"super_options": ("rw",)},
        {"super_options": ()},
    ],
    ids=str,
)
def test_nothing_is_registered_where_somebody_might_write(
    kernel: Kernel, file: int, changes: dict[str, Any]
) -> None:
    ours = backings(**changes)
    assert ours.register(file) == 0
    assert kernel.registered == set()


def test_a_mount_that_was_found_is_believed_what_the_kernel_says(kernel: Kernel, file: int) -> None:
    assert backings(super_options=("ro", "user_id=0")).register(file) == 1


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY, os.O_PATH])
def test_only_what_is_open_for_reading_is_registered(kernel: Kernel, tmp_path: Path, flags: int) -> None:
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", flags)
    assert backings().register(descriptor) == 0
    os.close(descriptor)


def test_only_regular_files_are_registered(kernel: Kernel, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    directory = os.open(tmp_path, os.O_RDONLY)
    for descriptor in (reader, writer, directory):
        assert backings().register(descriptor) == 0
        os.close(descriptor)


@pytest.mark.parametrize("fault", [1, 25, 40])
def test_a_kernel_that_does_not_is_no_fault(kernel: Kernel, file: int, fault: int) -> None:
    """EPERM, ENOTTY, ELOOP."""
    kernel.fault = fault
    assert backings().register(file) == 0
