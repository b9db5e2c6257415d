"""Open directories: their handles, and how a listing is told to the kernel.

An entry comes with its attributes, or as a name alone (`sidecar.directory.interest` says why): directories always with them, files at the
beginning of every listing and for as long as files of the directory are asked for. Among those one is left without: if somebody looks
at all of them, that one is asked for.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor

from sidecar.directory.interest import Interest
from sidecar.objects.handles import DIRECTORY_TRAITS, Handles
from sidecar.objects.keys import path_of
from sidecar.objects.known import Fact
from sidecar.objects.listing import Item, Stream
from sidecar.objects.listing_records import ListingRecords
from sidecar.objects.nodes import Node
from sidecar.objects.volume import Volume
from sidecar.protocol_filesystem import Emit
from sidecar.takeover.handle_ledger import HandleLedger
from sidecar.takeover.operation import OPENDIR

_MORE = 64  # entries that wait: this listing will not end with this answer
_FILE, _DIRECTORY = 0o10, 0o4
_DOTS = (b".", b"..")


class OpenDirectory:
    """An open directory. `stream` is made when it is first read."""

    traits = DIRECTORY_TRAITS

    def __init__(self, node: Node, *, is_inherited: bool = False) -> None:
        self.node = node
        self.handle = 0
        self.is_inherited = is_inherited
        self.lock = threading.Lock()
        self.stream: Stream | None = None
        self.noted = 0  # the last page that a successor knows of


class Directories:
    """The operations on open directories of one volume."""

    def __init__(
        self,
        volume: Volume,
        interest: Interest,
        ledger: HandleLedger,
        records: ListingRecords,
        ahead: Executor,
    ) -> None:
        self._volume = volume
        self._interest = interest
        self._records = records
        self._ahead = ahead
        self.handles: Handles[OpenDirectory] = Handles(ledger)

    def opendir(self, node: int) -> int:
        """Open a directory and return its handle."""
        with self._volume.journal.step(OPENDIR, node, b"") as step:
            directory = OpenDirectory(self._volume.nodes[node])
            step.intend()
            handle = self.handles.add(directory, step)
            step.done()
            return handle

    def inherit(self, handles: Mapping[int, Node]) -> None:
        """Have the directories that a predecessor had open."""
        for handle, node in handles.items():
            self.handles.inherit(handle, OpenDirectory(node, is_inherited=True))
        self._records.keep_only(handles)

    def is_ready(self, handle: int, position: int) -> bool:
        """Tell whether a listing goes on from a position without asking the store."""
        directory = self.handles[handle]
        stream = directory.stream
        return stream is not None and not directory.lock.locked() and stream.is_ready(position)

    def position(self, handle: int) -> int:
        """Return where a listing is."""
        stream = self.handles[handle].stream
        return 0 if stream is None else stream.position

    def readdir(self, handle: int, position: int, emit: Emit, *, at_once: bool = False) -> bool:
        """Emit entries from a position on. `at_once`: only those that are there already; return whether that is an answer.

        After the first one, an error only ends this answer: entries that were emitted count as looked up, and an error would
        keep them from the kernel. It comes again with the next call, as the first thing then.
        """
        directory = self.handles[handle]
        with directory.lock:
            stream = directory.stream or self._open(directory)
            stream.seek(position)
            is_wanted = self._interest.take(directory.node.id) or position == 0
            is_answer = self._emit_all(directory, stream, emit, is_wanted or not emit.takes_names, at_once)
            page = max(stream.records, default=0)
            if page > directory.noted:  # before anybody is told of a position on it
                directory.noted = page
                self._records.save(handle, stream.records, position)
            return is_answer

    def releasedir(self, handle: int) -> None:
        """Close a directory. A handle of an earlier life of the daemon is no error."""
        directory = self.handles.remove(handle)
        if directory is not None:
            if directory.stream is not None:
                directory.stream.close()
            if directory.noted or directory.is_inherited:
                self._records.drop(handle)

    def _open(self, directory: OpenDirectory) -> Stream:
        volume = self._volume
        path = volume.nodes.path(directory.node)
        records = self._records.load(directory.handle) if directory.is_inherited else None
        directory.stream = Stream(
            volume.tree, path, volume.metrics, lambda: self._own(directory.node, path), self._ahead, records
        )
        return directory.stream

    def _own(self, node: Node, path: str) -> Iterator[tuple[bytes, str, bool]]:
        """Yield what lies in a directory whatever the store says: files that are being written, directories that we have emptied."""
        volume = self._volume
        if not volume.store.abilities.listing:  # a web site: what was found there
            for child in volume.nodes.children(node):
                yield child.name, path_of(path, child.name), child.is_directory
            return
        for file in volume.drafting():
            if file.parent is node:
                with contextlib.suppress(OSError):
                    yield file.name, volume.nodes.path(file), False
        for kept in volume.tree.kept_in(path):
            yield kept.rpartition("/")[2].encode(), kept, True

    def _emit_all(
        self, directory: OpenDirectory, stream: Stream, emit: Emit, with_attributes: bool, at_once: bool
    ) -> bool:
        """Emit entries while there are any and there is room. Return whether there were, or it is the end."""
        emitted = probed = False
        try:
            while not (at_once and stream.must_wait):
                item = stream.peek()
                if item is None:
                    return True
                if item.name in _DOTS:
                    taken: bool | None = emit.name_alone(item.name, item.ino, _DIRECTORY, item.position)
                elif not item.is_directory and not with_attributes:
                    taken = self._emit_name(item, emit)
                elif not (item.is_directory or probed) and emit.takes_names and stream.waiting > _MORE:
                    probed = True
                    taken = self._emit_name(item, emit)
                else:
                    taken = self._emit_found(directory.node, item, emit)
                if taken is False:
                    return True
                stream.step()
                emitted = emitted or taken is True
        except Exception:
            if not emitted:
                raise
        return emitted

    def _fact(self, item: Item) -> Fact | None:
        """Return what an entry is by now, None if it is gone: we may have changed it since it was listed."""
        if item.fact is None:
            return None
        fact = self._volume.tree.known.newer(item.path, item.fact.at) or item.fact
        return fact if fact.is_there else None

    def _emit_name(self, item: Item, emit: Emit) -> bool | None:
        if item.fact is not None and self._fact(item) is None:
            return None
        return emit.name_alone(item.name, item.ino, _DIRECTORY if item.is_directory else _FILE, item.position)

    def _emit_found(self, above: Node, item: Item, emit: Emit) -> bool | None:
        """Emit one entry with its attributes. Return whether there was room for it, None if it is gone meanwhile."""
        volume = self._volume
        fact = self._fact(item)
        if item.fact is None:
            if item.is_directory:
                fact = Fact(None, True, 0.0)
            elif emit.takes_names:  # it is being written: a lookup tells the rest
                return emit.name_alone(item.name, item.ino, _FILE, item.position)
        if fact is None:
            return None
        entry = volume.admit(above, item.name, item.path, fact)
        taken = False
        try:
            taken = emit(item.name, entry.node, entry.attributes, item.position)
        finally:
            if not taken:
                volume.nodes.forget(entry.node, 1)
        return taken
