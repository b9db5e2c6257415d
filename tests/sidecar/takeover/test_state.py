"""The state file as a whole: who may have it, what can be read, and what happens when there is no room."""

import contextlib
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from sidecar.directory.nodes import Node, NodeTable
from sidecar.protocol_filesystem import ROOT
from sidecar.takeover import layout
from sidecar.takeover.holder import NoHolder
from sidecar.takeover.journal import Step
from sidecar.takeover.mapping import map_words
from sidecar.takeover.memory import Memory
from sidecar.takeover.state import State, begin_state, resumable_id, resume_state
from sidemount.model.errors import BadMessage, HostFailure, OperationPending
from tests.sidecar.takeover.lives import Lives
from tests.sidecar.takeover.processes import child_that_dies, die, ended, in_child, in_small_tmpfs

ROOT_IDENTITY = 2 | 4 << 64


def begin(directory: Path) -> State:
    return begin_state(str(directory), NoHolder())


def resume(directory: Path) -> State:
    return resume_state(str(directory), NoHolder(), {})


def table_of(state: Memory) -> NodeTable:
    """Return a node table over a state."""
    table = NodeTable(ROOT_IDENTITY, lambda node: None, state.ledger)
    state.ledger.follow(table)
    if state.inheritance is None:
        state.ledger.node(table.root)
    else:
        table.restore(state.inheritance.nodes, state.inheritance.leftovers)
    return table


def add(table: NodeTable, number: int, parent: Node | None = None) -> Node:
    """Have the kernel look up a file."""
    return table.admit(number + 1000 | 8 << 64, parent or table.root, b"%d" % number, 1)


def picture(table: NodeTable) -> object:
    """Return all that a table says."""
    return {
        node.id: (
            node.identity,
            {(parent.id, name) for parent, name in table.links(node)},
            table.lookups(node),
            node.children,
        )
        for node in table.all.values()
    }


# Who may have it.


def test_state_that_another_process_has_is_refused(tmp_path: Path) -> None:
    state = begin(tmp_path)
    for take in (begin, resume):
        with pytest.raises(OperationPending, match=f"the state in {tmp_path} belongs to another process"):
            take(tmp_path)
    assert resumable_id(str(tmp_path)) == state.state_id
    state.close()
    resume(tmp_path).close()


def test_kernel_takes_the_lock_back_from_the_dead(tmp_path: Path) -> None:
    def begin_and_die() -> None:
        begin(tmp_path)
        die()

    assert child_that_dies(begin_and_die) == -signal.SIGKILL
    resume(tmp_path).close()


def test_each_beginning_has_an_id_of_its_own_and_each_resumption_the_same(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        state = begin(tmp_path)
        ids.append(state.state_id)
        state.close()
        for _ in range(2):
            state = resume(tmp_path)
            assert state.state_id == ids[-1] == resumable_id(str(tmp_path))
            state.close()
    assert len(set(ids)) == 3
    assert all(len(name) == 32 for name in ids)


# What can be read.


def _altered(directory: Path, word: int, value: int) -> None:
    file = os.open(directory / "state", os.O_RDWR)
    map_words(file, 0, layout.HEAD_WORDS)[word] = value
    os.close(file)


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        pytest.param(layout.AT_MAGIC, 0, "is none of ours", id="no-magic"),
        pytest.param(layout.AT_FORMAT, 2, "has format 2; this version reads only 1", id="later-format"),
        pytest.param(layout.AT_LOST, 1, "was given up", id="lost"),
        pytest.param(layout.AT_LOG_END, 9999, "has been cut off", id="cut-off"),
    ],
)
def test_state_that_cannot_be_resumed_says_why(tmp_path: Path, word: int, value: int, said: str) -> None:
    begin(tmp_path).close()
    _altered(tmp_path, word, value)
    assert resumable_id(str(tmp_path)) == ""
    with pytest.raises(BadMessage, match=f"the state in {tmp_path} {said}"):
        resume(tmp_path)
    begin(tmp_path).close()
    resume(tmp_path).close()


@pytest.mark.parametrize("content", [b"", b"x", bytes(4096), os.urandom(8192)])
def test_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    assert resumable_id(str(tmp_path)) == ""
    with pytest.raises(BadMessage, match="is too short"):
        resume(tmp_path)


def test_no_state_and_no_directory_are_errors_that_name_the_place(tmp_path: Path) -> None:
    with pytest.raises(BadMessage, match=f"the state in {tmp_path} is not there any more"):
        resume(tmp_path)
    missing = tmp_path / "missing"
    with pytest.raises(HostFailure, match=f"cannot lock the state in {missing}: No such file"):
        begin(missing)
    assert resumable_id(str(missing)) == ""


