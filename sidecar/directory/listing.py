"""Open directories and their listing.

A position is the store's own directory offset of the entry that follows: one per name, so hard links are told apart;
valid across entries that come and go, as far as the store's are; and the same for whichever process opens the directory. Entries are read
in blocks, so that a directory of any size costs one block of memory.

An entry comes with its attributes, or as a name alone (`sidecar.directory.interest` says why). With them come: directories, because whoever
goes through a tree enters them; what the store does not tell the type of; the beginning of every listing, which is all of a small
directory; and the rest for as long as files of the directory are asked for. Among entries with attributes one is left without:
if somebody looks at all of them, that one is asked for.
"""

import os
import threading
from collections import deque
from stat import S_IFBLK, S_IFCHR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK

from sidecar.directory.handles import DIRECTORY_TRAITS, HandleTable, Traits
from sidecar.directory.nodes import Node, NodeTable
from sidecar.directory.reach import Reach
from sidecar.directory.status import DIRECTORY
from sidecar.directory.store import Listed, Store
from sidecar.protocol_filesystem import Emit
from sidecar.takeover.handle_ledger import HandleLedger
from sidecar.takeover.journal import Journal
from sidecar.takeover.operation import OPENDIR

_DOTS = (b".", b"..")
_MORE = 64  # entries that wait: this listing will not end with this answer
_NAMES_ALONE = frozenset(kind >> 12 for kind in (S_IFREG, S_IFLNK, S_IFCHR, S_IFBLK, S_IFIFO, S_IFSOCK))


class Listing:
    """An open directory. Entries already read wait in `_ahead`; `_at` is the position of the first of them.

    `_changed_ns` is the directory's change time when they were read.
    """

    traits = DIRECTORY_TRAITS

    def __init__(self, store: Store, node: Node, fd: int) -> None:
        self.node = node
        self.fd = fd
        self.lock = threading.Lock()
        self._store = store
        self._at = 0
        self._changed_ns = 0
        self._has_read = False
        self._ahead: deque[Listed] = deque()

    def seek(self, position: int) -> None:
        """Go to a position. The beginning is always read afresh: that is what rewinddir is for."""
        if position == self._at and (position or not self._has_read):
            return
        self._ahead.clear()
        if position:
            self._store.seek_listing(self.fd, position)
        else:
            self._store.begin_listing_again(self.fd)
        self._at = position

    def peek(self) -> Listed | None:
        """Return the next entry without going past it, None at the end."""
        if not self._ahead:
            self._changed_ns = self._change_time_ns()
            self._has_read = True
            self._ahead.extend(self._store.list(self.fd))
        return self._ahead[0] if self._ahead else None

    def step(self) -> None:
        """Go past the entry that was peeked at."""
        self._at = self._ahead.popleft().position

    def emit_names(self, emit: Emit) -> bool:
        """Emit names alone, as long as entries that were read ahead may go so. Return whether there was room for them."""
        ahead = self._ahead
        while ahead:
            name, ino, kind, position = ahead[0]
            if kind not in _NAMES_ALONE:
                break
            if not emit.name_alone(name, ino, kind, position):
                return False
            self._at = position
            ahead.popleft()
        return True

    @property
    def has_more(self) -> bool:
        """Whether many entries wait."""
        return len(self._ahead) > _MORE

    @property
    def is_outdated(self) -> bool:
        """Whether the directory has changed since the entries that wait were read: some of them may be gone."""
        return bool(self._ahead) and self._changed_ns != self._change_time_ns()

    def _change_time_ns(self) -> int:
        """Return the directory's change time, 0 if it cannot be had: listing goes on without."""
        try:
            return self._store.status(self.fd, b"").attributes.ctime_ns
        except OSError:
            return 0


