"""The errno boundary: nothing but FUSEError leaves an operation, whatever the filesystem raises or returns."""

import contextlib
import errno
import inspect
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyfuse3
import pytest
import trio

from sidecar.daemon_work import CountedOperations, Work
from sidecar.protocol import FilesystemOperations, ProtocolSettings, may_access
from sidecar.protocol_errno import ERRNO, ErrnoTable
from sidecar.protocol_filesystem import Attributes, Entry, Opened, OperationAbsent, Statistics
from sidecar.takeover.memory import Memory
from sidemount.model.errors import Faults, HostFailure, InvalidRequest, VolumeError
from tests.sidecar.directory.core import Someone, run

CALLER = Someone(1000, 1000)
FILE = Attributes(77, stat.S_IFREG | 0o644, 1, 0, 0, 0, 5, 4096, 8, 1, 2, 3)


class Filesystem:
    """Does for every operation what the test says."""

    def __init__(self, behave: Callable[[], Any]) -> None:
        self._behave = behave
        self.memory = Memory()

    def begin(self, kernel_knows: Callable[[int], bool]) -> None:
        """Be served."""

    def read_now(self, *args: Any) -> Any:
        """Wait for everything."""
        return None

    def __getattr__(self, name: str) -> Any:
        async def operation(*args: Any) -> Any:
            return self._behave()

        return operation


@dataclass(frozen=True)
class Fields:
    """What a setattr changes."""

    update_mode: bool = True
    update_uid: bool = False
    update_gid: bool = False
    update_size: bool = False
    update_atime: bool = False
    update_mtime: bool = False


CALLS: dict[str, tuple[Any, ...]] = {
    "lookup": (1, b"n", CALLER),
    "getattr": (1, CALLER),
    "setattr": (1, pyfuse3.EntryAttributes(), Fields(), None, CALLER),
    "readlink": (1, CALLER),
    "mknod": (1, b"n", 0o644, 0, CALLER),
    "mkdir": (1, b"n", 0o755, CALLER),
    "unlink": (1, b"n", CALLER),
    "rmdir": (1, b"n", CALLER),
    "symlink": (1, b"n", b"t", CALLER),
    "rename": (1, b"n", 1, b"m", 0, CALLER),
    "link": (2, 1, b"n", CALLER),
    "open": (1, os.O_RDONLY, CALLER),
    "read": (1, 0, 100),
    "write": (1, 0, b"content"),
    "flush": (1,),
    "release": (1,),
    "fsync": (1, False),
    "opendir": (1, CALLER),
    "readdir": (1, 0, None),
    "releasedir": (1,),
    "fsyncdir": (1, False),
    "statfs": (CALLER,),
    "setxattr": (1, b"user.a", b"v", CALLER),
    "getxattr": (1, b"user.a", CALLER),
    "listxattr": (1, CALLER),
    "removexattr": (1, b"user.a", CALLER),
    "access": (1, 4, CALLER),
    "create": (1, b"n", 0o644, os.O_RDWR, CALLER),
    "poll": (1, 1, None, CALLER),
}
MUTATING = {"setattr", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link", "create", "write"}
MUTATING |= {"setxattr", "removexattr"}


def operations(behave: Callable[[], Any], *, read_only: bool = False) -> FilesystemOperations:
    """Return operations over a filesystem that behaves so."""
    return FilesystemOperations(Filesystem(behave), ProtocolSettings(read_only=read_only))


def raising(error: BaseException) -> Callable[[], Any]:
    """Return a behaviour."""

    def behave() -> Any:
        raise error

    return behave


def answer(call: str, what: FilesystemOperations) -> int:
    """Return the errno that a call answers."""
    with pytest.raises(pyfuse3.FUSEError) as raised:
        run(getattr(what, call)(*CALLS[call]))
    return raised.value.errno


def answer_or_value(call: str, what: FilesystemOperations) -> Any:
    """Return what a call returns, or the errno that it answers."""
    try:
        return run(getattr(what, call)(*CALLS[call]))
    except pyfuse3.FUSEError as error:
        return error.errno


def test_where_nothing_is_written_the_kernel_is_told_to_flush_nothing() -> None:
    """After one ENOSYS it asks no more: fuse_flush() of the kernel's fs/fuse/file.c."""
    assert answer("flush", operations(lambda: None, read_only=True)) == errno.ENOSYS
    assert answer_or_value("flush", operations(lambda: None)) is None


def test_every_operation_of_pyfuse3_is_guarded() -> None:
    known = {name for name, member in vars(pyfuse3.Operations).items() if inspect.iscoroutinefunction(member)}
    assert known == CALLS.keys() | {"forget"}
    for name in CALLS:
        assert getattr(FilesystemOperations, name).__dict__.get("is_guarded"), name
    assert "init" in vars(FilesystemOperations)
    assert "stacktrace" in vars(FilesystemOperations)


@pytest.mark.parametrize("call", [name for name in CALLS if name != "poll"])
@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, ""), errno.ENOSPC),
        (OSError(errno.ENOSYS, ""), errno.EOPNOTSUPP),
        (OSError("no number"), errno.EIO),
        (OSError(0, "success?"), errno.EIO),
        (OSError(512, "ERESTARTSYS"), errno.EIO),
        (OSError(-2, "negative"), errno.EIO),
        (FileNotFoundError(errno.ENOENT, ""), errno.ENOENT),
        (MemoryError(), errno.ENOMEM),
        (OperationAbsent(), errno.ENOSYS),
        (pyfuse3.FUSEError(errno.EXDEV), errno.EXDEV),
        (pyfuse3.FUSEError(0), errno.EIO),
        (InvalidRequest("x"), errno.EINVAL),
        (HostFailure("x", errno=errno.EDQUOT), errno.EDQUOT),
        (ValueError("x"), errno.EIO),
        (RecursionError(), errno.EIO),
        (StopAsyncIteration(), errno.EIO),
        (AssertionError(), errno.EIO),
        (ExceptionGroup("several", [ValueError()]), errno.EIO),
    ],
    ids=repr,
)
def test_exception_becomes_an_errno(call: str, error: Exception, number: int) -> None:
    assert answer(call, operations(raising(error))) == number


