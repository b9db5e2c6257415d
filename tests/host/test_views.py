"""Views on a real FUSE volume: which sub-paths can be shown, what each refusal says, and that nothing leaks or is made."""

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sidemount.host import mount_api
from sidemount.host.openat2 import open_directory_beneath
from sidemount.host.views import clone_view
from sidemount.model.errors import HostFailure
from sidemount.model.mountspec import KeeperMount, View
from tests.host.conftest import MakePod
from tests.host.keeper_pod import Pod, directory_spec, view
from tests.host.mount_node import MountNode

pytestmark = [pytest.mark.fuse, pytest.mark.root]

# What is on the volume → what a sub-path of that name gives: "" or the message.
TABLE = {
    "sub": "",
    "sub/deep": "",
    "sub/deep/größe ß\\x": "",
    "sub/deep/ sp ace ": "",
    "missing": "does not exist on the volume",
    "sub/missing": "does not exist on the volume",
    "file": "is not a directory",
    "file/x": "is not a directory",
    "sub/fifo": "is not a directory",
    "link-to-sub": "crosses a symbolic link",
    "link-to-sub/deep": "crosses a symbolic link",
    "sub/link-to-sibling": "crosses a symbolic link",
    "link-outside": "crosses a symbolic link",
    "link-absolute": "crosses a symbolic link",
    "dangling": "crosses a symbolic link",
    "mount": "leaves the volume or crosses another mount",
    "mount/inner": "leaves the volume or crosses another mount",
    "..": 'has the component ".."',
    "sub/../sub": 'has the component ".."',
    "sub/../../x": 'has the component ".."',
    ".": 'has the component "."',
    "/etc": "is absolute",
    "sub//deep": "has an empty component",
    "sub/": "has an empty component",
    "n" * 300: "has a name that is too long for the volume",
    "a/" * 2100 + "a": "is longer than 4096 bytes",
    "new\nline": "control character",
    "nul\0": "NUL",
}


@pytest.fixture
def pod(make_pod: MakePod) -> Pod:
    """A live volume with something of every kind on it."""
    pod = make_pod()
    source = pod.source("train")
    (source / "sub" / "deep" / "größe ß\\x").mkdir(parents=True)
    (source / "sub" / "deep" / " sp ace ").mkdir()
    (source / "sub" / "sibling").mkdir()
    (source / "file").write_text("")
    os.mkfifo(source / "sub" / "fifo")
    (source / "link-to-sub").symlink_to("sub")
    (source / "sub" / "link-to-sibling").symlink_to("sibling")
    (source / "link-outside").symlink_to("../../etc")
    (source / "link-absolute").symlink_to("/etc")
    (source / "dangling").symlink_to("nowhere")
    (source / "mount").mkdir()
    pod.start()
    pod.node.run("mount", "-t", "tmpfs", "nested", pod.place("train") / "mount")
    pod.node.run("mkdir", pod.place("train") / "mount" / "inner")
    return pod


def outcome(place: Path, sub_path: str) -> str:
    """Return the message of a view of a sub-path, "" if it can be made. Runs in the node."""
    root = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        os.close(clone_view(root, View(name="train.0", sub_path=sub_path), "train"))
    except HostFailure as error:
        return error.message
    finally:
        os.close(root)
    return ""


def tree(path: Path) -> list[str]:
    """Return everything below a path."""
    return sorted(str(entry) for entry in path.rglob("*"))


def test_what_a_sub_path_may_be_and_what_the_refusal_says(pod: Pod) -> None:
    """S2-22, S2-23, S2-25, S2-26, M8."""
    before = tree(pod.source("train"))
    place = pod.place("train")
    messages = pod.node.call(lambda: {sub_path: outcome(place, sub_path) for sub_path in TABLE})
    for sub_path, expected in TABLE.items():
        if expected:
            assert messages[sub_path] == f'sub-path "{sub_path}" of volume "train" ' + expected or (
                expected in messages[sub_path]
            ), sub_path
        else:
            assert messages[sub_path] == "", sub_path
    assert tree(pod.source("train")) == before, "something was created"


def test_the_kernel_refuses_what_the_lexical_rules_refuse_too(pod: Pod) -> None:
    """M8: two locks on one door."""
    place = pod.place("train")

    def attempt(path: str) -> int:
        root = os.open(place, os.O_PATH | os.O_DIRECTORY)
        try:
            os.close(open_directory_beneath(root, path, path))
        except HostFailure as error:
            return error.errno
        finally:
            os.close(root)
        return 0

    table = {"..": errno.EXDEV, "../..": errno.EXDEV, "/etc": errno.EXDEV, "": 0, ".": 0, "sub/../sub": 0}
    assert pod.node.call(lambda: {path: attempt(path) for path in table}) == table


def test_a_directory_swapped_for_a_link_is_never_shown_through_the_link(node: MountNode) -> None:
    """S2-24: whenever a view can be made, it is of the directory that was resolved, wherever its name points by then."""
    volume, outside = node.work / "volume", node.work / "outside"
    for directory in (volume / "sub", outside):
        directory.mkdir(parents=True)
    (volume / "sub" / "inside").write_text("")
    (outside / "secret").write_text("")
    (volume / "link").symlink_to(outside)

    def race() -> tuple[int, int, set[int]]:
        stop = threading.Event()

        def swap() -> None:
            while not stop.is_set():
                os.rename(volume / "sub", volume / "aside")
                os.rename(volume / "link", volume / "sub")
                os.rename(volume / "sub", volume / "link")
                os.rename(volume / "aside", volume / "sub")

        swapper = threading.Thread(target=swap)
        swapper.start()
        shown, refused, faults = 0, 0, set()
        root = os.open(volume, os.O_PATH | os.O_DIRECTORY)
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < 3 or (min(shown, refused) <= 50 and waited_s < 30):
            try:
                clone = clone_view(root, View(name="v.0", sub_path="sub", read_only=True), "v")
            except HostFailure as error:
                refused += 1
                faults.add(error.errno)
                continue
            directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=clone)
            assert os.listdir(directory) == ["inside"]
            os.close(directory)
            os.close(clone)
            shown += 1
        stop.set()
        swapper.join()
        return shown, refused, faults

    shown, refused, faults = node.call(race, timeout_s=50)
    assert shown > 50
    assert refused > 50
    assert faults <= {errno.ELOOP, errno.ENOENT, errno.EAGAIN}


