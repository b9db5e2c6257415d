"""What is settled with the kernel beyond what pyfuse3 knows (`sidecar.init_answer`): that it holds, and that nothing is lost."""

import ctypes
import os
import stat
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.store import Store
from tests.sidecar.directory.conftest import open_up
from tests.sidecar.directory.harness import mounted, run_as

pytestmark = [pytest.mark.fuse, pytest.mark.root]

SET_IDS = 0o6777
CAPABILITY = "security.capability"
_BOUND_RAW = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)  # cap_net_raw+ep
_WRITES = 200
_COUNTS = "SIDEMOUNT_TEST_COUNTS"
_MEETING_S = 30.0
_FSETID = 1 << 4
_VERSION_3 = 0x20080522


def counting(store: Store) -> Store:
    """Return the store that writes down which extended attributes it is asked for."""
    path = os.environ[_COUNTS]

    class CountingStore(Store):
        def getxattr(self, fd: int, name: bytes) -> bytes:
            with open(path, "ab") as file:
                file.write(name + b"\n")
            return super().getxattr(fd, name)

    store.__class__ = CountingStore
    return store


def sociable(store: Store) -> Store:
    """Return the store in which whoever looks for `one` or `other` waits for somebody who looks for the other one."""
    meeting = threading.Barrier(2, timeout=_MEETING_S)

    class SociableStore(Store):
        def status(self, directory: int, name: bytes) -> Any:
            if name in (b"one", b"other"):
                meeting.wait()
            return super().status(directory, name)

    store.__class__ = SociableStore
    return store


def test_writes_ask_for_no_capabilities_each_time(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    asked = tmp_path / "asked"
    asked.touch()
    with mounted(
        tmp_path,
        source,
        "--store",
        f"{__name__}:counting",
        environment={_COUNTS: str(asked)},
        options={"attributeTimeout": 3600},
    ) as volume:
        with open(volume.path / "f", "wb", buffering=0) as file:
            for _ in range(_WRITES):
                file.write(b"x" * 512)
        assert (source / "f").stat().st_size == _WRITES * 512
    assert asked.read_bytes().count(CAPABILITY.encode()) <= 2


def test_names_in_one_directory_are_looked_up_at_the_same_time(tmp_path: Path) -> None:
    """A server that is slow to find one name holds up nobody who looks for another one beside it."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("one", "other"):
        (source / name).touch()
    with mounted(
        tmp_path,
        source,
        "--runtime",
        "poll",
        "--store",
        f"{__name__}:sociable",
        options={"storage": "remote", "attributeTimeout": 3600},
    ) as volume:
        found: list[str] = []

        def look(name: str) -> None:
            os.stat(volume.path / name)
            found.append(name)

        threads = [threading.Thread(target=look, args=(name,)) for name in ("one", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == ["one", "other"]


@pytest.mark.parametrize("privileges", ["set-id bits", "capabilities"])
def test_whoever_may_not_keep_privileges_loses_them(tmp_path: Path, privileges: str) -> None:
    """Without being asked before each write we still do what the kernel does to the bare directory."""
    open_up(tmp_path)
    source, bare = tmp_path / "source", tmp_path / "bare"
    for directory in (source, bare):
        directory.mkdir()
        directory.chmod(0o755)
    with mounted(tmp_path, source) as volume:
        for name, change in _CHANGES.items():
            for root, behind in ((bare, bare), (volume.path, source)):
                _make(behind / name, privileges)
                run_as(0, 0, root, partial(change, name))
            assert _privileges(source / name) == _privileges(volume.path / name)
            assert _privileges(source / name) == _privileges(bare / name), name


def test_capabilities_go_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with mounted(tmp_path, source) as volume:
        _make(source / "f", "capabilities")
        (source / "f").chmod(SET_IDS)
        os.removexattr(volume.path / "f", CAPABILITY)
        assert _privileges(source / "f") == (SET_IDS, [])


def _make(path: Path, privileges: str) -> None:
    path.write_bytes(b"x" * 8192)
    os.chown(path, 1000, 1000)
    path.chmod(SET_IDS if privileges == "set-id bits" else 0o777)
    if privileges == "capabilities":
        os.setxattr(path, CAPABILITY, _BOUND_RAW)


def _privileges(path: Path) -> tuple[int, list[str]]:
    return stat.S_IMODE(path.stat().st_mode), os.listxattr(path)


def _as_user() -> None:
    os.setgroups([])
    os.setresgid(2000, 2000, 2000)
    os.setresuid(2000, 2000, 2000)


def _without_fsetid() -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    few = int(status["CapEff"], 16) & ~_FSETID
    low, high = few & 0xFFFFFFFF, few >> 32
    content = struct.pack("=6I", low, low, 0, high, high, 0)
    assert ctypes.CDLL(None).capset(struct.pack("=II", _VERSION_3, 0), content) == 0


def _write(
    name: str, before: Callable[[], None], between: Callable[[], None], *, first: bool = False
) -> None:
    before()
    fd = os.open(name, os.O_RDWR)
    if first:
        os.pwrite(fd, b"y", 0)
        os.chmod(name, SET_IDS)
    between()
    os.pwrite(fd, b"z", 1)
    os.close(fd)


def _nothing() -> None:
    pass


def _cut(name: str, before: Callable[[], None], flags: int) -> None:
    before()
    fd = os.open(name, os.O_RDWR | flags)
    os.ftruncate(fd, 10)
    os.close(fd)


_CHANGES: dict[str, Callable[[str], None]] = {
    "root writes": lambda name: _write(name, _nothing, _nothing),
    "user writes": lambda name: _write(name, _as_user, _nothing),
    "root without CAP_FSETID writes": lambda name: _write(name, _without_fsetid, _nothing),
    "user writes what root has opened": lambda name: _write(name, _nothing, _as_user),
    "root writes, sets the bits, user writes": lambda name: _write(name, _nothing, _as_user, first=True),
    "user truncates": lambda name: _cut(name, _as_user, 0),
    "user opens with O_TRUNC": lambda name: _cut(name, _as_user, os.O_TRUNC),
    "root truncates": lambda name: _cut(name, _nothing, 0),
    "root opens with O_TRUNC": lambda name: _cut(name, _nothing, os.O_TRUNC),
    "root gives it away": lambda name: os.chown(name, 1001, -1),
    "root gives it to nobody": lambda name: os.chown(name, -1, -1),
}