@pytest.mark.parametrize("call", [name for name in CALLS if name not in ("poll", "readdir", "listxattr")])
@pytest.mark.parametrize(
    "value",
    [None, "text", -1, 2**70, object(), Entry(-1, FILE), [1]],
    ids=["none", "text", "negative", "huge", "object", "entry", "list"],
)
def test_nonsense_becomes_an_errno_or_nothing(call: str, value: Any) -> None:
    """pyfuse3 converts what an operation returns outside the boundary: nothing that it cannot convert may get there."""
    result = answer_or_value(call, operations(lambda: value))
    expected = {
        "lookup": pyfuse3.EntryAttributes,
        "getattr": pyfuse3.EntryAttributes,
        "setattr": pyfuse3.EntryAttributes,
        "readlink": bytes,
        "getxattr": bytes,
        "open": pyfuse3.FileInfo,
        "opendir": int,
        "read": bytes,
        "write": int,
        "statfs": pyfuse3.StatvfsData,
    }
    assert result == errno.EIO or isinstance(result, expected.get(call, object))


@pytest.mark.parametrize("passing", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_passes(passing: type[BaseException]) -> None:
    with pytest.raises(passing):
        run(operations(raising(passing())).lookup(1, b"n", CALLER))  # type: ignore[arg-type]  # no request is at hand


def test_cancellation_passes() -> None:
    async def main() -> bool:
        class Waiting:
            memory = Memory()

            async def lookup(self, parent: int, name: bytes) -> Entry:
                await trio.sleep_forever()
                raise AssertionError

        what = FilesystemOperations(Waiting(), ProtocolSettings())  # type: ignore[arg-type]  # one operation is enough
        with trio.move_on_after(0.01) as scope:
            await what.lookup(1, b"n", CALLER)  # type: ignore[arg-type]  # no request is at hand
        return scope.cancelled_caught

    assert trio.run(main)


def test_forget_and_init_never_raise(caplog: pytest.LogCaptureFixture) -> None:
    what = operations(raising(ValueError("x")))
    run(what.forget([(1, 1)]))

    def fail() -> None:
        raise RuntimeError("the descriptor is gone")

    what.on_init = fail
    what.init()
    assert isinstance(what.init_error, RuntimeError)
    assert {record.getMessage() for record in caplog.records} == {"operation_raised", "init_failed"}


def test_hook_is_called_once_by_init() -> None:
    calls = []
    what = operations(lambda: None)
    what.init()
    what.on_init = lambda: calls.append("init")
    what.init()
    assert calls == ["init"]
    assert what.init_error is None


@pytest.mark.parametrize("call", list(CALLS))
def test_read_only_volume_refuses_every_change_before_the_filesystem_is_asked(call: str) -> None:
    asked = []

    def behave() -> Any:
        asked.append(call)
        raise OSError(errno.EDOM, "")

    number = answer(call, operations(behave, read_only=True))
    if call in MUTATING:
        assert (number, asked) == (errno.EROFS, [])
    else:
        assert number in (errno.EDOM, errno.ENOSYS)


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        (os.O_RDONLY, False),
        (os.O_RDONLY | os.O_NOATIME, False),
        (os.O_WRONLY, True),
        (os.O_RDWR, True),
        (os.O_RDONLY | os.O_TRUNC, True),
        (os.O_ACCMODE, True),
    ],
)
def test_read_only_volume_opens_for_reading_alone(flags: int, refused: bool) -> None:
    what = operations(lambda: Opened(5), read_only=True)

    def open_() -> int:
        return run(what.open(1, flags, CALLER)).fh  # type: ignore[arg-type]  # no request is at hand

    if not refused:
        assert open_() == 5
        return
    with pytest.raises(pyfuse3.FUSEError) as raised:
        open_()
    assert raised.value.errno == errno.EROFS


