"""What ended pods leave: found and taken away if it is ours, dead, used by nobody and of a pod that has ended; nothing else ever."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from csi.janitor import Janitor, Leftover, find_leftovers
from csi.janitor_evidence import ProcessEvidence
from csi.janitor_pods import ApiEvidence
from csi.keeper_link import Answer
from sidemount.model.mountinfo import Mount, parse_mountinfo
from tests.csi.plugin import Plugin
from tests.host.mount_node import MountNode, eventually

UID = "0f1a7c2e-1111-2222-3333-444455556666"
OTHER = "0f1a7c2e-9999-2222-3333-444455556666"
PODS = "/var/lib/kubelet/pods"
EMPTY_DIR = f"{PODS}/{UID}/volumes/kubernetes.io~empty-dir/sidemount"


def _table(*lines: tuple[str, str, str]) -> tuple[Mount, ...]:
    text = "".join(
        f"{number} 1 0:{number} / {place} rw - {fstype} {source} rw\n"
        for number, (place, fstype, source) in enumerate(lines, 100)
    )
    return parse_mountinfo(text)


OURS = ("fuse.sidemount", "sidemount:books")


def test_only_ours_and_only_what_no_container_has() -> None:
    table = _table(
        ("/var/lib/kubelet", "ext4", "/dev/sda"),
        (EMPTY_DIR, "tmpfs", "tmpfs"),
        (f"{EMPTY_DIR}/books", *OURS),
        (f"{EMPTY_DIR}/books", *OURS),
        (f"{EMPTY_DIR}/books.abc", *OURS),
        (f"{EMPTY_DIR}/theirs", "fuse.rclone", "sidemount:books"),
        (f"{EMPTY_DIR}/likeness", "fuse.sidemount", "someone:else"),
        (f"{EMPTY_DIR}/covered", *OURS),
        (f"{EMPTY_DIR}/covered", "tmpfs", "tmpfs"),
        (f"{PODS}/{OTHER}/volumes/kubernetes.io~empty-dir/sidemount/books", *OURS),
        (f"{PODS}/{OTHER}/volume-subpaths/sidemount/app/0", *OURS),
        (f"{PODS}/{UID}/volumes/kubernetes.io~csi/vol/mount", "fuse.sidemount", "sidemount:csi/csi-1"),
        (f"{PODS}/{UID}/volumes/kubernetes.io~csi/kept/mount", "fuse.sidemount", "sidemount:csi/csi-2"),
        (f"{PODS}/{UID}/plugins/x/books", *OURS),
        (f"/elsewhere{PODS}/{UID}/volumes/kubernetes.io~empty-dir/sidemount/books", *OURS),
    )
    kept = {f"{PODS}/{UID}/volumes/kubernetes.io~csi/kept/mount"}
    assert find_leftovers(table, "/var/lib/kubelet", kept) == (
        Leftover(UID, f"{EMPTY_DIR}/books.abc", 104),
        Leftover(UID, f"{EMPTY_DIR}/books", 103),
        Leftover(UID, f"{PODS}/{UID}/volumes/kubernetes.io~csi/vol/mount", 111),
    )


class _Ended:
    def __init__(self, *uids: str) -> None:
        self.uids = uids
        self.asked = 0

    async def look(self) -> None:
        pass

    async def ended(self, pod_uids: Collection[str]) -> frozenset[str]:
        self.asked += 1
        return frozenset(self.uids) & frozenset(pod_uids)


class _Sweeper:
    def __init__(self) -> None:
        self.swept: list[str] = []

    async def sweep(self, directory: str, mount_point: str, mount_id: int) -> Answer:
        self.swept.append(mount_point)
        return Answer(found={"detached": 1})


class _Nothing:
    def paths(self) -> Collection[str]:
        return ()


def test_everything_is_given_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pod that lives is never touched; one that has ended is, once its mounts were there for the whole grace."""
    place = f"{tmp_path}/pods/{UID}/volumes/kubernetes.io~empty-dir/sidemount/books"
    table = _table((place, *OURS))
    monkeypatch.setattr("csi.janitor.read_mount_table", lambda: table)
    sweeper, evidence = _Sweeper(), _Ended(UID)
    janitor = Janitor(str(tmp_path), sweeper, evidence, _Nothing(), grace_s=10)
    for now in (0.0, 5.0, 9.9):
        asyncio.run(janitor.look(now))
    assert (sweeper.swept, evidence.asked) == ([], 0)
    evidence.uids = ()
    asyncio.run(janitor.look(10.0))
    assert (sweeper.swept, evidence.asked) == ([], 1)
    evidence.uids = (UID,)
    asyncio.run(janitor.look(11.0))
    asyncio.run(janitor.look(12.0))
    assert sweeper.swept == [place]  # and again only after a while
    table = _table((f"{place}2", *OURS), (place, *OURS))  # other mounts: their time begins now
    asyncio.run(janitor.look(1000.0))
    assert sweeper.swept == [place]


