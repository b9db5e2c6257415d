"""The process launcher: whose process a daemon is, what it may, what it is told, and that none is left."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from csi.proto import csi_pb2
from sidemount.model.mountinfo import Mount
from tests.csi.plugin import CLASSES, Plugin, Refused
from tests.host.mount_node import MountNode, eventually

pytestmark = [pytest.mark.root, pytest.mark.fuse]

CANARY = "c4nary-s3cret-value"
MORE_CLASSES = """
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: nobody}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
  uid: 65532
  abilities: {descriptor: true, takeover: true, readOnly: enforced}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: bindfs}
spec:
  deliveries: [csi]
  sources: ["bind://**"]
  namespaces: {}
  image: registry.example/bindfs:1
  command: [sh, -c, 'exec bindfs -f "$1" "$2"', sh, STORE, "${mountpoint}"]
  abilities: {descriptor: false}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: failing}
spec:
  deliveries: [csi]
  sources: ["fail://**"]
  namespaces: {}
  image: registry.example/failing:1
  command: [sh, -c, 'echo "no way, $(cat "$1/token") is bad" >&2; exit 7', sh, "${secrets}", "${mountpoint}"]
  credentials: {secretKeys: [token], required: true}
  abilities: {descriptor: true}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: silent}
spec:
  deliveries: [csi]
  sources: ["silent://**"]
  namespaces: {}
  image: registry.example/silent:1
  command: [sh, -c, "exec sleep 1000", sh, "${mountpoint}"]
  abilities: {descriptor: true}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {name: secretive}
spec:
  deliveries: [csi]
  sources: ["dir:///**"]
  namespaces: {}
  filesystem: directory
  uid: 0
  credentials: {secretKeys: [token], required: true}
"""


@pytest.fixture
def classes(node: MountNode) -> Iterator[Plugin]:
    """Return a plugin that knows more classes, with its state in memory."""
    plugin = Plugin(node)
    text = CLASSES + MORE_CLASSES.replace("STORE", str(plugin.store()))
    (node.work / "facts" / "classes.yaml").write_text(text)
    plugin.state.mkdir()
    node.run("mount", "-t", "tmpfs", "-o", "mode=711", "state", plugin.state)
    try:
        plugin.start()
        assert plugin.events("facts_changed")[-1]["faults"] == []
        yield plugin
    finally:
        plugin.end()


def test_a_daemon_is_in_a_session_of_its_own_with_no_more_rights_than_its_class(plugin: Plugin) -> None:
    """S0-09, S0-11: its own session, its own group with the class's memory limit, the class's capabilities, a bare environment."""
    plugin.publish()
    pid = plugin.first_daemon()
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert int(stat[3]) == pid
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    granted = 1 << 0 | 1 << 1 | 1 << 3  # CHOWN, DAC_OVERRIDE, FOWNER
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == granted
    assert status["NoNewPrivs"] == "1"
    group = next(
        line.rpartition(":")[2]
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        if "/sidemount-" in line
    )
    instance = (plugin.seen_state / "instance").read_text()
    assert group.startswith(f"/sidemount-{instance}/csi-")
    names = {
        part.partition(b"=")[0] for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if part
    }
    assert names <= {b"PATH", b"PYTHONPATH", b"LANG", b"LC_ALL", b"TZ", b"PWD", b"OLDPWD", b"_", b"SHLVL"}
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_a_daemon_that_is_nobody_serves(classes: Plugin) -> None:
    store = classes.store()
    (store / "file").write_text("data")
    store.chmod(0o755)
    classes.publish(**{"class": "nobody"})
    assert (classes.seen() / "file").read_text() == "data"
    status = Path(f"/proc/{classes.first_daemon()}/status").read_text()
    assert "Uid:\t65532\t65532\t65532\t65532" in status
    assert "CapEff:\t0000000000000000" in status
    classes.unpublish()
    assert classes.leftovers() == []


def test_a_client_that_mounts_by_itself_is_shown_at_the_target(classes: Plugin) -> None:
    (classes.store() / "file").write_text("data")
    classes.publish(**{"class": "bindfs", "source": "bind://x"})
    assert (classes.seen() / "file").read_text() == "data"
    assert {"nosuid", "nodev"} <= set(_shown(classes).options)
    classes.publish(**{"class": "bindfs", "source": "bind://x"})
    classes.kill()
    classes.start()
    eventually(lambda: not classes.stats().volume_condition.abnormal, what="known again")
    assert (classes.seen() / "file").read_text() == "data"
    classes.unpublish()
    eventually(lambda: classes.leftovers() == [], what="nothing left")


def test_a_daemon_that_cannot_begin_fails_the_publish_at_once_without_telling_a_secret(
    classes: Plugin,
) -> None:
    """S4-27, S0-22."""
    request = classes.publish_request(**{"class": "failing", "source": "fail://x"})
    request.secrets["token"] = CANARY
    began = time.monotonic()
    with pytest.raises(Refused) as refused:
        classes.call("Node", "NodePublishVolume", request)
    assert time.monotonic() - began < 15
    assert refused.value.code.name == "INTERNAL"
    assert "no way, *** is bad" in refused.value.message
    assert classes.leftovers() == []
    assert CANARY not in classes.log.read_text()


def test_an_unpublish_ends_a_publish_that_still_waits(classes: Plugin) -> None:
    """S0-21, S0-31: no call that hangs holds the target; another publish is told that one is under way."""
    request = classes.publish_request(**{"class": "silent", "source": "silent://x"})
    told: list[Refused] = []

    def publish() -> None:
        with pytest.raises(Refused) as refused:
            classes.call("Node", "NodePublishVolume", request)
        told.append(refused.value)

    waiting = threading.Thread(target=publish)
    waiting.start()
    eventually(lambda: classes.events("daemon_started"), what="begun")
    with pytest.raises(Refused) as refused:
        classes.call("Node", "NodePublishVolume", request)
    assert refused.value.code.name == "ABORTED"
    began = time.monotonic()
    classes.unpublish()
    assert time.monotonic() - began < 15
    waiting.join(15)
    assert [refused.code.name for refused in told] == ["ABORTED"]
    assert classes.leftovers() == []


def test_a_volume_that_never_answers_is_given_up_in_time_and_leaves_nothing(
    node: MountNode, classes: Plugin
) -> None:
    """S4-27: the time is the operator's."""
    assert classes.stop() == 0
    classes.flags = ("--mount-timeout-seconds", "2")
    classes.start()
    with pytest.raises(Refused, match="not live within 2 s") as refused:
        classes.publish(**{"class": "silent", "source": "silent://x"})
    assert refused.value.code.name == "DEADLINE_EXCEEDED"
    assert classes.leftovers() == []