class Directories:
    """The operations on open directories of one volume."""

    def __init__(
        self, store: Store, nodes: NodeTable, reach: Reach, journal: Journal, ledger: HandleLedger
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._reach = reach
        self._journal = journal
        self.handles: HandleTable[Listing] = HandleTable(ledger)
        self.handles.reopen = self._reopen

    def __len__(self) -> int:
        return len(self.handles)

    def opendir(self, node: int) -> int:
        """Open a directory and return its handle."""
        with self._journal.step(OPENDIR, node, b"") as step:
            listing = self._open(self._nodes[node])
            step.intend()
            handle = self.handles.add(listing, step)
            step.done()
            return handle

    def readdir(self, handle: int, position: int, emit: Emit) -> None:
        """Emit entries from a position on.

        After the first one, an error only ends this answer: entries that were emitted count as looked up, and an error would
        keep them from the kernel. It comes again with the next call, as the first thing then.
        """
        listing = self.handles[handle]
        with listing.lock:
            listing.seek(position)
            is_outdated = listing.is_outdated
            is_wanted = self._nodes.interest.take(listing.node.id) or position == 0 or is_outdated
            with self._reach.directory(listing.node) as directory:
                self._emit_all(
                    listing,
                    directory,
                    emit,
                    with_attributes=is_wanted or not emit.takes_names,
                    probes=emit.takes_names and not is_outdated,
                )

    def fsyncdir(self, handle: int, datasync: bool) -> None:
        """Make a directory's entries durable."""
        self._store.sync(self.handles[handle].fd, datasync)

    def releasedir(self, handle: int) -> None:
        """Close a directory. A handle of an earlier life of the daemon is no error."""
        listing = self.handles.remove(handle)
        if listing is not None:
            os.close(listing.fd)

    def _reopen(self, node: int, _: Traits) -> Listing:
        return self._open(self._nodes[node])

    def _open(self, node: Node) -> Listing:
        with self._reach.directory(node) as directory:
            return Listing(self._store, node, self._store.open_listing(directory))

    def _emit_all(
        self, listing: Listing, directory: int, emit: Emit, *, with_attributes: bool, probes: bool
    ) -> None:
        """Emit entries until there is no more, or no more room. `probes`: one of those with attributes is to go without."""
        emitted = False
        try:
            while (listed := listing.peek()) is not None:
                if listed.kind not in _NAMES_ALONE:
                    taken = self._emit_found(listing.node, directory, listed, emit)
                elif not with_attributes:
                    if not listing.emit_names(emit):
                        return
                    emitted = True
                    continue
                elif probes and listing.has_more:
                    probes = False
                    taken = emit.name_alone(listed.name, listed.ino, listed.kind, listed.position)
                else:
                    taken = self._emit_found(listing.node, directory, listed, emit)
                if taken is False:
                    return
                listing.step()
                emitted = emitted or taken is True
        except Exception:
            if not emitted:
                raise

    def _emit_found(self, above: Node, directory: int, listed: Listed, emit: Emit) -> bool | None:
        """Emit one entry with its attributes. Return whether there was room for it, None if the name is gone meanwhile."""
        if listed.name in _DOTS:
            return self._emit_dots(above, listed, emit)
        try:
            found = self._store.status(directory, listed.name)
        except FileNotFoundError:
            return None
        except OSError:
            # Its attributes cannot be had, but its name can, as in the bare directory; a lookup will say why.
            return emit.name_alone(listed.name, listed.ino, listed.kind, listed.position)
        node = self._nodes.admit(found.identity, above, listed.name, found.links)
        taken = False
        try:
            taken = emit(listed.name, node.id, found.attributes, listed.position)
        finally:
            if taken:
                node.tell(found)
            else:
                self._nodes.forget(node.id, 1)
        return taken

    def _emit_dots(self, above: Node, listed: Listed, emit: Emit) -> bool:
        is_above_root = listed.name == b".." and above is self._nodes.root
        ino = self._store.root_ino if is_above_root else listed.ino
        return emit.name_alone(listed.name, ino, DIRECTORY, listed.position)