class _Cluster:
    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    async def list_all(self, place: Any, selector: str, *, fields: str = "") -> dict[str, Any]:
        assert (place.collection, fields) == ("/api/v1/pods", "spec.nodeName=n1")
        return self._answer


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ({"items": []}, {UID}),
        ({"items": [{"metadata": {"uid": UID}}]}, set()),
        ({"items": [{"metadata": {"uid": UID, "deletionTimestamp": "2026-01-01T00:00:00Z"}}]}, {UID}),
        ({"items": [{"metadata": {"uid": "x", "annotations": {"kubernetes.io/config.mirror": UID}}}]}, set()),
        ({"items": [], "metadata": {"continue": "more"}}, set()),
        ({}, set()),
    ],
)
def test_what_the_api_server_says(answer: dict[str, Any], ended: set[str]) -> None:
    evidence = ApiEvidence(_Cluster(answer), "n1")  # type: ignore[arg-type]  # all that is used of it
    assert asyncio.run(evidence.ended([UID])) == ended


def test_whoever_does_not_see_a_pod_s_processes_does_not_take_that_for_its_end(tmp_path: Path) -> None:
    """Only what was seen alive counts as ended outside the first process namespace."""
    own = tmp_path / "1" / "cgroup"
    own.parent.mkdir()
    own.write_text("0::/\n")
    evidence = ProcessEvidence(str(tmp_path))
    asyncio.run(evidence.look())
    assert asyncio.run(evidence.ended([UID, OTHER])) == set()
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-abc.scope\n"
    )
    asyncio.run(evidence.look())
    assert asyncio.run(evidence.ended([UID, OTHER])) == set()
    (tmp_path / "7" / "cgroup").unlink()
    assert asyncio.run(evidence.ended([UID, OTHER])) == {UID}


# With real mounts ------------------------------------------------------------------------------------

_MOUNT = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
for place in sys.argv[3:]:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    result = libc.mount(sys.argv[1].encode(), place.encode(), sys.argv[2].encode(), 0, options.encode())
    assert result == 0, os.strerror(ctypes.get_errno())
if sys.stdin.readline():
    pass
"""


@pytest.fixture
def kubelet(node: MountNode) -> Path:
    """Return a kubelet's directory that is not there yet: `prepared` becomes it when everything is mounted."""
    return node.work / "kubelet"


@pytest.fixture
def prepared(node: MountNode) -> Path:
    """Return where it is made ready."""
    return node.work / "prepared"


@pytest.fixture
def plugin(node: MountNode, kubelet: Path) -> Iterator[Plugin]:
    """Return a plugin that looks after it."""
    plugin = Plugin(node, flags=("--kubelet-dir", str(kubelet)))
    try:
        yield plugin.start("tests.csi.hasty_plugin")
    finally:
        plugin.end()


def _mount(
    node: MountNode, *places: Path, source: str = "sidemount:books", fstype: str = "fuse.sidemount"
) -> "subprocess.Popen[bytes]":
    """Mount, with a process that holds the connections until its input ends. It answers nothing."""
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    before = len(node.fuse_mounts())
    arguments = [
        "nsenter",
        "-t",
        str(node.pid),
        "-m",
        sys.executable,
        "-c",
        _MOUNT,
        source,
        fstype,
        *map(str, places),
    ]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE)
    eventually(lambda: len(node.fuse_mounts()) == before + len(places), what="mounted")
    return process


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.communicate(b"", timeout=20)