def test_required_credentials_that_are_missing_are_refused(classes: Plugin) -> None:
    with pytest.raises(Refused, match=r"needs credentials.*send token as secrets .*--secrets-dir") as refused:
        classes.publish(**{"class": "secretive"})
    assert refused.value.code.name == "PERMISSION_DENIED"


def test_credentials_are_files_of_the_daemon_alone_and_go_with_it(classes: Plugin) -> None:
    """S0-22, S4-26: in no argument, environment, log, record, mount table; only the class's own keys are written."""
    request = classes.publish_request(**{"class": "secretive"})
    request.secrets.update({"token": CANARY, "other": "unwanted"})
    classes.call("Node", "NodePublishVolume", request)
    files = list(classes.seen_state.rglob("secrets/*"))
    assert [(path.name, path.read_text(), path.stat().st_mode & 0o777) for path in files] == [
        ("token", CANARY, 0o400)
    ]
    told = [classes.log.read_text(), Path("/proc/self/mountinfo").read_text()]
    told += [
        path.read_text()
        for path in (*classes.seen_state.glob("targets/*"), *classes.seen_state.glob("logs/*"))
    ]
    for pid in (classes.process.pid, *classes.daemons()):
        told += [Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ")]
    assert not any(CANARY in text for text in told)
    classes.unpublish()
    assert classes.leftovers() == []


def test_a_crash_looping_daemon_disturbs_nobody_and_is_unpublished_at_once(plugin: Plugin) -> None:
    """S0-30: tried again ever more seldom; the neighbour is served."""
    plugin.publish("a")
    plugin.publish("b", "other")
    own = next(
        path for path in (plugin.state / "daemons").glob("*.pid") if _source(path).endswith("/store/vol")
    )
    for count in range(1, 5):
        before = own.read_text()
        os.killpg(int(before), signal.SIGKILL)
        _wait_events(plugin, "daemon_ended", count)
        if count < 4:
            _wait_other(own, before)
    pauses = [event["again_s"] for event in plugin.events("daemon_ended")]
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]
    (plugin.seen("b") / "file").write_text("served")
    began = time.monotonic()
    plugin.unpublish("a")
    assert time.monotonic() - began < 15
    plugin.unpublish("b", "other")
    assert plugin.leftovers() == []


def test_as_the_first_process_of_a_container_it_leaves_no_zombies(node: MountNode) -> None:
    """S4-31: what a killed daemon leaves is waited for."""
    plugin = Plugin(node, within=("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"))
    try:
        plugin.start()
        plugin.publish()
        for count in range(1, 3):
            eventually(lambda: len(plugin.daemons()) > 2, what="served, with a spare")
            for pid in plugin.daemons():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _wait_events(plugin, "daemon_ended", count)
        eventually(lambda: not plugin.stats().volume_condition.abnormal, what="served again")
        eventually(lambda: _zombies(plugin.process.pid) == [], what="no zombies")
        plugin.unpublish()
        eventually(lambda: _zombies(plugin.process.pid) == [], what="no zombies")
    finally:
        plugin.end()


