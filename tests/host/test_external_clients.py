"""External FUSE clients as daemons: one that takes a descriptor, and one that mounts by itself."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.daemon_client_server import Restarts
from sidemount.model.mountspec import KeeperMount, MountSpec
from tests.host.conftest import MakePod
from tests.host.keeper_pod import PYTHON, Pod, is_alive, is_running, view, wait_stopped
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.fuse, pytest.mark.root]

# A client in the manner of sshfs or rclone mount2: its mount point may be /dev/fd/N. It serves one file.
CLIENT = """
import errno, os, stat, sys, pyfuse3, trio

class One(pyfuse3.Operations):
    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFDIR | 0o755 if inode == 1 else stat.S_IFREG | 0o644
        entry.st_size = 7
        return entry
    async def lookup(self, parent, name, ctx=None):
        if name == b"file":
            return await self.getattr(2)
        raise pyfuse3.FUSEError(errno.ENOENT)
    async def statfs(self, ctx):
        return pyfuse3.StatvfsData()
    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=2)
    async def read(self, fh, off, size):
        return b"content"[off:off + size]

print("secret is", open(sys.argv[3]).read(), "and password=hunter2 of s3://user:hidden@host", flush=True)
pyfuse3.init(One(), sys.argv[1], set(pyfuse3.default_options))
print("serving", sys.argv[1], file=sys.stderr, flush=True)
if sys.argv[2] == "fail":
    sys.exit(7)
import signal
def end(*_):
    try:
        pyfuse3.terminate()
    except Exception:  # the mount is gone already, and its main loop over
        pass
