"""Lookup counts, node ids and descriptors under any sequence of operations: the core without FUSE against a model."""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from sidecar.directory.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sidecar.protocol_filesystem import ROOT, Entry
from tests.sidecar.directory.core import Shelf, Someone, make_filesystem, open_descriptors, run
from tests.sidecar.directory.harness import outcome

NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
SOMEONE = Someone()


class Lookups(RuleBasedStateMachine):
    """What the kernel does, and what it may conclude."""

    nodes = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        self.before = open_descriptors()
        self.source = Path(tempfile.mkdtemp())
        self.filesystem = make_filesystem(self.source, directories_open=3)
        self.counts: Counter[int] = Counter()
        self.inodes: dict[int, int] = {ROOT: self.source.stat().st_ino}
        self.handles: list[int] = []
        self.newest = ROOT

    @initialize(target=nodes)
    def root(self) -> int:
        return ROOT

    def _note(self, entry: Entry) -> int:
        if entry.node not in self.counts or not self.counts[entry.node]:
            assert entry.node > self.newest or entry.node == ROOT or entry.node in self.inodes
        self.newest = max(self.newest, entry.node)
        self.counts[entry.node] += 1
        known = self.inodes.setdefault(entry.node, entry.attributes.ino)
        assert known == entry.attributes.ino, "one node, two files"
        return entry.node

    @rule(target=nodes, parent=nodes, name=st.one_of(NAMES, st.sampled_from([b".", b".."])))
    def lookup(self, parent: int, name: bytes) -> int:
        with contextlib.suppress(OSError):
            return self._note(run(self.filesystem.lookup(parent, name)))
        return ROOT

    @rule(target=nodes, parent=nodes, name=NAMES)
    def mkdir(self, parent: int, name: bytes) -> int:
        with contextlib.suppress(OSError):
            return self._note(run(self.filesystem.mkdir(parent, name, 0o755, SOMEONE)))
        return ROOT

    @rule(target=nodes, parent=nodes, name=NAMES)
    def create(self, parent: int, name: bytes) -> int:
        with contextlib.suppress(OSError):
            opened, entry = run(self.filesystem.create(parent, name, 0o644, os.O_RDWR, SOMEONE))
            self.handles.append(opened.handle)
            return self._note(entry)
        return ROOT

    @rule(target=nodes, node=nodes, parent=nodes, name=NAMES)
    def link(self, node: int, parent: int, name: bytes) -> int:
        with contextlib.suppress(OSError):
            return self._note(run(self.filesystem.link(node, parent, name)))
        return ROOT

    @rule(parent=nodes, name=NAMES)
    def unlink(self, parent: int, name: bytes) -> None:
        with contextlib.suppress(OSError):
            run(self.filesystem.unlink(parent, name))

    @rule(parent=nodes, name=NAMES)
    def rmdir(self, parent: int, name: bytes) -> None:
        with contextlib.suppress(OSError):
            run(self.filesystem.rmdir(parent, name))

    @rule(
        parent=nodes,
        name=NAMES,
        new_parent=nodes,
        new_name=NAMES,
        flags=st.sampled_from([0, RENAME_EXCHANGE, RENAME_NOREPLACE]),
    )
    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        with contextlib.suppress(OSError):
            run(self.filesystem.rename(parent, name, new_parent, new_name, flags))

    @rule(name=NAMES, new_name=NAMES, into=NAMES)
    def somebody_else_moves(self, name: bytes, new_name: bytes, into: bytes) -> None:
        place = os.fsencode(self.source)
        with contextlib.suppress(OSError):
            os.rename(os.path.join(place, name), os.path.join(place, into, new_name))

    @rule(name=NAMES, of=NAMES)
    def somebody_else_moves_up(self, name: bytes, of: bytes) -> None:
        place = os.fsencode(self.source)
        with contextlib.suppress(OSError):
            os.rename(os.path.join(place, of, name), os.path.join(place, name))

    @rule(name=NAMES)
    def somebody_else_replaces(self, name: bytes) -> None:
        path = os.path.join(os.fsencode(self.source), name)
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.mkdir(path)

    @rule(node=nodes)
    def open(self, node: int) -> None:
        with contextlib.suppress(OSError):
            self.handles.append(run(self.filesystem.open(node, os.O_RDONLY, SOMEONE)).handle)

    @rule()
    def release(self) -> None:
        if self.handles:
            run(self.filesystem.release(self.handles.pop()))

    @rule(node=nodes, room=st.integers(0, 6))
    def list(self, node: int, room: int) -> None:
        with contextlib.suppress(OSError):
            handle = run(self.filesystem.opendir(node))
            shelf = Shelf(room)
            try:
                run(self.filesystem.readdir(handle, 0, shelf))
            finally:
                run(self.filesystem.releasedir(handle))
            for _, listed, attributes, _ in shelf.entries:
                if listed:
                    self._note(Entry(listed, attributes))

    @rule(node=nodes, share=st.floats(0, 1))
    def forget(self, node: int, share: float) -> None:
        count = round(self.counts[node] * share)
        if count and node != ROOT:
            run(self.filesystem.forget([(node, count)]))
            self.counts[node] -= count

    @rule(node=nodes)
    def getattr(self, node: int) -> None:
        if not self.counts[node]:
            return
        found = outcome(lambda: run(self.filesystem.getattr(node)).ino)
        assert found in (self.inodes[node], "ESTALE")  # the latter if somebody else moved it

    @invariant()
    def counts_are_right(self) -> None:
        for node, count in self.counts.items():
            if count and node != ROOT:
                assert self.filesystem.nodes.lookups(self.filesystem.nodes[node]) == count
        assert len(self.filesystem.descriptors) <= 4 + sum(count > 0 for count in self.counts.values())

    def teardown(self) -> None:
        for handle in self.handles:
            run(self.filesystem.release(handle))
        run(self.filesystem.forget([(node, count) for node, count in self.counts.items() if node != ROOT]))
        assert len(self.filesystem.nodes) == 1, "nodes are left over"
        assert len(self.filesystem.descriptors) == 1, "descriptors are left over"
        assert len(self.filesystem.files) == len(self.filesystem.directories) == 0
        self.filesystem.descriptors.discard(ROOT)
        assert open_descriptors() <= self.before
        shutil.rmtree(self.source)


TestLookups = Lookups.TestCase
TestLookups.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
