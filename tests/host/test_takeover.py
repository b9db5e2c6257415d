"""A volume of a class with takeover, and everything that may die: applications see a pause and nothing else."""

import contextlib
import errno
import os
import signal
import time
from pathlib import Path

import pytest

from sidecar.zygote_deaths import HOPELESS_AFTER
from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, is_alive, is_running, view, wait_stopped
from tests.host.mount_node import abort_connections, eventually
from tests.host.test_keeper_recovery import Reader, dead, end_cleanly

pytestmark = [pytest.mark.fuse, pytest.mark.root]


def takeover_pod(make_pod: MakePod, *flags: str, hung_after_s: int = 30) -> Pod:
    """Return a pod, not started, with a volume that can be taken over and two views of it."""
    spec = directory_spec(takeover=True, hung_after_s=hung_after_s)
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"), view("train", "sub"))), flags=flags)
    (pod.source("train") / "file").write_text("content")
    (pod.source("train") / "sub").mkdir()
    (pod.source("train") / "sub" / "file").write_text("content")
    return pod


@pytest.fixture
def pod(make_pod: MakePod) -> Pod:
    """Such a pod, live."""
    return takeover_pod(make_pod).start()


def read_from(pod: Pod) -> Reader:
    """Start an application that holds a file open and looks at everything."""
    return Reader(pod.node, pod.place("train") / "file", pod.node.work / "reader")


def succession(pod: Pod, number: signal.Signals = signal.SIGKILL) -> float:
    """Kill the process that serves, wait until another one does, and return the seconds that it took."""
    before = pod.serving()
    began = time.monotonic()
    os.kill(before, number)
    eventually(lambda: pod.serving() != before, what="somebody else serves", every_s=0.002)
    return time.monotonic() - began


def unnoticed(pod: Pod, reader: Reader) -> None:
    """Check that the reader goes on and has seen no fault, over one and the same mount."""
    assert reader.goes_on()
    assert reader.faults() == set()
    assert pod.layers("train") == 1


def finish(pod: Pod, reader: Reader) -> None:
    """End the reader and the pod."""
    reader.process.kill()
    reader.process.wait(20)
    end_cleanly(pod)


def test_the_death_of_the_serving_process_is_not_noticed(pod: Pod) -> None:
    reader = read_from(pod)
    for _ in range(10):
        succession(pod)
    unnoticed(pod, reader)
    assert is_running(pod.daemons["train"])
    assert "phase_changed" not in pod.names()[pod.names().index("daemon_succeeded_itself") :]
    finish(pod, reader)
    assert pod.daemons["train"].wait(10) == 0


def test_the_death_of_the_container_is_not_noticed(pod: Pod) -> None:
    reader = read_from(pod)
    for _ in range(3):
        pod.kill_daemon()
        assert pod.probe() == "not ready: its daemon has not connected yet"
        pod.start_daemon()
        pod.wait_ready()
        unnoticed(pod, reader)
    finish(pod, reader)


def test_the_death_of_the_keeper_is_not_noticed_and_it_learns_everything_anew(pod: Pod) -> None:
    """The new keeper has all that it needs to continue after the container's death: descriptor, INIT, state and what was kept."""
    reader = read_from(pod)
    for _ in range(3):
        pod.keeper.kill()
        pod.keeper.wait(20)
        succession(pod)  # nobody is told
        pod.start_keeper()
        pod.wait_ready()
        pod.kill_daemon()
        pod.start_daemon()
        pod.wait_ready()
    unnoticed(pod, reader)
    finish(pod, reader)


def test_everything_may_die_in_turn_while_a_file_without_a_name_is_written(pod: Pod) -> None:
    script = (
        "import os,sys,time\n"
        "f=os.open(sys.argv[1]+'/gone',os.O_RDWR|os.O_CREAT)\n"
        "os.unlink(sys.argv[1]+'/gone')\n"
        "open(sys.argv[2],'w').write('x')\n"
        "for n in range(400):\n"
        " os.pwrite(f,b'%08d'%n,n*8)\n"
        " time.sleep(0.01)\n"
        "want=b''.join(b'%08d'%n for n in range(400))\n"
        "assert os.pread(f,9999,0)==want, 'wrong'\n"
        "assert os.fstat(f).st_nlink==0\n"
    )
    begun = pod.node.work / "begun"
    writer = pod.node.start(
        ["python3", "-c", script, pod.place("train"), begun], log=pod.node.work / "writer"
    )
    eventually(begun.exists)
    succession(pod)
    pod.kill_daemon()
    pod.start_daemon()
    pod.wait_ready()
    pod.keeper.kill()
    pod.start_keeper()
    pod.wait_ready()
    pod.kill_daemon()
    pod.start_daemon()
    pod.wait_ready()
    succession(pod)
    assert writer.wait(20) == 0, (pod.node.work / "writer").read_text()
    end_cleanly(pod)