signal.signal(signal.SIGTERM, end)
trio.run(pyfuse3.main)
print("done", flush=True)
"""


def client_spec(*command: str, descriptor: bool, **more: object) -> MountSpec:
    """Return the spec of a volume that an external client serves."""
    given = {
        "volume": "train",
        "driver_class": "client",
        "source": "x://y",
        "command": command,
        "descriptor": descriptor,
        "uid": 0,
    }
    return MountSpec(**{**given, **more})  # type: ignore[arg-type]


@pytest.fixture
def given_pod(make_pod: MakePod, node: MountNode) -> Pod:
    """A pod whose client takes a descriptor."""
    script, secrets = node.work / "client.py", node.work / "secrets"
    script.write_text(CLIENT)
    secrets.mkdir()
    (secrets / "key").write_text("s3kr3t-value\n")
    command = (PYTHON, str(script), "${mountpoint}", "serve", str(secrets / "key"))
    return make_pod(KeeperMount(spec=client_spec(*command, descriptor=True), views=(view("train"),)))


def start(pod: Pod) -> None:
    """Start keeper and daemon."""
    pod.start_keeper()
    pod.start_daemon("train", "--secrets", str(pod.node.work / "secrets"))
    pod.wait_ready()


def test_a_client_that_takes_a_descriptor_serves_and_ends_with_the_keeper(given_pod: Pod) -> None:
    pod = given_pod
    start(pod)
    assert (pod.seen("train") / "file").read_text() == "content"
    (mount,) = pod.node.fuse_mounts()
    assert mount.fstype == "fuse.sidemount"
    assert pod.end() == 0
    assert pod.daemons["train"].wait(10) == 0
    assert pod.node.fuse_mounts() == []


def test_what_a_client_writes_is_logged_without_secrets(given_pod: Pod) -> None:
    """S0-22, S4-26."""
    pod = given_pod
    start(pod)
    assert pod.end() == 0
    pod.daemons["train"].wait(10)
    lines = [e["line"] for e in pod.events(pod.daemon_log("train")) if e["event"] == "client_output"]
    assert {"secret is ***", " and password=*** of s3://***@host"} <= set(lines)
    assert any(line.startswith("serving /dev/fd/") for line in lines)
    for log in (pod.daemon_log("train"), pod.keeper_log):
        for secret in ("s3kr3t", "hunter2", "hidden"):
            assert secret not in log.read_text()


def kill_client(pod: Pod) -> None:
    """Kill the client that has worked, and wait until it is started again and shown, without any kubelet."""
    before = [e["pid"] for e in pod.events(pod.daemon_log("train")) if e["event"] == "client_started"]
    time.sleep(1.1)  # as long as it takes to have worked
    os.kill(before[-1], signal.SIGKILL)

    def is_back() -> bool:
        started = [e["pid"] for e in pod.events(pod.daemon_log("train")) if e["event"] == "client_started"]
        return len(started) == len(before) + 1 and pod.probe() == "ready"

    eventually(is_back, timeout_s=30, what=pod.log_text())


def test_a_client_that_dies_is_started_again_in_its_container(given_pod: Pod) -> None:
    """Kubelet would wait ten seconds and more, and the pod be unready."""
    pod = given_pod
    start(pod)
    descriptors = Path(f"/proc/{pod.daemons['train'].pid}/fd")
    before = len(list(descriptors.iterdir()))
    for layers in (2, 3, 4):
        kill_client(pod)
        assert (pod.seen("train") / "file").read_text() == "content"
        assert pod.layers("train") == layers
    assert is_running(pod.daemons["train"])
    eventually(
        lambda: len(list(descriptors.iterdir())) <= before, what="no descriptor is left of the clients before"
    )
    assert pod.end() == 0
    assert pod.daemons["train"].wait(10) == 0
    assert pod.node.fuse_mounts() == []


def test_what_a_dead_client_has_started_does_not_outlive_it(make_pod: MakePod, node: MountNode) -> None:
    """It could still write to the store on which the next one starts."""
    script, secret, left = node.work / "client.py", node.work / "secret", node.work / "left"
    script.write_text(CLIENT)
    secret.write_text("s3kr3t-value")
    # A helper with a child in a session of its own: the two of them would hold on to the connection, too.
    shell = f"(setsid sleep 1000 & echo $! >>{left}; exec sleep 1000) & exec {PYTHON} {script} ${{mountpoint}} serve {secret}"
    pod = make_pod(KeeperMount(spec=client_spec("sh", "-c", shell, descriptor=True), views=(view("train"),)))
    pod.start()
    for _ in range(2):
        (sleeper,) = [pid for pid in left.read_text().split() if is_alive(int(pid))]
        kill_client(pod)
        assert not is_alive(int(sleeper))
    assert (pod.seen("train") / "file").read_text() == "content"
    assert pod.end() == 0
    assert pod.daemons["train"].wait(10) == 0


def test_only_a_client_that_has_worked_is_started_again_and_not_for_ever() -> None:
    restarts = Restarts()
    assert not restarts.is_due(started=0.0, now=0.9)
    given = [restarts.is_due(started=2.0 * n, now=2.0 * n + 2) for n in range(12)]
    assert given == [True] * 10 + [False] * 2
    assert restarts.is_due(started=30.0, now=65.0)


def test_a_killed_shim_takes_its_client_with_it(given_pod: Pod) -> None:
    pod = given_pod
    start(pod)
    (started,) = [e for e in pod.events(pod.daemon_log("train")) if e["event"] == "client_started"]
    pod.kill_daemon()
    eventually(lambda: not Path(f"/proc/{started['pid']}/cwd").exists())
    assert pod.end() == 0


def test_a_client_that_serves_is_left_alone_though_its_shim_is_silent(given_pod: Pod) -> None:
    """Its end would cost every file that is open; whoever serves can be asked."""
    pod = given_pod
    pod.mounts = [replace(pod.mounts[0], spec=replace(pod.mounts[0].spec, hung_after_s=4))]
    start(pod)
    with (pod.seen("train") / "file").open() as file:
        wait_stopped(pod.daemons["train"].pid)
        time.sleep(6)
        assert file.read() == "content"
        assert pod.probe() == "ready"
        assert pod.layers("train") == 1
        assert "daemon_killed_as_hung" not in pod.names()
        os.kill(pod.daemons["train"].pid, signal.SIGCONT)
    assert pod.end() == 0


def test_a_keeper_restart_is_not_noticed_by_a_client_either(given_pod: Pod) -> None:
    pod = given_pod
    start(pod)
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.start_keeper()
    pod.wait_ready()
    assert (pod.seen("train") / "file").read_text() == "content"
    assert pod.layers("train") == 1
    assert pod.end() == 0
    assert pod.daemons["train"].wait(10) == 0


def test_what_a_client_leaves_behind_is_reaped(make_pod: MakePod, node: MountNode) -> None:
    """Its shim is the first process of the container: nobody else would."""
    begun, over = node.work / "begun", node.work / "over"
    script = (
        f"for i in 1 2 3 4 5; do (sleep 0.$i &); done; touch {begun}; "
        f"sleep 2; until test -e {over}; do sleep 0.05; done; exit 0; : ${{mountpoint}}"
    )
    spec = client_spec("sh", "-c", script, descriptor=True)
    pod = make_pod(KeeperMount(spec=spec, views=(view("train"),)))
    pod.start_keeper()
    daemon = pod.start_daemon()
    eventually(begun.exists, what="the client has left them")
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    eventually(lambda: len(children.read_text().split()) == 1, what="none but the client is left")
    over.touch()
    assert daemon.wait(10) == 0
    assert pod.end() == 0


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        pytest.param((PYTHON, "-c", "import sys; sys.exit(7)", "${mountpoint}"), 7, "", id="fails"),
        pytest.param(("/no/such/program", "${mountpoint}"), 3, "cannot start the client", id="missing"),
    ],
)
def test_a_client_that_does_not_start_is_told(
    make_pod: MakePod, command: tuple[str, ...], code: int, says: str
) -> None:
    pod = make_pod(KeeperMount(spec=client_spec(*command, descriptor=True), views=(view("train"),)))
    pod.start_keeper()
    assert pod.start_daemon().wait(10) == code
    assert says in pod.daemon_log("train").read_text()
    assert "Traceback" not in pod.daemon_log("train").read_text()
    assert pod.layers("train") == 0
    assert pod.end() == 0


# A client that mounts by itself --------------------------------------------------------------------------


@pytest.fixture
def own_pod(make_pod: MakePod, node: MountNode) -> Pod:
    """A pod whose client is bindfs, which knows no descriptors."""
    (node.work / "origin" / "sub").mkdir(parents=True)
    (node.work / "origin" / "file").write_text("content")
    (node.work / "origin" / "sub" / "file").write_text("below")
    command = ("bindfs", "-f", str(node.work / "origin"), "${mountpoint}")
    views = (view("train"), view("train", "sub", read_only=True))
    return make_pod(KeeperMount(spec=client_spec(*command, descriptor=False, hung_after_s=4), views=views))


SUB = view("train", "sub", read_only=True).name


def reads(pod: Pod) -> bool:
    """Tell whether both views show what they should."""
    return (pod.seen("train") / "file").read_text() == "content" and (
        pod.seen(SUB) / "file"
    ).read_text() == "below"


def test_a_client_that_mounts_by_itself_serves_and_ends_with_the_keeper(own_pod: Pod) -> None:
    pod = own_pod.start()
    assert reads(pod)
    with pytest.raises(OSError, match="Read-only"):
        (pod.seen(SUB) / "x").write_text("")
    assert pod.end() == 0
    assert pod.daemons["train"].wait(10) == 0
    assert pod.node.mounts_beneath(pod.place("train")) == []
    assert pod.node.fuse_mounts() == []


@pytest.mark.parametrize("victim", ["client", "shim"])
def test_it_is_succeeded_when_it_dies_and_no_write_lands_beneath(own_pod: Pod, victim: str) -> None:
    pod = own_pod.start()
    writer = pod.node.start(
        ["sh", "-c", f"i=0; while :; do i=$((i+1)); echo x > {pod.place('train')}/w$i; done"]
    )
    for _ in range(2):
        if victim == "client":
            kill_client(pod)
        else:
            pod.kill_daemon()
            pod.start_daemon()
            pod.wait_ready()
        assert reads(pod)
    writer.kill()
    writer.wait(20)
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []
    assert list(pod.seen("train").iterdir()) == []


def test_its_keeper_may_be_killed(own_pod: Pod) -> None:
    pod = own_pod.start()
    for _ in range(2):
        pod.keeper.kill()
        pod.keeper.wait(20)
        pod.start_keeper()
        pod.wait_ready()
        assert reads(pod)
    assert (pod.layers("train"), pod.layers("train.client")) == (1, 1)
    assert is_running(pod.daemons["train"])
    eventually(lambda: "daemon_came_back" in pod.names())
    assert pod.end() == 0
    assert pod.daemons["train"].wait(10) == 0


def test_it_is_replaced_when_it_hangs(own_pod: Pod) -> None:
    pod = own_pod.start()
    (started,) = [e for e in pod.events(pod.daemon_log("train")) if e["event"] == "client_started"]
    wait_stopped(started["pid"])
    hanging = pod.node.start(["ls", pod.place("train")])
    hanging.wait(20)
    os.kill(started["pid"], signal.SIGKILL)
    pod.daemons["train"].wait(20)
    pod.start_daemon()
    pod.wait_ready(timeout_s=30)
    assert reads(pod)
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


@pytest.mark.parametrize("gone", ["train", SUB])
def test_a_place_of_its_that_someone_unmounts_comes_back(own_pod: Pod, gone: str) -> None:
    pod = own_pod.start()
    pod.node.run("umount", "-l", pod.place(gone))
    eventually(lambda: pod.probe() == "ready" and pod.layers(gone) == 1)
    assert reads(pod)
    assert is_running(pod.daemons["train"])
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


def test_a_client_that_nobody_of_ours_started_is_shown_all_the_same(own_pod: Pod) -> None:
    pod = own_pod
    pod.start_keeper()
    eventually(lambda: pod.seen("train.client").exists())
    client = pod.node.start(["bindfs", "-f", pod.node.work / "origin", pod.place("train.client")])
    pod.wait_ready()
    assert reads(pod)
    began = time.monotonic()
    assert pod.end() == 0
    assert time.monotonic() - began < 5
    assert pod.node.fuse_mounts() == []
    assert client.wait(10) == 0
