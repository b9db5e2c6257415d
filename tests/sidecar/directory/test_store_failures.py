"""A store that fails, lies or hangs: the caller gets an errno, the mount stays and everything works again afterwards."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.store import parse_dirents
from sidecar.directory.syscalls import getdents64
from tests.sidecar.directory.faults import COMMANDS, EXCEPTIONS, OPERATIONS, Faults
from tests.sidecar.directory.harness import Mounted, mounted, outcome

pytestmark = [pytest.mark.fuse, pytest.mark.root]

_EXPECTED = ("operation_raised", "store_failed")
_HANGS_S = 3.0


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mounted, Faults]]:
    """A volume whose store fails on command."""
    yield from _failing(tmp_path_factory.mktemp("failing"))


def _failing(scratch: Path, *arguments: str, storage: str = "auto") -> Iterator[tuple[Mounted, Faults]]:
    source = scratch / "source"
    source.mkdir()
    faults = Faults(scratch / "faults.json")
    faults.clear()
    with mounted(
        scratch,
        source,
        "--store",
        "tests.sidecar.directory.faults:faulty",
        *arguments,
        allowed=_EXPECTED,
        environment={COMMANDS: str(scratch / "faults.json")},
        options={"attributeTimeout": 0, "storage": storage},
    ) as volume:
        yield volume, faults


def exercise(root: Path) -> list[Any]:
    """Call everything that reaches the store. Return the outcomes."""
    fd = outcome(os.open, root / "kept", os.O_RDWR)
    held: list[Any] = [fd] if isinstance(fd, int) else []
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (os.stat, (root / "kept",)),
        (os.listdir, (root,)),
        (os.mkdir, (root / "d",)),
        (os.mkfifo, (root / "p",)),
        (os.symlink, ("x", root / "l")),
        (os.readlink, (root / "l",)),
        (os.link, (root / "kept", root / "hard")),
        (_make, (root / "made",)),
        (os.rename, (root / "made", root / "moved")),
        (os.chmod, (root / "kept", 0o600)),
        (os.chown, (root / "kept", 1, 1)),
        (os.utime, (root / "kept",)),
        (os.truncate, (root / "kept", 5)),
        (os.setxattr, (root / "kept", "user.a", b"1")),
        (os.getxattr, (root / "kept", "user.a")),
        (os.listxattr, (root / "kept",)),
        (os.removexattr, (root / "kept", "user.a")),
        (os.statvfs, (root,)),
        (_sync_directory, (root,)),
    ]
    for fd in held:
        calls += [(os.pwrite, (fd, b"data", 0)), (os.pread, (fd, 4, 0)), (os.fsync, (fd,)), (os.fstat, (fd,))]
        calls += [(os.ftruncate, (fd, 3)), (os.close, (fd,))]
    calls += [(os.unlink, (root / name,)) for name in ("moved", "made", "hard", "l", "p")]
    calls += [(os.rmdir, (root / "d",))]
    return [outcome(call, *args) for call, args in calls]


def _make(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _recovers(volume: Mounted) -> None:
    """Check that the mount serves as if nothing had happened."""
    assert volume.is_alive()
    for name in os.listdir(volume.source):
        path = volume.source / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    (volume.path / "kept").write_text("kept content")
    assert (volume.source / "kept").read_text() == "kept content"
    failures = [result for result in exercise(volume.path) if isinstance(result, str) and result.isupper()]
    assert failures == ["ENOENT"]  # `made` was renamed before it was to be removed
    assert os.listdir(volume.path) == ["kept"]


@pytest.mark.parametrize("exception", list(EXCEPTIONS))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_exception_in_any_store_operation_is_an_errno_and_the_mount_stays(
    operation: str, exception: str, failing: tuple[Mounted, Faults]
) -> None:
    volume, faults = failing
    _recovers(volume)
    faults.set(**{operation: exception})
    try:
        outcomes = exercise(volume.path)
    finally:
        faults.clear()
    assert "ENOSYS" not in outcomes
    _recovers(volume)


@pytest.mark.parametrize(
    "error", ["EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS", "ENOMEM", "ESTALE", "ENOTCONN"]
)
def test_errno_of_the_store_is_the_callers(error: str, failing: tuple[Mounted, Faults]) -> None:
    volume, faults = failing
    _recovers(volume)
    faults.set(mkdir=error, create=error, unlink=error, chmod=error, setxattr=error)
    try:
        results = [
            outcome(os.mkdir, volume.path / "d"),
            outcome(_make, volume.path / "f"),
            outcome(os.unlink, volume.path / "kept"),
            outcome(os.chmod, volume.path / "kept", 0o600),
            outcome(os.setxattr, volume.path / "kept", "user.a", b""),
        ]
    finally:
        faults.clear()
    assert results == [error] * 5
    _recovers(volume)


def test_everything_failing_at_once_and_coming_back(failing: tuple[Mounted, Faults]) -> None:
    volume, faults = failing
    _recovers(volume)
    for error in ("EIO", "ValueError", "ENOTCONN"):
        faults.set(every=error)
        assert all(isinstance(result, str) for result in exercise(volume.path) if result is not None)
        faults.clear()
        _recovers(volume)


def test_defect_is_logged_with_its_trace_but_not_a_thousand_times(tmp_path: Path) -> None:
    for volume, faults in _failing(tmp_path):
        (volume.source / "f").touch()
        faults.set(status="KeyError")
        for _ in range(100):
            assert outcome(os.stat, volume.path / "f") == "EIO"
        faults.clear()
        raised = [record for record in volume.records() if record["event"] == "operation_raised"]
        assert any("faults.py" in record["trace"] and "KeyError" in record["trace"] for record in raised)
        assert len(raised) < 30


def test_listing_goes_on_where_attributes_cannot_be_had(failing: tuple[Mounted, Faults]) -> None:
    """As in the bare directory: names are there although a file cannot be looked at."""
    volume, faults = failing
    _recovers(volume)
    fd = os.open(volume.path, os.O_RDONLY)
    faults.set(status="EIO")
    try:
        listed = {entry.name: entry.kind for entry in parse_dirents(getdents64(fd, 4096))}
        assert listed == {b".": 4, b"..": 4, b"kept": 8}
    finally:
        faults.clear()
        os.close(fd)


def test_failed_creation_leaves_nothing_behind(failing: tuple[Mounted, Faults]) -> None:
    volume, faults = failing
    _recovers(volume)
    os.chmod(volume.source, 0o777)
    for operation in ("chown", "pin"):
        faults.set(**{operation: "EIO"})
        results = [
            _as_user(os.mkdir, volume.path, "d"),
            _as_user(os.mkfifo, volume.path, "p"),
            _as_user(_make, volume.path, "f") if operation == "chown" else "EIO",
            _as_user(_link_to_nothing, volume.path, "l"),
        ]
        faults.clear()
        assert results == ["EIO"] * 4
        assert os.listdir(volume.source) == ["kept"]


def _link_to_nothing(name: str) -> None:
    os.symlink("nothing", name)


def _as_user(call: Callable[..., Any], root: Path, name: str) -> Any:
    from tests.sidecar.directory.harness import run_as

    return run_as(1000, 1000, root, lambda: outcome(call, name))


def test_store_without_acls_is_no_failed_permission_check(failing: tuple[Mounted, Faults]) -> None:
    from tests.sidecar.directory.harness import run_as

    volume, faults = failing
    _recovers(volume)
    for directory in (volume.source, *volume.source.parents[:-2]):
        directory.chmod(directory.stat().st_mode | 0o711)
    (volume.source / "kept").chmod(0o664)
    faults.set(getxattr="EOPNOTSUPP")
    try:
        read = run_as(1000, 1000, volume.path, lambda: outcome(Path("kept").read_text))
    finally:
        faults.clear()
    assert read == "dat"  # what is left of it after the exercise


def test_filesystem_mounted_inside_the_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    _in_namespace("nested_mount", str(tmp_path), str(source))


def _in_namespace(module: str, *arguments: str, before: str = ":") -> None:
    """Run a module of this package in a mount namespace of its own."""
    script = f'{before} && exec "$0" -m tests.sidecar.directory.{module} "$@"'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout + done.stderr


def test_full_store_refuses_with_enospc_and_takes_data_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tiny = f"mount -t tmpfs -o size=256k,nr_inodes=40 none {source}"
    _in_namespace("full_store", str(tmp_path), str(source), before=tiny)


def test_remote_store_that_hangs_does_not_hold_up_the_others(tmp_path: Path) -> None:
    for volume, faults in _failing(tmp_path, storage="remote"):
        for name in ("slow", "quick"):
            (volume.source / name).write_text(name)
        quick = os.open(volume.path / "quick", os.O_RDWR)
        faults.set(readlink=_HANGS_S)
        os.symlink("target", volume.source / "link")
        hung = threading.Thread(target=os.readlink, args=(volume.path / "link",))
        begun = time.monotonic()
        hung.start()
        time.sleep(0.2)
        while hung.is_alive() and time.monotonic() - begun < _HANGS_S / 2:
            assert os.pread(quick, 10, 0) == b"quick"
            assert (volume.path / "slow").stat().st_size == 4
            assert sorted(os.listdir(volume.path)) == ["link", "quick", "slow"]
        assert hung.is_alive(), "the hung operation ended too soon to prove anything"
        hung.join()
        os.close(quick)


@pytest.mark.parametrize("slow", ["sync", "read"])
def test_disk_that_is_waited_for_does_not_hold_up_the_others(slow: str, tmp_path: Path) -> None:
    """A local store: what waits for the disk does so in a thread."""
    for volume, faults in _failing(tmp_path):
        (volume.source / "f").write_bytes(b"x" * 100_000)
        fd = os.open(volume.path / "f", os.O_RDWR)
        hang: dict[str, str | float] = {slow: _HANGS_S, "read_cached": "EAGAIN"}
        faults.set(**hang)
        thread = (
            threading.Thread(target=os.fsync, args=(fd,))
            if slow == "sync"
            else threading.Thread(target=os.pread, args=(fd, 10, 0))
        )
        begun = time.monotonic()
        thread.start()
        time.sleep(0.2)
        for number in range(20):
            os.mkdir(volume.path / f"d{number}")
        assert time.monotonic() - begun < _HANGS_S - 0.5
        assert thread.is_alive()
        thread.join()
        os.close(fd)


def test_source_that_dies_and_is_mounted_again(tmp_path: Path) -> None:
    """The source itself is a FUSE mount: its death gives ENOTCONN, its return is noticed without a restart."""
    inner, outer, store = tmp_path / "inner", tmp_path / "outer", tmp_path / "store"
    for directory in (inner, outer, store):
        directory.mkdir()
    (store / "f").write_text("content")
    _in_namespace("dying_source", str(inner), str(outer), str(store))