def test_keeper_and_daemon_killed_together_end_in_a_new_mount(pod: Pod) -> None:
    reader = read_from(pod)
    pod.keeper.kill()
    pod.kill_daemon()
    pod.keeper.wait(20)
    assert pod.node.call(lambda: dead(pod.place("train")))
    pod.start_keeper()
    pod.start_daemon()
    pod.wait_ready()
    assert reader.goes_on()
    assert pod.layers("train") == 2
    succession(pod)
    assert reader.goes_on()
    assert pod.layers("train") == 2
    finish(pod, reader)


def test_a_planned_succession_is_not_noticed(pod: Pod) -> None:
    reader = read_from(pod)
    for _ in range(5):
        before = pod.serving()
        pod.daemons["train"].send_signal(signal.SIGUSR1)
        eventually(lambda before=before: pod.serving() != before)  # type: ignore[misc]  # a lambda's default
    unnoticed(pod, reader)
    assert pod.names(pod.daemon_log("train")).count("handed_over") == 5
    assert "process_died" not in pod.names(pod.daemon_log("train"))
    finish(pod, reader)


def test_a_container_that_is_told_to_end_and_replaced_is_not_noticed(make_pod: MakePod) -> None:
    """A new image: the old container serves until its grace is over, whoever comes next continues."""
    pod = takeover_pod(make_pod)
    pod.start_keeper()
    pod.start_daemon("train", "--stop-seconds", "2")
    pod.wait_ready()
    reader = read_from(pod)
    pod.daemons["train"].terminate()
    assert pod.daemons["train"].wait(10) == 0
    pod.start_daemon()
    pod.wait_ready()
    unnoticed(pod, reader)
    finish(pod, reader)


# Hung -----------------------------------------------------------------------------------------------------


def test_a_stopped_serving_process_is_replaced_after_its_deadline(make_pod: MakePod) -> None:
    pod = takeover_pod(make_pod, hung_after_s=1).start()
    reader = read_from(pod)
    for _ in range(2):
        stopped = pod.serving()
        assert succession(pod, signal.SIGSTOP) < 6  # how soon depends on when it last told that it lives
        assert not is_alive(stopped)
    unnoticed(pod, reader)
    assert "process_killed_as_hung" in pod.names(pod.daemon_log("train"))
    finish(pod, reader)


@pytest.mark.slow
def test_waiting_processes_that_are_stopped_are_passed_over(make_pod: MakePod) -> None:
    pod = takeover_pod(make_pod).start()
    reader = read_from(pod)
    eventually(lambda: len(pod.processes()) == 4)
    serving = pod.serving()
    for pid in pod.processes()[1:]:
        if pid != serving:
            wait_stopped(pid)
    began = time.monotonic()
    succession(pod)
    assert time.monotonic() - began < 14
    unnoticed(pod, reader)
    finish(pod, reader)


def test_a_process_that_lives_and_answers_nothing_is_replaced(make_pod: MakePod) -> None:
    """Its heart beats, so only the keeper can know: requests wait and none is answered. Its store hangs, and comes back."""
    spec = directory_spec(takeover=True, hung_after_s=2)
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"),)))
    node = pod.node
    backing = node.work / "backing"
    backing.mkdir()
    (backing / "file").write_text("content")
    server = node.start(
        ["bindfs", "-f", "-o", "attr_timeout=0,entry_timeout=0", backing, pod.source("train")]
    )
    eventually(lambda: any(m.mount_point == str(pod.source("train")) for m in node.mounts()))
    pod.start()
    before = pod.serving()
    wait_stopped(server.pid)
    asking = node.start(["stat", pod.place("train") / "file"])
    eventually(lambda: not is_alive(before), what="the process that hangs is killed")
    assert "hung" in pod.names()
    os.kill(server.pid, signal.SIGCONT)
    assert asking.wait(20) == 0
    pod.wait_ready()
    assert pod.layers("train") == 1
    assert pod.end() == 0


def test_a_silent_first_process_ends_nothing_while_the_mount_answers(make_pod: MakePod) -> None:
    pod = takeover_pod(make_pod, hung_after_s=1).start()
    reader = read_from(pod)
    first = pod.daemons["train"].pid
    wait_stopped(first)
    time.sleep(4)
    unnoticed(pod, reader)
    os.kill(first, signal.SIGCONT)
    succession(pod)
    unnoticed(pod, reader)
    finish(pod, reader)