def test_many_targets_at_once_and_nothing_is_left(plugin: Plugin) -> None:
    """S0-13, in small: eight at a time; descriptors, processes, mounts and files are what they were.

    Sixteen targets would leave sixteen descriptors; one more or less is a call's that ends at that moment.
    """
    _at_once(plugin, ["warm"])
    before = _descriptors(plugin)
    for _ in range(2):
        _at_once(plugin, [f"t{number}" for number in range(8)])
    assert plugin.leftovers() == []
    eventually(
        lambda: all(now <= was for now, was in zip(_descriptors(plugin), before, strict=True)),
        what=f"no more descriptors than {before}",
    )


def test_identical_calls_at_once_end_in_one_publication(plugin: Plugin) -> None:
    """S4-21 for the node: each is OK or told that the same is under way; one daemon, one mount."""
    codes: list[str] = []

    def call(method: str, request: object) -> None:
        try:
            plugin.call("Node", method, request)
            codes.append("OK")
        except Refused as refused:
            codes.append(refused.code.name)

    request = plugin.publish_request()
    _together([threading.Thread(target=call, args=("NodePublishVolume", request)) for _ in range(20)])
    assert len(codes) == 20
    assert set(codes) <= {"OK", "ABORTED"}
    assert "OK" in codes
    assert len(plugin.mount_ids()) == 1
    codes.clear()
    gone = csi_pb2.NodeUnpublishVolumeRequest(volume_id="vol", target_path=str(plugin.target("t")))
    _together([threading.Thread(target=call, args=("NodeUnpublishVolume", gone)) for _ in range(20)])
    assert codes == ["OK"] * 20
    assert plugin.leftovers() == []


def test_an_operation_goes_on_when_its_caller_does_not_wait(plugin: Plugin) -> None:
    """A deadline of the caller's leaves nothing half: the retry finds it published."""
    with pytest.raises(Refused) as refused:
        plugin.call("Node", "NodePublishVolume", plugin.publish_request(), timeout_s=0.05)
    assert refused.value.code.name == "DEADLINE_EXCEEDED"

    def is_published() -> bool:
        try:
            plugin.publish()
        except Refused as again:
            if again.code.name == "ABORTED":
                return False
            raise
        return True

    eventually(is_published, what="published")
    assert len(plugin.events("published")) == 1
    plugin.unpublish()
    assert plugin.leftovers() == []


def test_one_volume_on_two_nodes(node: MountNode, plugin: Plugin) -> None:
    """S0-15: published on another node after the first has let go, the data is there; both at once share it, too."""
    work = node.work / "second"
    work.mkdir()
    other_node = MountNode(work)
    other = Plugin(other_node)
    source = {"source": f"dir://{plugin.store()}"}
    try:
        other.start()
        plugin.publish()
        (plugin.seen() / "file").write_text("from the first")
        plugin.unpublish()
        other.publish(**source)
        assert (other.seen() / "file").read_text() == "from the first"
        plugin.publish()
        (other.seen() / "file").write_text("from the second")
        assert (plugin.seen() / "file").read_text() == "from the second"
        plugin.unpublish()
        other.unpublish()
        assert plugin.leftovers() == other.leftovers() == []
    finally:
        other.end()
        other_node.close()


def _wait_events(plugin: Plugin, name: str, least: int) -> None:
    eventually(lambda: len(plugin.events(name)) >= least, what=f"{least} times {name}", timeout_s=30)


def _wait_other(file: Path, before: str) -> None:
    eventually(lambda: file.read_text() not in ("", before), what="tried again", timeout_s=30)


def _zombies(ancestor: int) -> list[int]:
    """Return the ended processes that nobody has waited for, of a process's children and theirs."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # waited for since it was listed
        for child in Path(f"/proc/{ancestor}/task/{ancestor}/children").read_text().split():
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
            found += [int(child)] if state == "Z" else _zombies(int(child))
    return found


def _source(pid_file: Path) -> str:
    arguments = Path(f"/proc/{pid_file.read_text().strip()}/cmdline").read_text().split("\0")
    return arguments[arguments.index("--source") + 1]


def _shown(plugin: Plugin) -> Mount:
    (mount,) = (mount for mount in plugin.node.fuse_mounts() if mount.mount_point == str(plugin.target("t")))
    return mount


def _at_once(plugin: Plugin, names: list[str]) -> None:
    faults: list[BaseException] = []

    def cycle(name: str) -> None:
        try:
            plugin.publish(name, name)
            (plugin.seen(name) / "file").write_text(name)
            plugin.unpublish(name, name)
            assert (plugin.store(name) / "file").read_text() == name
        except BaseException as error:
            faults.append(error)

    _together([threading.Thread(target=cycle, args=(name,)) for name in names])
    assert faults == []


def _together(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()


def _descriptors(plugin: Plugin) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{plugin.keeper()}/fd")), len(os.listdir(f"/proc/{_plugin_pid(plugin)}/fd"))


def _plugin_pid(plugin: Plugin) -> int:
    return plugin.process.pid
