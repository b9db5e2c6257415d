"""A keeper and its daemons on a real kernel: start, serve, and the end that leaves nothing."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from sidemount.model.mountspec import KeeperMount
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, is_running, view
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.fuse, pytest.mark.root]


def test_a_volume_is_live_and_at_the_end_nothing_is_mounted(make_pod: MakePod) -> None:
    pod = make_pod()
    (pod.source("train") / "file").write_text("content")
    pod.start()
    assert (pod.seen("train") / "file").read_text() == "content"
    (pod.seen("train") / "new").write_text("written through")
    assert (pod.source("train") / "new").read_text() == "written through"
    (mount,) = pod.node.fuse_mounts()
    assert (mount.fstype, mount.source) == ("fuse.sidemount", "sidemount:train")
    assert {"nosuid", "nodev"} <= set(mount.options)
    assert {"allow_other", "default_permissions", "user_id=0"} <= set(mount.super_options)
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []
    assert pod.daemons["train"].wait(10) == 0
    assert "daemon_flushed" in pod.names(), pod.log_text()
    assert (
        list(pod.place("train").parent.iterdir()) == []
    )  # the machine's own view of the place: never mounted here


def test_the_mounts_volume_belongs_to_root_alone(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.node.run("chown", "1000:1000", pod.mounts_dir)
    pod.node.run("chmod", "0777", pod.mounts_dir)
    pod.start()
    status = pod.seen("").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, 0, 0o755)
    pod.end()
    bare = pod.seen("train").stat()
    assert (bare.st_uid, bare.st_mode & 0o7777) == (0, 0o555)


def test_mounts_name_the_pod_they_belong_to(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.environment["SIDEMOUNT_POD_UID"] = "6b1d0c9e-1"
    pod.start()
    assert {m.source for m in pod.node.fuse_mounts()} == {"sidemount:6b1d0c9e-1/train"}
    assert pod.end() == 0


def test_a_daemon_of_an_unprivileged_user_serves(make_pod: MakePod) -> None:
    pod = make_pod(KeeperMount(spec=directory_spec(uid=65532), views=(view("train"),)))
    (pod.source("train") / "file").write_text("content")
    os.chown(pod.source("train"), 65532, 65532)
    pod.start()
    (pod.seen("train") / "new").write_text("x")
    status = Path(f"/proc/{pod.daemons['train'].pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert pod.end() == 0


@pytest.mark.parametrize("read_only", [False, True], ids=["read-write", "read-only"])
def test_a_read_only_request_is_read_only_everywhere(make_pod: MakePod, read_only: bool) -> None:
    views = (view("train", read_only=read_only), view("train", "sub", read_only=True))
    pod = make_pod(KeeperMount(spec=directory_spec(read_only=read_only), views=views))
    (pod.source("train") / "sub").mkdir()
    pod.start()
    for name in ("train", *(v.name for v in views)):
        is_read_only = read_only or name.endswith(views[1].name)
        if is_read_only:
            with pytest.raises(OSError, match="Read-only file system"):
                (pod.seen(name) / "x").write_text("")
        else:
            (pod.seen(name) / "x").write_text("")
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


def test_a_person_ends_it_by_sigint_and_a_second_does_no_harm(make_pod: MakePod) -> None:
    pod = make_pod().start()
    for _ in range(3):
        if is_running(pod.keeper):
            pod.keeper.send_signal(signal.SIGINT)
    assert pod.keeper.wait(20) == 0
    assert pod.node.fuse_mounts() == []


def test_a_keeper_without_daemons_ends_at_once(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.start_keeper()
    eventually(lambda: (pod.run_dir / "train" / "keeper.sock").exists())
    began = time.monotonic()
    assert pod.end() == 0
    assert time.monotonic() - began < 10  # and not the 20 s of a flush


def test_a_dead_daemon_does_not_delay_the_end(make_pod: MakePod) -> None:
    pod = make_pod().start()
    pod.kill_daemon()
    began = time.monotonic()
    assert pod.end() == 0
    assert time.monotonic() - began < 10  # and not the 20 s of a flush
    assert pod.node.fuse_mounts() == []


def test_a_stopped_daemon_ends_with_the_deadline(make_pod: MakePod) -> None:
    pod = make_pod(flags=("--flush-seconds", "2")).start()
    pod.stop_daemon()
    reader = pod.node.start(["ls", pod.place("train")])
    eventually(lambda: "fuse" in Path(f"/proc/{reader.pid}/stack").read_text())  # it waits for an answer
    began = time.monotonic()
    assert pod.end() == 0
    assert 1.5 < time.monotonic() - began < 15
    assert pod.node.fuse_mounts() == []
    assert reader.wait(20) != 0  # freed by the abort


def test_mounts_go_before_the_daemon_has_flushed(make_pod: MakePod) -> None:
    """A SIGKILL in the middle of a long flush must not leave a mount behind."""
    pod = make_pod(flags=("--flush-seconds", "30")).start()
    pod.stop_daemon()
    pod.keeper.send_signal(signal.SIGTERM)
    eventually(lambda: pod.node.fuse_mounts() == [])  # half of the time that a flush has
    assert is_running(pod.keeper)
    pod.keeper.kill()


def test_two_volumes_are_independent(make_pod: MakePod) -> None:
    mounts = [
        KeeperMount(spec=directory_spec(name, hung_after_s=60), views=(view(name),)) for name in ("a", "b")
    ]
    pod = make_pod(*mounts, flags=("--flush-seconds", "2"))
    pod.start_keeper()
    pod.start_daemon("a")
    pod.wait_ready("a")
    assert pod.probe("b") == "not ready: its daemon has not connected yet"
    (pod.seen("a") / "file").write_text("x")
    pod.stop_daemon("a")
    pod.start_daemon("b")
    pod.wait_ready("b")
    (pod.seen("b") / "file").write_text("x")
    assert pod.end() == 0
    assert pod.daemons["b"].wait(20) == 0


def test_a_daemon_told_to_end_serves_until_nobody_asks(make_pod: MakePod) -> None:
    """Kubelet stops a daemon's container before the keeper's, and waits for it: it must neither go at once nor stay."""
    pod = make_pod(flags=("--quiet-seconds", "3")).start()
    pod.daemons["train"].send_signal(signal.SIGTERM)
    until = time.monotonic() + 5
    while time.monotonic() < until:
        (pod.seen("train") / "file").write_text("still served")
        time.sleep(0.1)
    assert is_running(pod.daemons["train"])
    began = time.monotonic()
    assert pod.daemons["train"].wait(20) == 0
    assert time.monotonic() - began < 15
    assert pod.end() == 0


def test_a_daemon_told_to_end_ends_with_the_keeper(make_pod: MakePod) -> None:
    pod = make_pod(flags=("--quiet-seconds", "60")).start()
    pod.daemons["train"].send_signal(signal.SIGTERM)
    eventually(lambda: "told_to_end" in pod.names(pod.daemon_log("train")))
    assert is_running(pod.daemons["train"])
    assert pod.end() == 0
    assert pod.daemons["train"].wait(20) == 0


def test_a_daemon_whose_keeper_is_gone_ends_by_its_deadline(make_pod: MakePod) -> None:
    pod = make_pod()
    pod.start_keeper()
    pod.start_daemon("train", "--stop-seconds", "1")
    pod.wait_ready()
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.daemons["train"].send_signal(signal.SIGTERM)
    assert pod.daemons["train"].wait(10) == 0
    assert "keeper_did_not_let_go" in pod.names(pod.daemon_log("train"))


def test_files_are_closed_and_flushed_when_the_pod_ends_under_them(
    make_pod: MakePod, node: MountNode
) -> None:
    """Applications have ended before: what they wrote last is on the source."""
    pod = make_pod().start()
    writer = node.start(["dd", "if=/dev/zero", f"of={pod.place('train')}/big", "bs=1M", "count=64"])
    assert writer.wait(30) == 0
    assert pod.end() == 0
    assert (pod.source("train") / "big").stat().st_size == 64 << 20


def test_a_terminated_keeper_answers_probes_and_daemons_while_it_flushes(make_pod: MakePod) -> None:
    pod = make_pod(flags=("--flush-seconds", "3")).start()
    pod.stop_daemon()
    pod.keeper.send_signal(signal.SIGTERM)
    eventually(lambda: pod.node.fuse_mounts() == [])
    assert pod.probe() == "not ready: the pod is ending"
    assert pod.keeper.wait(10) == 0


def test_the_volume_is_shown_to_other_namespaces(make_pod: MakePod, node: MountNode) -> None:
    pod = make_pod()
    application = MountNode(node.work, parent=node)
    try:
        (pod.source("train") / "file").write_text("content")
        pod.start()
        assert application.run("cat", pod.place("train") / "file").stdout == "content"
        assert pod.end() == 0
        assert application.fuse_mounts() == []
    finally:
        application.close()


def test_private_mounts_are_warned_of(make_pod: MakePod, node: MountNode) -> None:
    pod = make_pod()
    node.run("mount", "--make-private", pod.mounts_dir)
    pod.start()
    assert "mounts_not_shared" in pod.names()
    assert pod.end() == 0


def test_paths_longer_than_a_socket_address_work(make_pod: MakePod, node: MountNode) -> None:
    node.work = node.work / ("d" * 100) / ("e" * 100)
    node.work.mkdir(parents=True)
    pod = make_pod().start()
    assert len(str(pod.run_dir)) > 200
    assert pod.end() == 0


def keeper_of(pod: Pod) -> int:
    """Return the keeper's pid."""
    return pod.keeper.pid