def test_when_the_first_process_is_silent_and_nobody_serves_all_is_killed_and_continued(
    make_pod: MakePod,
) -> None:
    pod = takeover_pod(make_pod, hung_after_s=1).start()
    reader = read_from(pod)
    pod.stop_daemon()
    assert pod.daemons["train"].wait(15) == -signal.SIGKILL
    pod.start_daemon()
    pod.wait_ready()
    unnoticed(pod, reader)
    finish(pod, reader)


# The end of a connection -----------------------------------------------------------------------------------


def test_an_aborted_connection_is_not_continued_for_ever(pod: Pod) -> None:
    """What the kernel has ended looks like a death, and could be handed on without end."""
    abort_connections({mount.minor for mount in pod.node.fuse_mounts()})
    eventually(lambda: pod.layers("train") == 2)
    pod.wait_ready()
    generations = len([e for e in pod.events(pod.daemon_log("train")) if e["event"] == "serving"])
    assert generations == 2
    assert is_running(pod.daemons["train"])
    assert (pod.seen("train") / "file").read_text() == "content"
    end_cleanly(pod)


def test_a_connection_aborted_while_nobody_serves_is_replaced(pod: Pod) -> None:
    pod.kill_daemon()
    abort_connections({mount.minor for mount in pod.node.fuse_mounts()})
    pod.start_daemon()
    pod.wait_ready()
    assert pod.layers("train") == 2
    end_cleanly(pod)


def test_a_state_that_cannot_be_read_ends_in_a_new_mount_and_not_in_a_loop(pod: Pod) -> None:
    reader = read_from(pod)
    (pod.run_dir / "train" / "state" / "state").write_bytes(b"junk")  # whoever has mapped it dies of that
    eventually(lambda: pod.layers("train") == 2)
    pod.wait_ready()
    assert is_running(pod.daemons["train"])
    assert reader.goes_on()
    assert reader.faults() <= {
        f"{what} {number}"
        for what in ("read", "stat", "open", "list")
        for number in (errno.ENOTCONN, errno.ECONNABORTED)
    }
    finish(pod, reader)


def test_a_container_with_another_state_does_not_get_the_connection(pod: Pod) -> None:
    """Whoever would continue with the wrong nodes would answer with the wrong files."""
    reader = read_from(pod)
    pod.kill_daemon()
    (pod.run_dir / "train" / "state" / "state").unlink()
    pod.start_daemon()
    pod.wait_ready()
    assert pod.layers("train") == 2
    assert reader.goes_on()
    finish(pod, reader)


def test_a_source_that_is_another_one_now_is_not_continued(pod: Pod) -> None:
    reader = read_from(pod)
    source = pod.source("train")
    source.rename(source.with_name("elsewhere"))
    source.mkdir()
    (source / "sub").mkdir()
    (source / "file").write_text("another")
    os.kill(pod.serving(), signal.SIGKILL)
    eventually(lambda: pod.layers("train") == 2)
    pod.wait_ready()
    assert (pod.seen("train") / "file").read_text() == "another"
    finish(pod, reader)


def test_a_source_that_is_away_for_a_while_is_waited_for(pod: Pod) -> None:
    """Nothing that is open is lost meanwhile, and the probe says what is the matter."""
    reader = read_from(pod)
    source = pod.source("train")
    source.rename(source.with_name("elsewhere"))
    os.kill(pod.serving(), signal.SIGKILL)
    eventually(lambda: (said := pod.probe()).startswith("not ready: abnormal: ") and str(source) in said)
    source.with_name("elsewhere").rename(source)
    eventually(lambda: pod.probe().startswith("ready"), timeout_s=20)
    unnoticed(pod, reader)
    finish(pod, reader)


# No takeover -----------------------------------------------------------------------------------------------


def test_without_resend_a_death_ends_in_a_new_mount_at_once(make_pod: MakePod) -> None:
    """A kernel before 6.9: the daemon's container lives, and nobody waits for kubelet."""
    pod = takeover_pod(make_pod)
    pod.start_keeper()
    pod.start_daemon("train", "--no-resend")
    pod.wait_ready()
    reader = read_from(pod)
    for layers in (2, 3):
        os.kill(pod.serving(), signal.SIGKILL)
        eventually(lambda layers=layers: pod.layers("train") == layers)  # type: ignore[misc]  # a lambda's default
        pod.wait_ready()
        assert reader.goes_on()
    assert is_running(pod.daemons["train"])
    finish(pod, reader)