def test_defects_are_logged_with_trace_once_and_then_rarely(caplog: pytest.LogCaptureFixture) -> None:
    what = operations(raising(ZeroDivisionError("x")))
    for _ in range(1000):
        assert answer("getattr", what) == errno.EIO
    records = [record for record in caplog.records if record.getMessage() == "operation_raised"]
    assert len(records) == 10  # 1, 2, 4, … 512
    assert [bool(record.exc_info) for record in records] == [True] + [False] * 9
    assert vars(records[-1])["times"] == 512


def test_ordinary_errnos_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    what = operations(raising(FileNotFoundError(errno.ENOENT, "")))
    answer("lookup", what)
    assert caplog.records == []


def test_trouble_of_the_store_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    answer("read", operations(raising(OSError(errno.EIO, ""))))
    assert [record.getMessage() for record in caplog.records] == ["store_failed"]
    assert vars(caplog.records[0])["errno"] == "EIO"


def test_every_error_of_ours_has_an_errno() -> None:
    kinds = [VolumeError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    for kind in kinds[1:]:
        assert any(ancestor in ERRNO for ancestor in kind.__mro__), kind
    assert ErrnoTable().answer("x", Faults((InvalidRequest("a"), InvalidRequest("b")))) == errno.EINVAL


def test_statistics_arrive_in_the_right_fields() -> None:
    found = run(operations(lambda: Statistics(1, 2, 3, 4, 5, 6, 7, 8, 9)).statfs(CALLER))  # type: ignore[arg-type]  # no request is at hand
    names = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail", "namemax")
    assert [getattr(found, f"f_{name}") for name in names] == list(range(1, 10))


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("ENOTCONN", "EIO"),
        ("ECONNABORTED", "EIO"),
        ("ESTALE", "ESTALE"),
        ("EACCES", "EACCES"),
        ("EIO", "EIO"),
    ],
)
def test_a_dead_store_does_not_look_like_a_dead_mount(store: str, told: str) -> None:
    """Keepers ask for statistics to see whether a mount is dead: one that took this one for dead would end a living connection."""
    dead = operations(raising(OSError(getattr(errno, store), "")))
    assert answer("statfs", dead) == getattr(errno, told)


@pytest.mark.parametrize(
    ("mode", "uid", "groups", "mask", "allowed"),
    [
        (0o100600, 0, set(), 4, True),
        (0o100600, 0, set(), 1, False),
        (0o100700, 0, set(), 1, True),
        (0o040600, 0, set(), 1, True),
        (0o100640, 10, {1}, 6, True),
        (0o100640, 11, {20}, 4, True),
        (0o100640, 11, {20}, 2, False),
        (0o100604, 11, {20}, 4, False),
        (0o100604, 11, {1}, 4, True),
        (0o100044, 10, {20}, 4, False),
    ],
)
def test_mode_bits(mode: int, uid: int, groups: set[int], mask: int, allowed: bool) -> None:
    attributes = FILE._replace(mode=mode, uid=10, gid=20)
    assert may_access(attributes, mask, uid, groups) is allowed


@pytest.mark.parametrize("behave", [lambda: None, raising(OSError(errno.EACCES, "")), raising(ValueError())])
def test_every_handler_counts_into_the_work_that_is_told_to_the_keeper(behave: Callable[[], Any]) -> None:
    inner = operations(behave)
    work = Work()
    counted = CountedOperations(inner, work)
    for count, call in enumerate(CALLS, 1):
        with contextlib.suppress(pyfuse3.FUSEError):
            run(getattr(counted, call)(*CALLS[call]))
        assert (work.handled, work.in_progress) == (count, 0), call
    run(counted.forget([(1, 1)]))
    assert (work.handled, work.in_progress) == (len(CALLS) + 1, 0)


def test_a_read_that_need_not_wait_does_not() -> None:
    class Cached(Filesystem):
        def read_now(self, *args: Any) -> Any:
            return memoryview(b"cached") if args[0] == 1 else None

    what = FilesystemOperations(Cached(lambda: b"waited"), ProtocolSettings())
    assert bytes(run(what.read(1, 0, 6))) == b"cached"
    assert run(what.read(2, 0, 6)) == b"waited"