def test_a_read_only_view_leaks_into_nothing(make_pod: MakePod) -> None:
    """S2-27, M9, M10: the other views stay writable, the flags of the volume are kept, and the volume's own tree is bare."""
    read_only = view("train", "sub", read_only=True)
    writable = view("train", "sub")
    pod = make_pod(KeeperMount(spec=directory_spec(), views=(view("train"), read_only, writable)))
    (pod.source("train") / "sub").mkdir()
    (pod.source("train") / "sub" / "file").write_text("content")
    pod.start()
    assert pod.node.mounts_beneath(pod.place("train") / "sub") == []
    for path, may_write in (("train/sub", True), (writable.name, True), (read_only.name, False)):
        assert (pod.seen(path) / "file").read_text() == "content"
        if may_write:
            (pod.seen(path) / f"by-{path.replace('/', '-')}").write_text("")
    refusals: list[Callable[[Path], object]] = [
        lambda at: (at / "new").write_text(""),
        lambda at: (at / "file").unlink(),
        lambda at: (at / "directory").mkdir(),
        lambda at: (at / "file").chmod(0o600),
        lambda at: (at / "file").open("a").close(),
    ]
    for refused in refusals:
        with pytest.raises(OSError, match="Read-only file system"):
            refused(pod.seen(read_only.name))
    (shown,) = pod.node.mounts_beneath(pod.place(read_only.name))
    assert {"ro", "nosuid", "nodev"} <= set(shown.options)
    assert shown.root == "/sub"
    groups = [
        tag
        for name in ("train", read_only.name, writable.name)
        for mount in pod.node.mounts_beneath(pod.place(name))
        for tag in mount.tags
        if tag.startswith("shared:")
    ]
    assert len(set(groups)) == 3, "views share a peer group: what is stacked on one appears in the other"
    assert pod.end() == 0


def test_an_old_fashioned_bind_would_have_kept_its_origin_writable(node: MountNode) -> None:
    """Why read-only is set before a view is attached: in a slave namespace a later remount is not seen (M9)."""
    for name in ("volume", "place"):
        (node.work / name).mkdir()
    node.run("mount", "-t", "tmpfs", "v", node.work / "volume")
    node.run("mount", "--bind", node.work / "place", node.work / "place")
    node.run("mount", "--make-shared", node.work / "place")
    application = MountNode(node.work, parent=node)
    try:
        node.call(lambda: _clone_read_only(node.work / "volume", node.work / "place"))
        with pytest.raises(OSError, match="Read-only file system"):
            application.call(lambda: (node.work / "place" / "x").write_text(""))
        node.call(lambda: (node.work / "volume" / "x").write_text(""))
    finally:
        application.close()


def _clone_read_only(origin: Path, place: Path) -> None:
    root = os.open(origin, os.O_PATH | os.O_DIRECTORY)
    clone = clone_view(root, View(name="v.0", read_only=True), "v")
    mount_api.move_mount(clone, str(place))


def test_views_left_by_an_earlier_keeper_are_found_not_made_again(make_pod: MakePod) -> None:
    """S2-29."""
    sub = view("train", "sub", read_only=True)
    pod = make_pod(KeeperMount(spec=directory_spec(), views=(view("train"), sub)))
    (pod.source("train") / "sub").mkdir()
    pod.start()
    pod.keeper.kill()
    pod.keeper.wait(20)
    pod.node.run("umount", "-l", pod.place(sub.name))
    pod.start_keeper()
    pod.wait_ready()
    assert (pod.layers("train"), pod.layers(sub.name)) == (1, 1)
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


def test_a_view_is_there_before_the_probe_says_so(make_pod: MakePod) -> None:
    """S2-30, S2-32: whoever starts after the probe, and shares the directory then, sees every view."""
    views = [view("train", f"d{n}", read_only=n % 2 == 0) for n in range(40)]
    pod = make_pod(KeeperMount(spec=directory_spec(), views=(view("train"), *views)))
    for n in range(40):
        (pod.source("train") / f"d{n}").mkdir()
        (pod.source("train") / f"d{n}" / "file").write_text(str(n))
    pod.start()
    late = MountNode(pod.node.work, parent=pod.node)
    try:
        read = late.call(lambda: [(pod.place(v.name) / "file").read_text() for v in views])
        assert read == [str(n) for n in range(40)]
    finally:
        late.close()
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []


def test_names_with_spaces_and_backslashes_survive_the_mount_table(
    make_pod: MakePod, node: MountNode
) -> None:
    """M14."""
    node.work = node.work / "a b\\c\td"
    node.work.mkdir()
    pod = make_pod().start()
    assert pod.layers("train") == 1
    pod.kill_daemon()
    pod.start_daemon()
    pod.wait_ready()
    assert pod.layers("train") == 2
    assert pod.end() == 0
    assert pod.node.fuse_mounts() == []
