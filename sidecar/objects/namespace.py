"""Finding and making names, with the node table kept in step. Taking them away: `removal`; renaming: `renaming`."""

import errno
import os
import secrets
import stat

from sidecar.directory.interest import Interest
from sidecar.directory.names import single
from sidecar.objects.handles import OpenFile
from sidecar.objects.known import Fact
from sidecar.objects.nodes import Node, stale
from sidecar.objects.volume import Volume
from sidecar.protocol_filesystem import Entry
from sidecar.takeover.journal import Step
from sidecar.takeover.operation import CREATE, MKDIR, MKNOD
from sidemount.stores.store import FaultKind, StoreFault

_TAG_BITS = 128


class Namespace:
    """The operations that find or make names. A step that is recalled is one that a predecessor began: see `takeover.journal`."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.interest = Interest()

    def lookup_now(self, parent: int, name: bytes) -> Entry | None:
        """Find a name if nobody has to be asked for it; None if the store has to be. ENOENT if it is known not to be there."""
        volume = self._volume
        above = volume.nodes[parent]
        if name in (b".", b".."):
            node = above if name == b"." else above.parent or volume.nodes.root
            attributes = volume.attributes_now(node)
            return None if attributes is None else Entry(volume.nodes.again(node).id, attributes)
        path = volume.path_in(above, single(name))
        entry = self._drafted(above, name)
        if entry is not None:
            return entry
        fact = volume.tree.recall(path)
        return None if fact is None else self._found(above, name, path, fact)

    def lookup(self, parent: int, name: bytes) -> Entry:
        """Find a name."""
        volume = self._volume
        above = volume.nodes[parent]
        if name in (b".", b".."):
            node = above if name == b"." else above.parent or volume.nodes.root
            attributes = volume.attributes(node)
            return Entry(volume.nodes.again(node).id, attributes)
        path = volume.path_in(above, single(name))
        return self._drafted(above, name) or self._found(above, name, path, volume.tree.find(path))

    def _found(self, above: Node, name: bytes, path: str, fact: Fact) -> Entry:
        self.interest.note(above.id)
        if not fact.is_there:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._volume.admit(above, name, path, fact)

    def _drafted(self, above: Node, name: bytes) -> Entry | None:
        """Return the entry of a file that is being written: the store may not have it yet."""
        volume = self._volume
        node = volume.nodes.child(above, name)
        draft = None if node is None else volume.draft(node)
        if node is None or draft is None:
            return None
        if draft.is_lost:  # the name is somebody else's file by now
            volume.nodes.detach(node)
            return None
        attributes = volume.attributes_now(node)
        return None if attributes is None else Entry(volume.nodes.again(node).id, attributes)

    def mknod(self, parent: int, name: bytes, mode: int) -> Entry:
        """Make an empty regular file; there are no others."""
        if stat.S_IFMT(mode) != stat.S_IFREG:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return self._make(MKNOD, parent, name, is_directory=False)

    def mkdir(self, parent: int, name: bytes) -> Entry:
        """Make a directory: its marker."""
        return self._make(MKDIR, parent, name, is_directory=True)

    def _make(self, kind: int, parent: int, name: bytes, *, is_directory: bool) -> Entry:
        """Make an object without content. It carries a tag, so that whoever begins again knows it for its own."""
        volume = self._volume
        above = volume.nodes[parent]
        path = volume.path_in(above, single(name))
        key = volume.tree.key(path, is_directory=is_directory)
        with volume.journal.step(kind, parent, name) as step:
            if step.is_done:
                node = volume.nodes[step.node]
                return Entry(node.id, volume.attributes(node))
            # Some servers keep no tag of a marker. What has none was not there before, and the kernel lets nobody else make it.
            if not (step.is_recalled and self._tag_of(key) in (f"{step.first:x}", "")):
                if volume.tree.find(path).is_there:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                tag = secrets.randbits(_TAG_BITS) | 1
                step.intend(first=tag)
                self._put(key, path, f"{tag:x}")
            fact = self._made(path, key, is_directory=is_directory)
            entry = volume.admit(above, name, path, fact)
            step.done(entry.node)
            return entry

    def _put(self, key: str, path: str, tag: str) -> None:
        volume = self._volume
        try:
            volume.store.put(key, [], if_absent=volume.store.abilities.put_if_absent, tag=tag)
        except StoreFault as fault:
            if fault.kind is not FaultKind.EXISTS or self._tag_of(key) != tag:
                volume.tree.known.forget(path)
                raise  # or it was put by a try whose answer was lost

    def _made(self, path: str, key: str, *, is_directory: bool) -> Fact:
        tree = self._volume.tree
        if is_directory:
            tree.made_directory(path)
            return Fact(None, True, tree.known.clock())
        return tree.ask(path)

    def _tag_of(self, key: str) -> str | None:
        """Return the tag that an object was made with, "" if the store knows of none, None if there is no object."""
        try:
            return self._volume.store.tag_of(key)[1]
        except StoreFault as fault:
            if fault.kind is FaultKind.MISSING:
                return None
            raise

    def create(self, parent: int, name: bytes, flags: int) -> tuple[int, Entry]:
        """Make a regular file and open it; return handle and entry.

        The kernel found no such name. If there is one by now, it has to look again (ESTALE).
        """
        volume = self._volume
        above = volume.nodes[parent]
        path = volume.path_in(above, single(name))
        volume.tree.key(path)
        with volume.journal.step(CREATE, parent, name) as step:
            node = self._created_before(step, above, name) if step.is_recalled else None
            if node is None:
                node = self._create(step, above, name, path, flags)
            file = OpenFile(node, flags & ~(os.O_CREAT | os.O_EXCL), None)
            handle = volume.files.add(file, step)
            step.done(node.id)
            return handle, Entry(node.id, volume.attributes(node))

    def _create(self, step: Step, above: Node, name: bytes, path: str, flags: int) -> Node:
        volume = self._volume
        known = volume.nodes.child(above, name)
        is_drafted = known is not None and volume.draft(known) is not None
        # What is known is good enough for whoever would open a file that is there, but not for whoever takes it for a lock.
        ask = volume.tree.ask if flags & os.O_EXCL else volume.tree.find
        if is_drafted or ask(path).is_there:
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            raise stale()
        step.intend()
        if known is not None:
            volume.nodes.detach(
                known
            )  # somebody else has removed it; whoever has it open here reads what it was
        node = volume.nodes.admit(above, name, path, is_directory=False)
        try:
            volume.begin_draft(node, exclusive=bool(flags & os.O_EXCL))
        except BaseException:
            volume.tree.known.forget(path)
            volume.nodes.forget(node.id, 1)
            raise
        volume.tree.known.forget(path)
        return node

    def _created_before(self, step: Step, above: Node, name: bytes) -> Node | None:
        """Return the node that a predecessor has created and counted; None if it has not. Its handle was never told."""
        volume = self._volume
        if step.handle:
            volume.files.remove(step.handle)
        if step.is_done:
            return volume.nodes[step.node]
        node = volume.nodes.child(above, name)
        if node is None or volume.draft(node) is None:
            return None
        return volume.nodes.again(node)