def test_the_keeper_cannot_be_looked_into(make_pod: MakePod) -> None:
    pod = make_pod().start()
    for process in (pod.keeper, pod.daemons["train"]):
        owner = Path(f"/proc/{process.pid}/mem").stat()
        assert owner.st_uid == 0
        nobody = pod.node.start(["ls", f"/proc/{process.pid}/fd"], uid=65534)
        assert nobody.wait(20) != 0
    assert Path(f"/proc/{keeper_of(pod)}/cwd").readlink() == Path("/")
    assert pod.end() == 0


def test_a_process_that_cannot_be_made_is_made_later(make_pod: MakePod) -> None:
    """Nothing waits for ever, and nothing is lost, because the machine had no room for a moment."""
    spec = directory_spec(options=(("writeback", True),))
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"),)))
    pod.start_keeper("tests.host.short_keeper", "processes")
    pod.start_daemon()
    pod.wait_ready()
    descriptor = os.open(pod.seen("train") / "file", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"content")  # nobody but the kernel has it
    assert pod.end() == 0
    with contextlib.suppress(OSError):  # there is nobody left to close it with
        os.close(descriptor)
    assert (pod.source("train") / "file").read_text() == "content"
    kinds = {event["kind"] for event in pod.events() if event["event"] == "no_process"}
    assert {"show_work", "sync_work", "check_work"} <= kinds
    assert pod.names(pod.daemon_log("train")).count("serving") == 1


def test_a_keeper_that_is_short_of_descriptors_gives_no_living_mount_up(make_pod: MakePod) -> None:
    pod = make_pod()
    (pod.source("train") / "file").write_text("content")
    pod.start()
    with (pod.seen("train") / "file").open() as file:
        pod.keeper.kill()
        pod.keeper.wait(20)
        pod.start_keeper("tests.host.short_keeper", "descriptors")
        pod.wait_ready()
        assert "attach_failed" in pod.names()
        assert file.read() == "content"
        assert pod.layers("train") == 1
    assert pod.end() == 0
