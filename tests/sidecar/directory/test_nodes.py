"""The node table and the reach from nodes to files, without FUSE: links, memory, threads, descriptors."""

import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.directory.filesystem import DirectoryFilesystem
from sidecar.directory.nodes import NodeTable
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import ROOT, Changes
from sidecar.takeover.ledger import Ledger
from tests.sidecar.directory.core import Shelf, Someone, make_filesystem, open_descriptors, run
from tests.sidecar.directory.harness import outcome

SOMEONE = Someone()


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[DirectoryFilesystem]:
    """A filesystem over an empty directory, which must leave no descriptor open."""
    before = open_descriptors()
    filesystem = make_filesystem(tmp_path)
    yield filesystem
    filesystem.descriptors.shed_directories()
    filesystem.descriptors.shed_nameless()
    filesystem.descriptors.discard(ROOT)
    assert open_descriptors() <= before


def test_node_costs_at_most_400_bytes_and_nothing_once_forgotten() -> None:
    count = 100_000
    names = [b"file-%08d.jpg" % number for number in range(count)]
    tracemalloc.start()
    table = NodeTable(2, lambda _: None)
    before = tracemalloc.get_traced_memory()[0]
    for number, name in enumerate(names):
        node = table.admit((10**7 + number) | 8 << 64 | (10**18 + number) << 68, table.root, bytes(name), 1)
        node.told_ns = 10**18 + number
    each = (tracemalloc.get_traced_memory()[0] - before) / count + 48  # the name, which is shared here
    for node_id in [node_id for node_id in table.all if node_id != ROOT]:
        table.forget(node_id, 1)
    left = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert each <= 400
    assert len(table) == 1
    assert left < 150  # the tables themselves, until they are next rebuilt


def test_ids_are_never_used_again(filesystem: DirectoryFilesystem, tmp_path: Path) -> None:
    seen = set()
    for _ in range(50):
        (tmp_path / "f").write_text("")
        node = run(filesystem.lookup(ROOT, b"f")).node
        assert node not in seen
        seen.add(node)
        run(filesystem.forget([(node, 1)]))
        os.unlink(tmp_path / "f")


def test_hard_links_are_one_node(filesystem: DirectoryFilesystem, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "a").write_text("content")
    os.link(tmp_path / "a", tmp_path / "d/b")
    directory = run(filesystem.lookup(ROOT, b"d")).node
    first, second = run(filesystem.lookup(ROOT, b"a")), run(filesystem.lookup(directory, b"b"))
    assert first.node == second.node
    run(filesystem.unlink(ROOT, b"a"))
    assert run(filesystem.getattr(first.node)).nlink == 1
    os.rename(tmp_path / "d/b", tmp_path / "c")
    assert outcome(run, filesystem.getattr(first.node)) == "ESTALE"
    assert run(filesystem.lookup(ROOT, b"c")).node == first.node
    assert run(filesystem.getattr(first.node)).nlink == 1
    run(filesystem.forget([(first.node, 3), (directory, 1)]))
    assert len(filesystem.nodes) == 1


def test_links_of_a_file_renamed_elsewhere_do_not_pile_up(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "a0").write_text("")
    os.link(tmp_path / "a0", tmp_path / "other")
    for number in range(50):
        node = filesystem.nodes[run(filesystem.lookup(ROOT, b"a%d" % number)).node]
        os.rename(tmp_path / f"a{number}", tmp_path / f"a{number + 1}")
    assert len(filesystem.nodes.links(node)) <= 2