@pytest.mark.root
@pytest.mark.fuse
def test_dead_mounts_of_a_pod_that_is_gone_are_detached_and_nothing_else_is(
    node: MountNode, plugin: Plugin, kubelet: Path, prepared: Path
) -> None:
    """k/k#129550: all layers; never a mount that somebody serves, another one's, or one that a container has; no file goes."""

    def volume(uid: str, name: str = "sidemount") -> Path:
        return prepared / "pods" / uid / "volumes" / "kubernetes.io~empty-dir" / name

    gone, served, used = volume(UID), volume(OTHER), volume(UID, "used")
    _ended(_mount(node, gone / "books"))
    _ended(_mount(node, gone / "books", gone / "books.view"))
    (gone / "a file").write_text("stays")
    _ended(_mount(node, gone / "theirs", source="theirs", fstype="fuse.theirs"))
    _ended(_mount(node, used / "books", prepared / "pods" / UID / "volume-subpaths" / "used" / "app" / "0"))
    serving = _mount(node, served / "books")
    kept = {str(path) for path in (gone / "theirs", served / "books", used / "books")}
    kept.add(str(prepared / "pods" / UID / "volume-subpaths" / "used" / "app" / "0"))
    kept = {str(kubelet / Path(place).relative_to(prepared)) for place in kept}
    gone = kubelet / gone.relative_to(prepared)
    prepared.rename(kubelet)
    try:
        eventually(
            lambda: {mount.mount_point for mount in node.fuse_mounts()} == kept,
            what="only those are left that have to stay",
            timeout_s=60,
        )
        eventually(lambda: len(plugin.events("leftover_detached")) == 2, what="told")
        assert {event["layers"] for event in plugin.events("leftover_detached")} == {1, 2}
        (gone / "books").rmdir()
        (gone / "books.view").rmdir()
        assert (gone / "a file").read_text() == "stays"
        plugin.publish()
        (plugin.seen() / "file").write_text("served meanwhile")
        plugin.unpublish()
    finally:
        _ended(serving)
    kept.discard(
        str(kubelet / "pods" / OTHER / "volumes" / "kubernetes.io~empty-dir" / "sidemount" / "books")
    )
    eventually(
        lambda: {mount.mount_point for mount in node.fuse_mounts()} == kept,
        what="nobody serves it any more",
        timeout_s=120,
    )
    for place in kept:
        node.run("umount", "-l", place)


@pytest.mark.root
@pytest.mark.fuse
def test_a_pod_with_processes_is_left_alone(
    node: MountNode, plugin: Plugin, kubelet: Path, prepared: Path
) -> None:
    """A living pod's keeper comes back and mounts anew."""
    place = prepared / "pods" / UID / "volumes" / "kubernetes.io~empty-dir" / "sidemount" / "books"
    other = prepared / "pods" / OTHER / "volumes" / "kubernetes.io~empty-dir" / "sidemount" / "books"
    group = next(
        path
        for path in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
        if (path / "cgroup.procs").exists()
    )
    pod = group / f"sidemount-test-pod{UID}"
    pod.mkdir()
    pause = subprocess.Popen(["sleep", "1000"])
    try:
        (pod / "cgroup.procs").write_text(str(pause.pid))
        _ended(_mount(node, place))
        _ended(_mount(node, other))
        prepared.rename(kubelet)
        eventually(lambda: plugin.events("leftover_detached"), what="the other's is gone", timeout_s=60)
        (left,) = node.fuse_mounts()
        assert left.mount_point == str(kubelet / place.relative_to(prepared))
        pause.kill()
        pause.wait()
        eventually(lambda: not node.fuse_mounts(), what="now it has ended, too", timeout_s=60)
    finally:
        pause.kill()
        pause.wait()
        eventually(lambda: not (pod / "cgroup.procs").read_text(), what="its group is empty")
        os.rmdir(pod)
