"""The kernel's mount interfaces as we use them: connections, their control, places and layers, old kernels too."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sidemount.host import fuse_mount, mount_api, volume_places
from sidemount.host.fuse_init import is_init
from sidemount.host.fuse_mount import FuseConnection, MountPlan, open_connection
from sidemount.host.fusectl import FuseControl
from sidemount.host.mount_table import connection_of, is_shared, mount_id_of, read_mount_table
from sidemount.host.volume_places import VolumePlaces, prepare_mounts_dir
from sidemount.model.errors import BadMessage, HostFailure
from sidemount.model.mountinfo import Mount, mount_at
from sidemount.model.mountspec import KeeperMount, View
from tests.host.keeper_pod import directory_spec, view
from tests.host.mount_node import MountNode

pytestmark = [pytest.mark.fuse, pytest.mark.root]
PLAN = MountPlan(source="sidemount:test")


def connect(staging: Path, *, plan: MountPlan = PLAN, read_init: bool = True) -> FuseConnection:
    """Return a connection that nobody serves."""
    return open_connection(plan, read_init=read_init, staging=str(staging))


def shared_place(node: MountNode) -> Path:
    """Return a directory on a shared mount, as the mounts volume is."""
    parent = node.work / "mounts"
    (parent).mkdir()
    node.run("mount", "-t", "tmpfs", "m", parent)
    node.run("mount", "--make-shared", parent)
    node.run("mkdir", parent / "vol")
    return parent / "vol"


def no_new_mount_api(fstype: str) -> int:
    """Be a kernel before 5.2."""
    raise HostFailure(f"fsopen {fstype}: Function not implemented (ENOSYS)", errno=errno.ENOSYS)


@pytest.mark.parametrize("is_old", [False, True], ids=["new mount API", "mount(2)"])
@pytest.mark.parametrize("read_only", [False, True], ids=["rw", "ro"])
def test_a_connection_is_seen_nowhere_until_it_is_attached(
    node: MountNode, monkeypatch: pytest.MonkeyPatch, is_old: bool, read_only: bool
) -> None:
    place = shared_place(node)
    staging = node.work / "staging"
    if is_old:
        monkeypatch.setattr(mount_api, "fsopen", no_new_mount_api)

    def steps() -> tuple[bytes, Mount | None, Mount | None, int, bool]:
        connection = connect(staging, plan=MountPlan(source="sidemount:p/v", read_only=read_only))
        before = mount_at(read_mount_table(), str(place))
        mount_id = connection.attach(str(place))
        connection.release_mount()
        after = mount_at(read_mount_table(), str(place))
        left = len(list(staging.iterdir())) if is_old else 0
        assert after is not None
        assert after.mount_id == mount_id
        alive = connection.is_gone
        connection.close()
        return connection.init, before, after, left, alive

    init, before, after, left, is_gone = node.call(steps)
    assert is_init(init)
    assert before is None
    assert after is not None
    assert (after.fstype, after.source, is_gone, left) == ("fuse.sidemount", "sidemount:p/v", False, 0)
    assert after.is_read_only is read_only
    assert {"nosuid", "nodev"} <= set(after.options)
    assert any(tag.startswith("shared:") for tag in after.tags)


@pytest.mark.parametrize("is_old", [False, True], ids=["new mount API", "mount(2)"])
def test_a_connection_that_was_never_attached_leaves_nothing(
    node: MountNode, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    staging = node.work / "staging"
    if is_old:
        monkeypatch.setattr(mount_api, "fsopen", no_new_mount_api)

    def steps() -> bool:
        connection = connect(staging)
        keep = os.dup(connection.device)  # a daemon's copy
        connection.close()
        return fuse_mount.is_connection_gone(keep)

    assert node.call(steps), "the daemon's copy alone keeps a connection alive that nobody can ever see"
    assert [m for m in node.fuse_mounts() if "staging" in m.mount_point] == []


def test_init_is_left_in_the_queue_for_who_wants_to_read_it(node: MountNode) -> None:
    def steps() -> tuple[bytes, bytes]:
        connection = connect(node.work, read_init=False)
        return connection.init, os.read(connection.device, 1 << 17)

    taken, queued = node.call(steps)
    assert taken == b""
    assert is_init(queued)


def test_selinux_context_is_no_obstacle_where_there_is_no_selinux(node: MountNode) -> None:
    plan = MountPlan(source="sidemount:v", selinux_context="system_u:object_r:container_file_t:s0:c1,c2")
    assert node.call(lambda: is_init(connect(node.work, plan=plan).init))


def test_the_kernels_own_words_are_in_the_error(node: MountNode) -> None:
    def attempt() -> None:
        context = mount_api.fsopen("fuse")
        mount_api.fsconfig_string(context, "nonsense", "1")

    with pytest.raises(
        HostFailure, match=r"fsconfig nonsense=1: .*EINVAL.*Unknown parameter 'nonsense'"
    ) as caught:
        node.call(attempt)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (lambda at: mount_api.umount2(str(at), 0), r"umount2 .*vol: Invalid argument \(EINVAL\)"),
        (lambda at: mount_api.fsopen("nosuchfs"), r"fsopen nosuchfs: .*ENODEV"),
        (lambda at: mount_api.move_mount(0, str(at)), r"move_mount .*vol: "),
        (lambda at: mount_api.mount("x", str(at), "nosuchfs", 0), r"mount .*vol: .*ENODEV"),
        (lambda at: mount_api.open_tree_clone(9999, "view x"), r"open_tree view x: .*EBADF"),
    ],
    ids=["umount2", "fsopen", "move_mount", "mount", "open_tree"],
)
def test_errors_name_call_target_and_errno(
    node: MountNode, action: Callable[[Path], object], says: str
) -> None:
    place = shared_place(node)
    with pytest.raises(HostFailure, match=says):
        node.call(lambda: action(place))


def test_detaching_what_is_not_mounted_is_no_error(node: MountNode) -> None:
    """M13."""
    place = shared_place(node)
    assert not node.call(lambda: mount_api.detach(str(place)))
    assert not node.call(lambda: mount_api.detach(f"{place}/missing"))


def test_only_the_connection_of_that_number_is_aborted(node: MountNode) -> None:
    def steps() -> tuple[bool, bool, int | None, int | None, bool]:
        control = FuseControl()
        ours, other = connect(node.work), connect(node.work)
        number, neighbour = connection_of(ours.device), connection_of(other.device)
        assert number is not None
        assert neighbour is not None
        assert control.waiting(number) is not None
        assert control.abort(number, lambda: True)
        again = control.abort(1 << 30, lambda: True)
        return ours.is_gone, other.is_gone, control.waiting(neighbour), control.waiting(1 << 30), again

    gone, other_gone, waiting, unknown, again = node.call(steps)
    assert (gone, other_gone, unknown, again) == (True, False, None, False)
    assert waiting is not None


def test_whether_a_directory_is_shared_is_told_by_the_mount_it_lies_on(node: MountNode) -> None:
    place = shared_place(node)
    assert node.call(lambda: is_shared(read_mount_table(), str(place)))
    assert not node.call(lambda: is_shared(read_mount_table(), str(node.work)))


def places(parent: Path) -> VolumePlaces:
    """Return the places of a volume named vol."""
    mount = KeeperMount(spec=directory_spec("vol"), views=(view("vol"),))
    return VolumePlaces(str(parent), mount)


def attach(at: VolumePlaces, staging: Path) -> FuseConnection:
    """Attach one more connection."""
    connection = connect(staging)
    at.attach_anchor(connection)
    connection.release_mount()
    return connection


def test_layers_are_counted_bounded_and_all_detached(
    node: MountNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shared_place(node)
    monkeypatch.setattr(volume_places, "LAYERS_MAX", 5)

    def steps() -> tuple[list[int], int, int]:
        at = places(place.parent)
        counts, previous = [], None
        for _ in range(13):
            if previous is not None:
                previous.close()  # dead, as a daemon's death leaves it
            previous = attach(at, node.work)
            counts.append(at.layers())
            top = at.find()
            assert top is not None
            assert top.minor == connection_of(previous.device), "the new mount is not what a look-up ends on"
        return counts, at.detach_all(), at.layers()

    counts, detached, left = node.call(steps)
    assert counts == [1, 2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5]
    assert (detached, left) == (5, 0)


@pytest.mark.parametrize(("filesystem", "wide"), [("objects", True), ("directory", False)])
def test_the_kernel_asks_a_far_store_for_more_at_a_time(node: MountNode, filesystem: str, wide: bool) -> None:
    place = shared_place(node)

    def steps() -> bool:
        mount = KeeperMount(spec=directory_spec("vol", filesystem=filesystem), views=(view("vol"),))
        at = VolumePlaces(str(place.parent), mount)
        connection = attach(at, node.work)
        device = Path(f"/sys/class/bdi/0:{connection_of(connection.device)}/read_ahead_kb")
        kib = int(device.read_text()) if os.access(device, os.W_OK) else 1024 * wide
        at.detach_all()
        return kib >= 1024

    assert node.call(steps) is wide


def test_a_strangers_mount_over_ours_is_neither_detached_nor_taken_for_ours(node: MountNode) -> None:
    place = shared_place(node)

    def steps() -> tuple[bool, int, str]:
        at = places(place.parent)
        attach(at, node.work)
        mount_api.mount("stranger", str(place), "tmpfs", 0)
        found = at.find() is None
        detached = at.detach_all()
        top = mount_at(read_mount_table(), str(place))
        assert top is not None
        return found, detached, top.source

    assert node.call(steps) == (True, 0, "stranger")


def test_a_place_that_is_no_directory_is_refused(node: MountNode) -> None:
    place = shared_place(node)
    node.run("rmdir", place)
    for make in (("touch", place), ("ln", "-s", "/etc", place)):
        node.run(*make)
        with pytest.raises(HostFailure, match=r"prepare .*vol: Not a directory"):
            node.call(lambda: places(place.parent).prepare())
        node.run("rm", place)


@pytest.mark.parametrize(
    "wrong",
    [
        View(name="other"),
        View(name="other.0123456789"),
        View(name="vol", sub_path="x"),
        View(name="vol", read_only=True),
    ],
    ids=repr,
)
def test_a_view_of_another_volume_is_refused(tmp_path: Path, wrong: View) -> None:
    with pytest.raises(BadMessage, match="is no view of volume"):
        VolumePlaces(str(tmp_path), KeeperMount(spec=directory_spec("vol"), views=(wrong,)))


def test_a_mounts_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, says in ((tmp_path / "file", "Not a directory"), (tmp_path / "missing", "No such file")):
        with pytest.raises(HostFailure, match=says):
            prepare_mounts_dir(str(path))


def test_a_descriptor_tells_its_mount_without_a_look_at_it(node: MountNode) -> None:
    place = shared_place(node)

    def steps() -> bool:
        connection = connect(node.work)  # nobody serves it: a stat would hang
        mount_id = mount_id_of(connection.mount)
        return connection.attach(str(place)) == mount_id

    assert node.call(steps)