def test_parent_stays_as_long_as_a_child_needs_it(filesystem: DirectoryFilesystem, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("content")
    directory = run(filesystem.lookup(ROOT, b"d")).node
    file = run(filesystem.lookup(directory, b"f")).node
    run(filesystem.forget([(directory, 1)]))
    filesystem.descriptors.shed_directories()
    assert run(filesystem.getattr(file)).size == 7
    run(filesystem.forget([(file, 1)]))
    assert len(filesystem.nodes) == 1


def test_more_is_forgotten_than_was_ever_looked_up(filesystem: DirectoryFilesystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    node = run(filesystem.lookup(ROOT, b"f")).node
    run(filesystem.forget([(node, 5), (node, 5), (ROOT, 100), (99999, 1)]))
    assert len(filesystem.nodes) == 1
    assert run(filesystem.lookup(ROOT, b"f")).attributes.size == 0


def test_unknown_node_is_stale_and_unknown_handle_is_bad(filesystem: DirectoryFilesystem) -> None:
    assert outcome(run, filesystem.getattr(12345)) == "ESTALE"
    assert outcome(run, filesystem.lookup(12345, b"f")) == "ESTALE"
    assert outcome(run, filesystem.read(12345, 0, 10)) == "EBADF"
    assert outcome(run, filesystem.readdir(12345, 0, Shelf())) == "EBADF"
    assert outcome(run, filesystem.release(12345)) is None
    assert outcome(run, filesystem.releasedir(12345)) is None


@pytest.mark.parametrize("name", [b"", b"/", b"a/b", b"/etc/passwd", b"../x"])
def test_name_that_is_a_path_is_refused(filesystem: DirectoryFilesystem, name: bytes) -> None:
    assert outcome(run, filesystem.lookup(ROOT, name)) == "EINVAL"
    assert outcome(run, filesystem.mkdir(ROOT, name, 0o755, SOMEONE)) == "EINVAL"
    assert outcome(run, filesystem.unlink(ROOT, name)) == "EINVAL"
    assert outcome(run, filesystem.rename(ROOT, b"a", ROOT, name, 0)) == "EINVAL"


def test_dots_lead_to_the_node_itself_and_above_but_never_above_the_root(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    directory = run(filesystem.lookup(ROOT, b"d")).node
    assert run(filesystem.lookup(directory, b".")).node == directory
    assert run(filesystem.lookup(directory, b"..")).node == ROOT
    assert run(filesystem.lookup(ROOT, b"..")).node == ROOT
    assert outcome(run, filesystem.mkdir(directory, b"..", 0o755, SOMEONE)) == "EINVAL"


def test_few_descriptors_are_enough_for_any_tree(tmp_path: Path) -> None:
    before = len(open_descriptors())
    filesystem = make_filesystem(tmp_path, directories_open=4)
    nodes = [ROOT]
    for level in range(300):
        nodes.append(run(filesystem.mkdir(nodes[-1], b"d%d" % level, 0o755, SOMEONE)).node)
        assert len(open_descriptors()) - before <= 6
    for node in (nodes[10], nodes[299], nodes[150]):
        assert run(filesystem.getattr(node)).mode & 0o777 == 0o755
        assert len(open_descriptors()) - before <= 6
    filesystem.descriptors.shed_directories()
    filesystem.descriptors.discard(ROOT)


def test_no_descriptor_left_makes_room_and_goes_on(tmp_path: Path) -> None:
    import resource

    filesystem = make_filesystem(tmp_path, directories_open=10_000)
    nodes = [run(filesystem.mkdir(ROOT, b"d%d" % number, 0o755, SOMEONE)).node for number in range(100)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_descriptors()) + 20, hard))
    try:
        for node in nodes:
            assert run(filesystem.getattr(node)).mode & 0o777 == 0o755
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        filesystem.descriptors.shed_directories()
        filesystem.descriptors.discard(ROOT)


def test_listing_continues_anywhere_in_another_process_life(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    """A position means the same to a filesystem that never saw the directory before: what a takeover needs."""
    for number in range(300):
        (tmp_path / f"f{number}").touch()
    handle = run(filesystem.opendir(ROOT))
    first = Shelf(100)
    run(filesystem.readdir(handle, 0, first))
    run(filesystem.releasedir(handle))
    other = make_filesystem(tmp_path)
    handle = run(other.opendir(ROOT))
    rest = Shelf()
    run(other.readdir(handle, first.entries[-1][3], rest))
    run(other.releasedir(handle))
    other.descriptors.discard(ROOT)
    names = [entry[0] for entry in first.entries + rest.entries]
    assert len(names) == len(set(names)) == 302


def test_entry_that_found_no_room_is_not_counted(filesystem: DirectoryFilesystem, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"f{number}").touch()
    handle = run(filesystem.opendir(ROOT))
    shelf = Shelf(4)
    run(filesystem.readdir(handle, 0, shelf))
    assert len(filesystem.nodes) == 1 + sum(node > 0 for _, node, _, _ in shelf.entries)
    run(filesystem.releasedir(handle))


def test_error_after_the_first_entry_ends_the_answer_and_comes_again(tmp_path: Path) -> None:
    class Failing(Store):
        broken = False

        def status(self, directory: int, name: bytes):  # type: ignore[no-untyped-def]  # as in Store
            if self.broken and name == b"f3":
                raise ValueError("a defect")
            return super().status(directory, name)

    for number in range(6):
        (tmp_path / f"f{number}").touch()
    filesystem = make_filesystem(tmp_path, store=Failing)
    Failing.broken = True
    handle = run(filesystem.opendir(ROOT))
    shelf = Shelf(takes_names=False)
    run(filesystem.readdir(handle, 0, shelf))
    listed = [node for _, node, _, _ in shelf.entries if node]
    assert b"f3" not in [name for name, _, _, _ in shelf.entries]
    assert len(filesystem.nodes) == 1 + len(listed)
    with pytest.raises(ValueError, match="a defect"):
        run(filesystem.readdir(handle, shelf.entries[-1][3], Shelf(takes_names=False)))
    Failing.broken = False
    rest = Shelf(takes_names=False)
    run(filesystem.readdir(handle, shelf.entries[-1][3], rest))
    assert len(shelf.entries) + len(rest.entries) == 8
    run(filesystem.releasedir(handle))
    filesystem.descriptors.discard(ROOT)


def test_nodes_beneath_a_directory_that_is_being_renamed_wait_for_it(tmp_path: Path) -> None:
    """Threads of a remote store: the server has renamed, but the answer is still on its way."""

    class SlowRename(Store):
        def rename(
            self, directory: int, name: bytes, new_directory: int, new_name: bytes, flags: int
        ) -> None:
            super().rename(directory, name, new_directory, new_name, flags)
            time.sleep(0.5)

    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/f").write_text("content")
    filesystem = make_filesystem(tmp_path, store=SlowRename)
    above = run(filesystem.lookup(ROOT, b"a")).node
    below = run(filesystem.lookup(above, b"b")).node
    file = run(filesystem.lookup(below, b"f")).node
    renaming = threading.Thread(target=lambda: run(filesystem.rename(ROOT, b"a", ROOT, b"z", 0)))
    renaming.start()
    time.sleep(0.1)
    filesystem.descriptors.shed_directories()
    assert run(filesystem.getattr(file)).size == 7
    renaming.join()
    filesystem.descriptors.shed_directories()
    assert run(filesystem.getattr(file)).size == 7
    filesystem.descriptors.shed_directories()
    filesystem.descriptors.discard(ROOT)


def test_new_names_are_refused_without_room_and_what_was_known_is_served() -> None:
    """S4-16: what a process has it can keep; one name more must not be what it dies of."""
    ledger, has_room, asked = Ledger(), True, 0

    def look() -> bool:
        nonlocal asked
        asked += 1
        return has_room

    table = NodeTable(1, lambda _: None, ledger)
    ledger.follow(table)
    known = [table.admit(2 + number, table.root, b"%d" % number, 1) for number in range(10)]
    ledger.bound_by(look)
    known += [table.admit(20 + number, table.root, b"n%d" % number, 1) for number in range(100)]
    assert asked == 2, "once for many"
    has_room = False

    def admit(number: int) -> None:
        known.append(table.admit(1000 + number, table.root, b"m%d" % number, 1))

    with pytest.raises(MemoryError, match="no room for more than"):
        list(map(admit, range(1000)))
    assert len(table) == len(known) + 1
    assert table.admit(2, table.root, b"0", 1) is known[0]
    table.forget(known[5].id, 1)
    table.admit(5000, table.root, b"instead", 1)
    with pytest.raises(MemoryError):
        table.admit(5001, table.root, b"more", 1)


def test_a_directory_that_others_have_moved_beneath_what_it_had_stays_known() -> None:
    """It was there for the sake of what lay in it, until both changed places."""
    gone: list[int] = []
    table = NodeTable(1, gone.append)
    above = table.admit(2, table.root, b"above", 1)
    below = table.admit(3, above, b"below", 1)
    table.forget(above.id, 1)
    assert table.admit(2, below, b"above", 1) is table[above.id]
    assert (table.lookups(above), table.links(above), table.links(below)) == (1, [(below, b"above")], [])
    table.forget(above.id, 1)
    table.forget(below.id, 1)
    assert gone == [above.id, below.id]
    assert len(table) == 1


def test_many_threads_at_once_leave_right_counts(tmp_path: Path) -> None:
    """A remote store runs every operation in a thread."""
    filesystem = make_filesystem(tmp_path, directories_open=5)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = run(filesystem.mkdir(ROOT, b"own%d" % number, 0o755, SOMEONE)).node
            for step in range(200):
                opened, entry = run(filesystem.create(own, b"f", 0o644, os.O_RDWR, SOMEONE))
                run(filesystem.write(opened.handle, 0, b"x" * step))
                run(filesystem.rename(own, b"f", ROOT, b"shared%d" % number, 0))
                assert run(filesystem.lookup(ROOT, b"shared%d" % number)).node == entry.node
                assert run(filesystem.getattr(entry.node)).size == step
                run(filesystem.unlink(ROOT, b"shared%d" % number))
                run(filesystem.release(opened.handle))
                run(filesystem.forget([(entry.node, 2)]))
            run(filesystem.rmdir(ROOT, b"own%d" % number))
            run(filesystem.forget([(own, 1)]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(filesystem.nodes) == 1
    assert len(filesystem.descriptors) == 1
    assert len(filesystem.files) == 0
    filesystem.descriptors.discard(ROOT)


def _replace(path: Path) -> None:
    """Put another file of the same kind in the place of one."""
    new = path.with_name("replacement")
    if path.is_dir():
        path.rename(path.with_name("moved away"))
        path.mkdir()
        (path / "f").write_text("another's")
    else:
        new.write_text("another's")
        os.rename(new, path)


@pytest.mark.parametrize(
    "change",
    [
        Changes(mode=0o600),
        Changes(uid=1),
        Changes(size=0),
        Changes(mtime_ns=5),
        Changes(),
    ],
    ids=["mode", "uid", "size", "time", "nothing"],
)
def test_file_that_took_a_nodes_name_is_never_changed_for_it(
    change: Changes, filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("mine")
    node = run(filesystem.lookup(ROOT, b"f")).node
    _replace(tmp_path / "f")
    before = os.stat(tmp_path / "f")
    assert outcome(run, filesystem.setattr(node, change, None, SOMEONE)) == "ESTALE"
    assert os.stat(tmp_path / "f") == before
    assert (tmp_path / "f").read_text() == "another's"


def test_file_that_took_a_nodes_name_is_never_opened_or_described_for_it(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("mine")
    node = run(filesystem.lookup(ROOT, b"f")).node
    _replace(tmp_path / "f")
    os.setxattr(tmp_path / "f", "user.a", b"another's")
    stale = [
        outcome(run, filesystem.open(node, os.O_RDWR | os.O_TRUNC, SOMEONE)),
        outcome(run, filesystem.getattr(node)),
        outcome(run, filesystem.getxattr(node, b"user.a")),
        outcome(run, filesystem.setxattr(node, b"user.a", b"", SOMEONE)),
        outcome(run, filesystem.link(node, ROOT, b"g")),
    ]
    assert stale == ["ESTALE"] * 5
    assert (tmp_path / "f").read_text() == "another's"


def test_directory_that_took_a_nodes_name_is_never_entered_for_it(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    node = run(filesystem.lookup(ROOT, b"d")).node
    filesystem.descriptors.shed_directories()
    _replace(tmp_path / "d")
    stale = [
        outcome(run, filesystem.lookup(node, b"f")),
        outcome(run, filesystem.create(node, b"new", 0o644, os.O_RDWR, SOMEONE)),
        outcome(run, filesystem.unlink(node, b"f")),
        outcome(run, filesystem.opendir(node)),
    ]
    assert stale == ["ESTALE"] * 4
    assert os.listdir(tmp_path / "d") == ["f"]


def test_symbolic_link_in_the_place_of_a_directory_is_never_followed(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    """S2-23, S2-24, inside the volume: whoever can rename can plant one at any time."""
    (tmp_path / "d").mkdir()
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    node = run(filesystem.lookup(ROOT, b"d")).node
    filesystem.descriptors.shed_directories()
    (tmp_path / "d").rename(tmp_path / "real")
    (tmp_path / "d").symlink_to(outside)
    assert outcome(run, filesystem.mkdir(node, b"x", 0o755, SOMEONE)) == "ESTALE"
    assert outcome(run, filesystem.opendir(node)) == "ESTALE"
    assert os.listdir(outside) == []


def test_file_made_since_the_lookup_is_for_the_kernel_to_look_at_again(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("theirs")
    assert outcome(run, filesystem.create(ROOT, b"f", 0o644, os.O_RDWR, SOMEONE)) == "ESTALE"
    exclusive = os.O_RDWR | os.O_EXCL
    assert outcome(run, filesystem.create(ROOT, b"f", 0o644, exclusive, SOMEONE)) == "EEXIST"
    (tmp_path / "l").symlink_to("target")
    assert outcome(run, filesystem.create(ROOT, b"l", 0o644, os.O_RDWR, SOMEONE)) == "ESTALE"
    assert sorted(os.listdir(tmp_path)) == ["f", "l"]
    assert (tmp_path / "f").read_text() == "theirs"
