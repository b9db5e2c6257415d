"""The serving process runs out of memory before its container does, and lives on."""

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.zygote_memory import (
    child_data_limit,
    container_memory_limit,
    has_room,
    is_too_small,
    kills_in,
    limit_data,
    limit_files,
    memory_events,
    out_of_memory_kills,
)
from sidemount.model.mountinfo import parse_mountinfo
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod, make_pod, node
from tests.host.keeper_pod import directory_spec, is_running, view
from tests.host.mount_node import eventually

__all__ = ["make_pod", "node"]  # fixtures of the host's tests

MIB = 1 << 20


@pytest.mark.parametrize(
    ("groups", "mounts", "files"),
    [
        pytest.param(
            "0::/\n",
            "1 0 0:1 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            ["/sys/fs/cgroup/memory.max"],
            id="v2, a container's own namespace",
        ),
        pytest.param(
            "0::/kubepods/pod1/c1\n",
            "1 0 0:1 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            [
                "/sys/fs/cgroup/kubepods/pod1/c1/memory.max",
                "/sys/fs/cgroup/kubepods/pod1/memory.max",
                "/sys/fs/cgroup/kubepods/memory.max",
                "/sys/fs/cgroup/memory.max",
            ],
            id="v2, the host's namespace",
        ),
        pytest.param(
            "9:name=systemd:/x\n4:memory:/kubepods/pod1/c1\n3:cpuset:/y\n",
            "1 0 0:1 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
            "2 0 0:2 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
            ["/sys/fs/cgroup/memory/memory.limit_in_bytes"],
            id="v1, what Docker mounts",
        ),
        pytest.param(
            "4:cpu,memory:/a\n",
            "1 0 0:1 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,cpu,memory\n",
            [
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ],
            id="v1, two controllers in one tree",
        ),
        pytest.param(
            "0::/../elsewhere\n",
            "1 0 0:1 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            ["/sys/fs/cgroup/elsewhere/memory.max", "/sys/fs/cgroup/memory.max"],
            id="v2, outside of the namespace's root",
        ),
        pytest.param("", "1 0 0:1 / /proc rw - proc proc rw\n", [], id="none"),
    ],
)
def test_limits_of_all_groups_above_count(groups: str, mounts: str, files: list[str]) -> None:
    assert list(limit_files(groups, parse_mountinfo(mounts))) == files


def test_kills_for_memory_are_counted_in_both_versions() -> None:
    assert kills_in("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n") == 2
    assert kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n") == 5
    assert kills_in("") == 0


def test_kills_are_read_from_where_they_are_counted(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom 3\noom_kill 2\n")
    assert out_of_memory_kills(str(events)) == 2
    events.write_text("junk")
    assert out_of_memory_kills(str(events)) == 0
    assert out_of_memory_kills("") == 0
    assert memory_events() == "" or Path(memory_events()).name in ("memory.events", "memory.oom_control")


def test_no_descriptor_for_a_look_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked between a death and its succession."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("sidecar.zygote_memory.read_mount_table", refuse)
    assert memory_events() == ""
    assert container_memory_limit() is None


def test_the_bound_leaves_room_for_the_rest_of_the_container() -> None:
    assert child_data_limit(None, 10 * MIB) is None
    for limit in (96 * MIB, 128 * MIB, 512 * MIB, 8 << 30):
        bound = child_data_limit(limit, 10 * MIB)
        assert bound is not None
        assert bound < limit - 10 * MIB
        assert bound > limit // 3


def test_room_is_what_the_own_limit_leaves() -> None:
    assert has_room()
    child = os.fork()
    if child == 0:
        limit_data(1 << 20)  # less than it has
        os._exit(has_room())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_limit_too_small_to_serve_in_still_gets_a_bound_that_lets_a_process_start() -> None:
    assert child_data_limit(16 * MIB, 10 * MIB) == 48 * MIB
    assert is_too_small(16 * MIB)
    assert not is_too_small(None)
    assert not is_too_small(88 * MIB)
    assert child_data_limit(88 * MIB, 12 * MIB) == 52 * MIB, "the bound, and what is left beside it"


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Return a cgroup with a memory limit, whichever version has the controller."""
    roots = ((Path("/sys/fs/cgroup"), "memory.max"), (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"))
    for root, name in roots:
        group = root / f"sidemount-test-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        group.mkdir()
        try:
            if (group / name).exists():
                (group / name).write_text(str(limit_bytes))
                yield group
                return
        finally:
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            eventually(lambda group=group: _removed(group), what=f"{group} is empty")  # type: ignore[misc]  # a lambda's default
    pytest.skip("no cgroup of this machine has the memory controller")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def fill_with_names(directory: Path, count: int) -> None:
    """Make many files with long names: knowing them all takes memory."""
    directory.mkdir()
    for number in range(count):
        os.close(os.open(directory / f"{number:06}{'x' * 240}", os.O_CREAT | os.O_WRONLY))


@pytest.mark.slow
@pytest.mark.fuse
@pytest.mark.root
def test_who_asks_for_too_much_is_told_so_and_the_container_lives(make_pod: MakePod) -> None:
    """S4-16: its own limit bites first, with an errno; the container's, which would kill all of it, never does.

    Should libfuse itself get no memory, that process ends, and another one continues.
    """
    pod = make_pod(KeeperMount(spec=directory_spec(takeover=True), views=(view("train"),)))
    fill_with_names(pod.source("train") / "many", 100_000)
    (pod.source("train") / "file").write_text("content")
    with memory_group(88 * MIB) as group:
        pod.start_keeper()
        entered = pod.node.start(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *daemon_command(pod)],
            log=pod.daemon_log("train"),
        )
        pod.daemons["train"] = entered
        pod.wait_ready()
        (loaded,) = (e for e in pod.events(pod.daemon_log("train")) if e["event"] == "modules_loaded")
        assert loaded["data_limit_bytes"] < 64 * MIB
        opened = os.open(pod.seen("train") / "file", os.O_RDONLY)
        outcomes = look_up_all(pod.seen("train") / "many", pod.source("train") / "many")
        assert set(outcomes) == {0, errno.ENOMEM}, {
            number: outcomes.count(number) for number in set(outcomes)
        }
        assert read_or_told(opened) in (b"content", errno.ENOMEM)
        os.close(opened)
        assert pod.layers("train") == 1, "whoever has taken over has found room for all that was known"
        assert is_running(entered)
        assert pod.end() == 0
        assert entered.wait(10) in (0, 4)


def read_or_told(descriptor: int) -> bytes | int | None:
    """Return what can be read, or the errno."""
    try:
        return os.pread(descriptor, 100, 0)
    except OSError as error:
        return error.errno


def look_up_all(shown: Path, source: Path) -> list[int]:
    """Look every name up, and return the errno of each, 0 for none."""
    found = []
    for name in os.listdir(source):
        try:
            os.stat(shown / name)
            found.append(0)
        except OSError as error:
            found.append(error.errno or -1)
    return found


def daemon_command(pod: object) -> list[str]:
    """Return the command of a pod's daemon."""
    from tests.host.keeper_pod import PYTHON, Pod

    assert isinstance(pod, Pod)
    places = ["--run-dir", pod.run_dir / "train", "--source", pod.source("train")]
    return [PYTHON, "-m", "sidecar", "daemon", *map(str, places)]