def test_process_that_is_killed_while_it_begins_leaves_the_old_state_or_a_whole_one(tmp_path: Path) -> None:
    begin(tmp_path).close()
    for number in range(30):
        child = os.fork()
        if child == 0:
            while True:
                begin(tmp_path).close()
        time.sleep(0.001 * (number % 7))
        os.kill(child, signal.SIGKILL)
        ended(child)
        resume(tmp_path).close()


# What is in it.


class Tables(RuleBasedStateMachine):
    """Any changes of a node table, with a successor after any of them."""

    nodes = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.directory = Path(tempfile.mkdtemp())
        self.state = begin(self.directory)
        self.table = table_of(self.state)
        self.handles: dict[int, tuple[int, int]] = {}
        self.number = 0

    @initialize(target=nodes)
    def root(self) -> int:
        return 1

    def _node(self, node: int) -> Node:
        return self.table.all.get(node, self.table.root)

    def _directory(self, node: int) -> Node:
        known = self._node(node)
        return known if known.identity >> 64 == 4 else self.table.root

    @rule(target=nodes, parent=nodes, name=st.sampled_from([b"a", b"b", b"c"]), kind=st.sampled_from([4, 8]))
    def find(self, parent: int, name: bytes, kind: int) -> int:
        self.number += 1
        return self.table.admit(self.number | kind << 64, self._directory(parent), name, 1).id

    @rule(node=nodes, parent=nodes, name=st.sampled_from([b"a", b"b", b"c"]), links=st.integers(1, 3))
    def find_again(self, node: int, parent: int, name: bytes, links: int) -> None:
        """By another name, of a file; moved by somebody else, of a directory."""
        known = self._node(node)
        if known is not self.table.root:
            links = links if known.identity >> 64 == 8 else 1
            self.table.admit(known.identity, self._directory(parent), name, links)

    @rule(node=nodes, index=st.integers(0, 3))
    def unlink(self, node: int, index: int) -> None:
        known = self._node(node)
        links = self.table.links(known)
        if links:
            self.table.unlink(known, *links[index % len(links)])

    @rule(node=nodes, parent=nodes, name=st.sampled_from([b"a", b"d"]), index=st.integers(0, 3))
    def rename(self, node: int, parent: int, name: bytes, index: int) -> None:
        known = self._node(node)
        links = self.table.links(known)
        if links and known is not self.table.root and known is not self._directory(parent):
            new = (self._directory(parent), name)
            self.table.rename(known, links[index % len(links)], new, 2 if known.identity >> 64 == 8 else 1)

    @rule(node=nodes, count=st.integers(1, 3))
    def forget(self, node: int, count: int) -> None:
        self.table.forget(node, count)

    @rule(node=nodes, traits=st.integers(0, 2**64 - 1))
    def open(self, node: int, traits: int) -> None:
        handle = self.state.handles.opened(node, traits, Step())
        assert handle not in self.handles
        self.handles[handle] = (node, traits)

    @rule(index=st.integers(0, 20))
    def close(self, index: int) -> None:
        if self.handles:
            handle = sorted(self.handles)[index % len(self.handles)]
            self.state.handles.closed(handle)
            del self.handles[handle]

    @rule()
    def be_succeeded(self) -> None:
        before = picture(self.table)
        self.state.close()
        self.state = resume(self.directory)
        assert self.state.inheritance is not None
        assert self.state.inheritance.handles == self.handles
        self.table = table_of(self.state)
        assert picture(self.table) == before

    @rule()
    def churn_until_records_are_cleaned(self) -> None:
        self.state.ledger._clean_above = 0
        for number in range(30):
            node = self.table.admit(10**6 + number | 8 << 64, self.table.root, b"x%d" % number, 1)
            self.table.forget(node.id, 1)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.state.state_id

    def teardown(self) -> None:
        try:
            self.be_succeeded()
        finally:
            self.state.close()
            shutil.rmtree(self.directory)