@pytest.mark.parametrize("flag", [(), ("--runtime", "trio")], ids=["poll", "trio"])
def test_a_class_without_takeover_is_remounted_by_its_living_container(
    make_pod: MakePod, flag: tuple[str, ...]
) -> None:
    pod = make_pod()
    (pod.source("train") / "file").write_text("content")
    pod.start_keeper()
    pod.start_daemon("train", *flag)
    pod.wait_ready()
    reader = read_from(pod)
    os.kill(pod.serving(), signal.SIGKILL)
    eventually(lambda: pod.layers("train") == 2)
    pod.wait_ready()
    assert reader.goes_on()
    assert is_running(pod.daemons["train"])
    finish(pod, reader)


# Crash loops -------------------------------------------------------------------------------------------------


def test_a_crash_loop_backs_off_is_told_and_leaves_others_alone(make_pod: MakePod) -> None:
    mounts = [
        KeeperMount(spec=directory_spec(name, takeover=True), views=(view(name),)) for name in ("good", "bad")
    ]
    pod = make_pod(*mounts).start()
    (pod.seen("good") / "file").write_text("content")
    reader = Reader(pod.node, pod.place("good") / "file", pod.node.work / "reader")
    until = time.monotonic() + 4
    killed: set[int] = set()
    while time.monotonic() < until:  # before they have done anything
        for pid in pod.processes("bad")[1:]:
            if pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGSEGV)  # a kill from outside would be no reason to wait
        time.sleep(0.001)
    deaths = [e for e in pod.events(pod.daemon_log("bad")) if e["event"] == "process_died"]
    pauses = [e["pause_s"] for e in deaths]
    assert pauses[:2] == [0.0, 0.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 1.0
    assert "abnormal" in pod.probe("bad")
    assert reader.goes_on()
    assert reader.faults() == set()
    eventually(lambda: pod.probe("bad").startswith("ready: abnormal: "), timeout_s=20)
    reader.process.kill()
    began = time.monotonic()
    end_cleanly(pod)
    assert time.monotonic() - began < 10


def test_kills_in_quick_succession_are_outlived(pod: Pod) -> None:
    """Whoever serves or waits, so that the next one has to be forked: no time to do anything, and no reason to give up."""

    def pauses() -> list[float]:
        deaths = pod.events(pod.daemon_log("train"))
        return [event["pause_s"] for event in deaths if event["event"] == "process_died"]

    reader = read_from(pod)
    until = time.monotonic() + 60
    while len(pauses()) < HOPELESS_AFTER + 5:
        assert time.monotonic() < until, pauses()
        for pid in pod.processes()[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    unnoticed(pod, reader)
    assert max(pauses()) <= 0.1
    finish(pod, reader)


def test_a_pod_ends_at_once_while_its_daemon_waits_between_two_attempts(pod: Pod) -> None:
    source = pod.source("train")
    source.rename(source.with_name("elsewhere"))
    os.kill(pod.serving(), signal.SIGKILL)
    eventually(lambda: "abnormal" in pod.probe())
    began = time.monotonic()
    end_cleanly(pod)
    assert time.monotonic() - began < 15  # the limit for a daemon that does not end is 20 s and more
    assert pod.daemons["train"].wait(20) in (0, 4)


def test_nothing_is_left_of_a_daemon_that_is_killed(pod: Pod) -> None:
    processes = pod.processes()
    assert len(processes) >= 2
    pod.kill_daemon()
    assert not any(map(is_alive, processes))
    pod.start_daemon()
    pod.wait_ready()
    end_cleanly(pod)


def test_descriptors_and_memory_of_keeper_and_first_process_do_not_grow(pod: Pod) -> None:
    def taken() -> tuple[int, int, int, int]:
        keeper, first = pod.keeper.pid, pod.daemons["train"].pid
        return descriptors(keeper), descriptors(first), resident_kib(keeper), resident_kib(first)

    reader = read_from(pod)
    for _ in range(10):
        succession(pod)
        assert reader.goes_on()
    eventually(lambda: len(pod.processes()) == 4)
    before = taken()
    for _ in range(40):
        succession(pod)
        assert reader.goes_on()
    eventually(lambda: len(pod.processes()) == 4)
    eventually(lambda: taken()[:2] == before[:2], what=f"{taken()} as {before}")
    after = taken()
    assert after[2] <= before[2] + 512
    assert after[3] <= before[3] + 512
    unnoticed(pod, reader)
    finish(pod, reader)


def descriptors(pid: int) -> int:
    """Return how many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kib(pid: int) -> int:
    """Return how much memory of its own a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
