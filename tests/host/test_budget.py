"""The budget of a volume: creating, reading, raising, counting, and what a torn write or a crash leaves."""

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidemount.host import budget, budget_locks
from sidemount.host.budget_file import BudgetFile, Head, Kind, Pending
from sidemount.host.budget_settlement import settle
from sidemount.model.errors import BadMessage, HostFailure, InvalidRequest, NotReady, OperationPending
from sidemount.model.pool_layout import budget_path, data_dir, volume_dir

MI = 1 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume of one mebibyte that holds nothing."""
    directory = Path(volume_dir(str(tmp_path), "one"))
    Path(data_dir(str(directory))).mkdir(parents=True)
    budget.create(str(directory), MI)
    return directory


def opened(volume: Path) -> BudgetFile:
    """Return the budget, opened for as long as the test runs."""
    return BudgetFile(os.open(volume / "budget", os.O_RDWR))


def test_a_new_budget_says_what_it_was_made_with(volume: Path) -> None:
    assert budget.read(str(volume)) == budget.Budget(limit=MI, used=0)
    budget.create(str(volume), 5, used=4)
    assert budget.read(str(volume)) == budget.Budget(limit=5, used=4)
    assert os.listdir(volume) == ["data", "budget"] or sorted(os.listdir(volume)) == ["budget", "data"]
    assert os.stat(budget_path(str(volume))).st_mode & 0o7777 == 0o600


def test_a_limit_is_raised_and_never_lowered(volume: Path) -> None:
    """S4-17."""
    assert budget.raise_limit(str(volume), 4 * MI).limit == 4 * MI
    assert budget.raise_limit(str(volume), 2 * MI).limit == 4 * MI
    assert budget.read(str(volume)).limit == 4 * MI


def test_a_thin_volume_stays_thin(volume: Path) -> None:
    """S4-18."""
    budget.create(str(volume), 0)
    assert budget.raise_limit(str(volume), 4 * MI).limit == 0


def test_used_is_set(volume: Path) -> None:
    assert budget.set_used(str(volume), 77).used == 77
    assert budget.read(str(volume)) == budget.Budget(limit=MI, used=77)


@pytest.mark.parametrize("limit", [-1, 1 << 63, 1 << 70])
def test_wild_limits_are_refused(volume: Path, limit: int) -> None:
    with pytest.raises(InvalidRequest):
        budget.create(str(volume), limit)
    with pytest.raises(InvalidRequest):
        budget.raise_limit(str(volume), limit)


def test_no_budget_is_told_apart_from_a_damaged_one(volume: Path) -> None:
    os.unlink(volume / "budget")
    with pytest.raises(HostFailure) as missing:
        budget.read(str(volume))
    assert missing.value.errno == 2
    (volume / "budget").write_bytes(b"x" * 9000)
    with pytest.raises(BadMessage):
        budget.read(str(volume))


@given(tear=st.integers(0, 150), junk=st.binary(min_size=1, max_size=64))
def test_a_torn_write_leaves_the_state_before_it(
    tmp_path_factory: pytest.TempPathFactory, tear: int, junk: bytes
) -> None:
    directory = tmp_path_factory.mktemp("volume")
    budget.create(str(directory), MI, used=5)
    file = opened(directory)
    try:
        for used in (6, 7):
            before = file.read()
            after = file.write(
                before._replace(used=used, pending=Pending(Kind.RESIZE, 3, 4, path=b"a/b" * 30))
            )
            at = after.number % 2 * 4096
            whole = os.pread(file.fd, 4096, at)
            torn = whole[:tear] + bytes(byte ^ 0xFF for byte in whole[tear : tear + 1]) + junk
            os.pwrite(file.fd, torn, at)
            assert BudgetFile(file.fd).read() == before
            os.pwrite(file.fd, whole, at)
            assert BudgetFile(file.fd).read() == after
    finally:
        os.close(file.fd)


def test_a_reader_without_a_lock_sees_one_state_or_another(volume: Path) -> None:
    file = opened(volume)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            pending = Pending(Kind.RESIZE, number, number, path=str(number).encode() * 100)
            file.write(file.read()._replace(used=number, pending=pending))

    writer = threading.Thread(target=write)
    writer.start()
    other = opened(volume)
    try:
        for _ in range(2000):
            head = other.read()
            assert head.pending.inode == head.used
    finally:
        stop.set()
        writer.join()
        os.close(file.fd)
        os.close(other.fd)


RESIZED = [
    pytest.param(b"d/f", 10, 30, 120, id="grew"),
    pytest.param(b"d/f", 30, 10, 80, id="shrank"),
    pytest.param(b"d/f", 10, 10, 100, id="not begun"),
    pytest.param(b"d/gone", 10, 30, 100, id="not to be found"),
    pytest.param(b"link/f", 10, 30, 100, id="only through a symbolic link"),
]


@pytest.mark.parametrize(("path", "before", "now", "used"), RESIZED)
def test_a_size_that_its_author_did_not_live_to_note_is_looked_up(
    volume: Path, path: bytes, before: int, now: int, used: int
) -> None:
    directory = volume / "data" / "d"
    directory.mkdir()
    (volume / "data" / "link").symlink_to("d")
    (directory / "f").write_bytes(b"x" * now)
    inode = (directory / "f").stat().st_ino
    assert settled(volume, Head(0, MI, 100, Pending(Kind.RESIZE, inode, before, path=path))) == used
    assert settled(volume) == used


def test_a_removal_that_its_author_did_not_live_to_note_is_looked_up(volume: Path) -> None:
    target = volume / "data" / "f"
    target.write_bytes(b"x" * 10)
    pending = Pending(Kind.REMOVE, target.stat().st_ino, 10, path=b"f")
    assert settled(volume, Head(0, MI, 100, pending)) == 100
    target.write_bytes(b"")  # the same number again, which can only be a new file
    assert settled(volume, Head(0, MI, 100, pending)) == 90
    target.unlink()
    assert settled(volume, Head(0, MI, 100, pending)) == 90


def test_a_removed_file_that_is_open_belongs_to_its_mount(volume: Path) -> None:
    pending = Pending(Kind.REMOVE, 12345, 10, share=7, share_before=5, path=b"f")
    assert settled(volume, Head(0, MI, 100, pending)) == 100
    file = opened(volume)
    assert file.shares() == {7: 15}
    os.close(file.fd)


def test_a_file_without_a_path_is_found_by_its_further_name(volume: Path) -> None:
    target = volume / "data" / "f"
    target.write_bytes(b"x" * 10)
    inode = target.stat().st_ino
    os.link(target, volume / "pending-3")
    pending = Pending(Kind.RESIZE, inode, 4, is_linked=True, path=b"pending-3")
    assert settled(volume, Head(0, MI, 100, pending)) == 106
    assert not (volume / "pending-3").exists()
    pending = pending._replace(kind=Kind.REMOVE, size=10)
    os.link(target, volume / "pending-3")
    assert settled(volume, Head(0, MI, 100, pending)) == 100
    os.link(target, volume / "pending-3")
    target.unlink()
    assert settled(volume, Head(0, MI, 100, pending)) == 90


def test_files_are_counted_again_once_each(volume: Path) -> None:
    (volume / "data" / "d").mkdir()
    (volume / "data" / "d" / "f").write_bytes(b"x" * 10)
    os.link(volume / "data" / "d" / "f", volume / "data" / "g")
    (volume / "data" / "link").symlink_to("d/f")
    os.truncate(volume / "data" / "g", 1000)
    assert budget.recount(str(volume), 10) == budget.Budget(limit=MI, used=1000)


def test_what_holds_a_volume_still_ends_with_its_deadline(volume: Path) -> None:
    file = opened(volume)
    with pytest.raises(OperationPending), budget.hold_still(str(volume), 0.05):
        assert locks_wait(file.fd, time.monotonic() + 20)
    os.close(file.fd)


def test_one_holds_a_volume_still_at_a_time(volume: Path) -> None:
    with (
        budget.hold_still(str(volume), 30) as still,
        pytest.raises(OperationPending),
        budget.hold_still(str(volume), 0.01),
    ):
        pass
    assert still == budget.Budget(limit=MI, used=0)


def test_a_mount_that_does_not_stop_bounds_nobody(volume: Path) -> None:
    file = opened(volume)
    assert budget_locks.try_shared(file.fd, budget_locks.STANDSTILL)
    with pytest.raises(NotReady), budget.hold_still(str(volume), 0.05):
        pass
    assert not budget_locks.is_taken(file.fd, budget_locks.TURNSTILE)
    os.close(file.fd)
    with budget.hold_still(str(volume), 10):
        pass


def locks_wait(fd: int, deadline: float) -> bool:
    """Wait until nobody holds the volume still."""
    return budget_locks.wait_for(
        lambda: (
            budget_locks.try_shared(fd, budget_locks.STANDSTILL)
            and not budget_locks.is_taken(fd, budget_locks.TURNSTILE)
        ),
        deadline,
    )


def settled(volume: Path, head: Head | None = None) -> int:
    """Return what is used once whoever locks next has settled what `head` says."""
    file = opened(volume)
    directories = [os.open(path, os.O_PATH) for path in (volume, volume / "data")]
    try:
        if head is not None:
            file.write(file.read()._replace(used=head.used, pending=head.pending))
        found = settle(BudgetFile(file.fd), *directories)
        assert found.pending.kind is Kind.NOTHING
        return found.used
    finally:
        for fd in (file.fd, *directories):
            os.close(fd)