TestTables = Tables.TestCase
TestTables.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_nodes_are_there_whenever_a_process_is_killed(tmp_path: Path) -> None:
    """S4-09. Real processes, killed at random: what the kernel can have been told of is found again."""
    dice = random.Random(11)
    begin(tmp_path).close()
    shared = os.open(tmp_path / "told", os.O_RDWR | os.O_CREAT)
    os.truncate(shared, 8 * 1_000_000)
    told = map_words(shared, 0, 1_000_000)
    for life in range(500):
        if life >= 25 and told[0] > 500:
            break
        child = os.fork()
        if child == 0:
            state = resume(tmp_path)
            table = table_of(state)
            number = told[0]
            while True:
                node = add(table, number)
                told[number + 1] = node.id
                told[0] = number = number + 1
                if number % 3 == 0:
                    victim = told[number // 2]
                    told[number // 2] = 0
                    table.forget(victim, 1)
        time.sleep(0.01 + dice.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        ended(child)
        state = resume(tmp_path)
        table = table_of(state)
        again = 0  # looked up once more than told: a life that ended between the two
        for number in range(told[0]):
            if told[number + 1]:
                found = table[told[number + 1]]
                assert found.name == b"%d" % number
                assert table.lookups(found) >= 1
                again += table.lookups(found) - 1
        assert again <= life + 1
        assert len(table) <= sum(1 for number in range(told[0]) if told[number + 1]) + life + 3
        state.close()
    assert told[0] > 500  # so that lives had something to find
    os.close(shared)


# When there is no room.


@pytest.mark.root
def test_state_that_cannot_grow_is_given_up_and_the_volume_goes_on(tmp_path: Path) -> None:
    def fill() -> tuple[list[str], int, str, bool, str]:
        lost: list[str] = []
        state = begin(tmp_path)
        state.on_lost = lost.append
        table = table_of(state)
        nodes = [add(table, number).id for number in range(40_000)]
        for node in nodes[::2]:
            table.forget(node, 1)
        more = [add(table, 100_000 + number).id for number in range(20_000)]
        counts = all(table.lookups(table[node]) == 1 for node in [*nodes[1::2], *more])
        return lost, len(table), state.state_id, counts, resumable_id(str(tmp_path))

    lost, nodes, state_id, counts_are_right, resumable = in_small_tmpfs(tmp_path, "1500k", fill)
    assert len(lost) == 1
    assert "cannot grow: No space left on device" in lost[0]
    assert nodes == 40_001
    assert counts_are_right
    assert state_id == resumable == ""


@pytest.mark.root
def test_state_that_was_given_up_makes_room_and_never_kills_the_process(tmp_path: Path) -> None:
    """Storing into a mapping that has no space behind it would, and the mount would end with it."""

    def fill() -> tuple[int, int, int]:
        lost: list[str] = []
        state = begin(tmp_path)
        state.on_lost = lost.append
        table = table_of(state)
        while not lost:
            add(table, len(table))
        before = state.size_bytes
        filler = os.open(tmp_path / "filler", os.O_CREAT | os.O_WRONLY)
        with contextlib.suppress(OSError):
            while True:
                os.write(filler, b"x" * 4096)
        for _ in range(40_000):
            add(table, len(table))
        return before, state.size_bytes, len(table)

    before, after, nodes = in_small_tmpfs(tmp_path, "3m", fill)
    assert after < before / 2
    assert nodes > 60_000


@pytest.mark.root
def test_no_room_to_begin_is_an_error(tmp_path: Path) -> None:
    def begin_there() -> str:
        with pytest.raises(HostFailure) as caught:
            begin(tmp_path)
        return str(caught.value)

    said = in_small_tmpfs(tmp_path, "64k", begin_there)
    assert said == (
        f"cannot begin the state in {tmp_path}: No space left on device; the directory's filesystem is full"
    )


# How much it is.


@pytest.mark.slow
def test_a_million_nodes(tmp_path: Path) -> None:
    """A successor has them within seconds, and each takes less than 80 bytes of memory besides the table's own."""
    count = 1_000_000

    def measure() -> tuple[float, int, int]:
        state = begin(tmp_path)
        table = table_of(state)
        for number in range(count):
            identity = 10**7 + number | 8 << 64 | (1_700_000_000 * 10**9 + number) << 68
            table.admit(identity, table.root, b"file-%08d" % number, 1)
        state.close()
        before = time.process_time()
        successor = resume(tmp_path)
        nodes = len(table_of(successor))
        return time.process_time() - before, successor.size_bytes, nodes

    seconds, size_bytes, nodes = in_child(measure)
    assert nodes == count + 1
    assert size_bytes / count < 80
    assert seconds < 10


def test_little_is_little(tmp_path: Path) -> None:
    state = begin(tmp_path)
    table = table_of(state)
    for number in range(500):
        add(table, number)
    assert state.size_bytes < 400_000
    state.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_state_that_was_removed_is_not_waited_for(tmp_path: Path, is_there: bool) -> None:
    directory = tmp_path / "state"
    if is_there:
        directory.mkdir()
    with pytest.raises(BadMessage, match="is not there any more"):
        resume_state(str(directory), NoHolder(), {})


def test_a_state_that_nobody_came_to_serve_from_is_begun_with(tmp_path: Path) -> None:
    """S4-09: a process that dies before it has noted the root has told the kernel nothing."""
    lives = Lives(tmp_path)
    lives.begin()
    (lives.source / "f").touch()
    begin(tmp_path / "state").close()  # and the process dies
    with lives.life() as life:
        found = life.do(life.filesystem.lookup(ROOT, b"f")).node
    with lives.life() as life:
        assert life.do(life.filesystem.getattr(found)).size == 0
    lives.close()
