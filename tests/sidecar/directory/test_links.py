"""Links of nodes under renames that are more than one name for another, in the core without FUSE."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.directory.filesystem import DirectoryFilesystem
from sidecar.directory.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sidecar.protocol_filesystem import ROOT
from tests.sidecar.directory.core import make_filesystem, run
from tests.sidecar.directory.harness import outcome


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[DirectoryFilesystem]:
    """A filesystem over an empty directory."""
    filesystem = make_filesystem(tmp_path)
    yield filesystem
    filesystem.descriptors.shed_directories()
    filesystem.descriptors.discard(ROOT)


@pytest.mark.parametrize("swapped", [False, True])
def test_exchange_gives_each_node_the_others_name(
    swapped: bool, filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("file")
    (tmp_path / "e").mkdir()
    (tmp_path / "e/inner").write_text("inner content")
    above = run(filesystem.lookup(ROOT, b"d")).node
    file, directory = run(filesystem.lookup(above, b"f")).node, run(filesystem.lookup(ROOT, b"e")).node
    inner = run(filesystem.lookup(directory, b"inner")).node
    places = [(above, b"f"), (ROOT, b"e")]
    (one, name), (two, new_name) = reversed(places) if swapped else places
    run(filesystem.rename(one, name, two, new_name, RENAME_EXCHANGE))
    filesystem.descriptors.shed_directories()
    # No lookup in between: the nodes' own links must be right.
    assert run(filesystem.getattr(file)).size == 4
    assert run(filesystem.getattr(inner)).size == 13
    assert run(filesystem.lookup(ROOT, b"e")).node == file
    assert run(filesystem.lookup(above, b"f")).node == directory
    run(filesystem.forget([(file, 2), (directory, 2), (inner, 1), (above, 1)]))
    assert len(filesystem.nodes) == 1


def test_rename_without_replacement_changes_links_only_if_it_happens(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("bb")
    one, two = run(filesystem.lookup(ROOT, b"a")).node, run(filesystem.lookup(ROOT, b"b")).node
    assert outcome(run, filesystem.rename(ROOT, b"a", ROOT, b"b", RENAME_NOREPLACE)) == "EEXIST"
    assert [run(filesystem.getattr(node)).size for node in (one, two)] == [1, 2]
    run(filesystem.rename(ROOT, b"a", ROOT, b"c", RENAME_NOREPLACE))
    assert [run(filesystem.getattr(node)).size for node in (one, two)] == [1, 2]


def test_rename_of_one_name_of_a_file_to_another_changes_nothing(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("content")
    os.link(tmp_path / "a", tmp_path / "b")
    node = run(filesystem.lookup(ROOT, b"a")).node
    assert run(filesystem.lookup(ROOT, b"b")).node == node
    run(filesystem.rename(ROOT, b"a", ROOT, b"b", 0))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    os.unlink(tmp_path / "b")
    assert run(filesystem.getattr(node)).nlink == 1


def test_directories_moved_into_each_other_elsewhere_make_no_circle(
    filesystem: DirectoryFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    outer = run(filesystem.lookup(ROOT, b"a")).node
    inner = run(filesystem.lookup(outer, b"b")).node
    handle = run(filesystem.opendir(inner))
    run(filesystem.releasedir(handle))
    (tmp_path / "a/b").rename(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "b/a")
    # The directory itself is still held open, so it is found although its link is wrong.
    assert run(filesystem.lookup(inner, b"a")).node == outer
    filesystem.descriptors.shed_directories()
    assert (
        outcome(run, filesystem.getattr(outer)) == "ESTALE"
    )  # until the kernel has looked its path up again
    assert run(filesystem.lookup(ROOT, b"b")).node == inner
    assert run(filesystem.getattr(outer)).nlink == 2
    run(filesystem.forget([(outer, 2), (inner, 2)]))
    assert len(filesystem.nodes) == 1
