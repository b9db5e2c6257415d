"""Renaming: an object store has no such thing, so objects are copied within it, and then the old ones removed.

A failure before the first removal leaves everything as it was. A process that is killed leaves both, and its successor, which
is asked again, carries on: a copy that is made twice is the same copy.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import NamedTuple

from sidecar.directory.names import single
from sidecar.directory.syscalls import RENAME_NOREPLACE
from sidecar.objects.content import Content
from sidecar.objects.handles import mark_of
from sidecar.objects.keys import KEY_MAX_BYTES, is_beneath
from sidecar.objects.known import Fact
from sidecar.objects.nodes import Node, stale
from sidecar.objects.removal import Removal
from sidecar.objects.volume import Volume
from sidecar.takeover import operation
from sidecar.takeover.journal import Step
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault

_FILE, _DIRECTORY = 1, 2  # in a step: what is renamed, and that the target was seen to be free for it
_NODE_AT = 64
_MARK = (1 << _NODE_AT) - 1


class Place(NamedTuple):
    """A name in a directory, and its path."""

    above: Node
    name: bytes
    path: str


class Renaming:
    """Renames files and directories of one volume. `copiers` runs copies side by side; each that is done is told to `progress`."""

    def __init__(
        self,
        volume: Volume,
        content: Content,
        removal: Removal,
        copiers: Executor,
        progress: Callable[[], None],
    ) -> None:
        self._volume = volume
        self._content = content
        self._removal = removal
        self._copiers = copiers
        self._progress = progress

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename, with NOREPLACE; any other flag is EINVAL."""
        if flags not in (0, RENAME_NOREPLACE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        volume = self._volume
        old, new = self._place(parent, name), self._place(new_parent, new_name)
        if not volume.store.abilities.copy:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        with volume.journal.step(*operation.rename(parent, name, new_parent, new_name, flags)) as step:
            if step.is_done or old.path == new.path:
                return
            node = self._moved(step, old)
            if step.is_recalled and step.second:
                is_directory = step.second == _DIRECTORY
            else:
                is_directory = (
                    node.is_directory if node is not None else volume.tree.find(old.path).is_directory
                )
            if is_directory:
                with volume.moves.of_directory():
                    self._move_directory(step, node, old, new, flags)
            else:
                with self._files(node, new):
                    self._move_file(step, node, old, new, flags)
            step.done()

    @contextmanager
    def _files(self, node: Node | None, new: Place) -> Iterator[None]:
        """Have a file for oneself, and the one at its new name: a commit of that one must not come after the copy."""
        volume = self._volume
        while True:
            victim = volume.nodes.child(new.above, new.name)
            with volume.moves.of_files(*(0 if one is None else one.id for one in (node, victim))):
                if volume.nodes.child(new.above, new.name) is victim:
                    yield
                    return

    def _place(self, parent: int, name: bytes) -> Place:
        above = self._volume.nodes[parent]
        return Place(above, name, self._volume.path_in(above, single(name)))

    def _moved(self, step: Step, old: Place) -> Node | None:
        """Return the node that is renamed. A predecessor may have moved it already."""
        nodes = self._volume.nodes
        noted = nodes.all.get(step.first >> _NODE_AT) if step.is_recalled else None
        return noted or nodes.child(old.above, old.name)

    def _intend(self, step: Step, kind: int, node: Node | None, mark: int) -> None:
        step.intend(first=(0 if node is None else node.id) << _NODE_AT | mark, second=kind)

    # Files.

    def _move_file(self, step: Step, node: Node | None, old: Place, new: Place, flags: int) -> None:
        volume = self._volume
        key, new_key = volume.tree.key(old.path), volume.tree.key(new.path)
        if node is not None and volume.draft(node) is not None:
            self._content.commit(node)
        info = self._source(key)
        if info is None:
            if not (step.is_recalled and self._source(new_key)):
                volume.tree.known.forget(old.path)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            copied: ObjectInfo | None = None  # a predecessor has done it all
        else:
            copied = self._copy_file(step, node, info, new, flags)
            volume.drafts.supersede(key)
            volume.store.delete(key)
        if copied is None:
            copied = volume.store.head(new_key)
        self._relink(node, old, new, copied)

    def _copy_file(
        self, step: Step, node: Node | None, info: ObjectInfo, new: Place, flags: int
    ) -> ObjectInfo:
        volume = self._volume
        is_exclusive = bool(flags & RENAME_NOREPLACE)
        mark = mark_of(info.etag)
        was_checked = step.is_recalled and step.second == _FILE and step.first & _MARK == mark
        target = volume.tree.ask(new.path)
        if target.is_directory:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_exclusive and not was_checked and self._is_taken(target, new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._intend(step, _FILE, node, mark)
        volume.drafts.supersede(volume.tree.key(new.path))
        if_absent = is_exclusive and not was_checked and volume.store.abilities.put_if_absent
        try:
            return volume.store.copy(info.key, volume.tree.key(new.path), etag=info.etag, if_absent=if_absent)
        except StoreFault as fault:
            volume.tree.known.forget(new.path)
            is_removed = was_checked and fault.kind is FaultKind.MISSING
            if is_removed and (copied := self._source(volume.tree.key(new.path))) is not None:
                return copied  # a predecessor had copied it, and the store has just come to its removal
            if fault.kind in (FaultKind.MISSING, FaultKind.CHANGED):
                raise stale() from fault
            raise

    def _is_taken(self, target: Fact, new: Place) -> bool:
        """Tell whether anything is at a name, if only a file that is being written."""
        victim = self._volume.nodes.child(new.above, new.name)
        return target.is_there or (victim is not None and self._volume.draft(victim) is not None)

    def _relink(self, node: Node | None, old: Place, new: Place, copied: ObjectInfo) -> None:
        volume = self._volume
        victim = volume.nodes.child(new.above, new.name)
        if victim is not None and victim is not node:
            volume.nodes.detach(victim)
        if node is not None:
            volume.nodes.move(node, new.above, new.name)
            node.opened_etag = copied.etag if node.opened_etag else ""
            draft = volume.draft(node)
            if draft is not None:
                draft.move(copied.key, copied)
            else:
                self._content.turn_all(node, copied)
        volume.emptied(old.above, old.path)
        volume.tree.changed(new.path, copied)

    def _source(self, key: str) -> ObjectInfo | None:
        try:
            return self._volume.store.head(key)
        except StoreFault as fault:
            if fault.kind is FaultKind.MISSING:
                return None
            raise

    # Directories.

    def _move_directory(self, step: Step, node: Node | None, old: Place, new: Place, flags: int) -> None:
        volume = self._volume
        if is_beneath(new.path, old.path):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        drafting = [] if node is None else volume.drafting_beneath(node)
        for one in drafting:
            self._content.commit(one)
        most = volume.settings.largest_rename
        infos = volume.tree.keys_in(old.path, most + 1)
        if len(infos) > most:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        is_again = step.is_recalled and step.second == _DIRECTORY
        is_new = not is_again and self._check_target(new, flags)
        self._intend(step, _DIRECTORY, node, 0)
        self._copy_all(infos, old.path, new.path, is_new=is_new, is_again=is_again)
        # From the end: stores that are filesystems keep what is not empty, and show it then.
        volume.store.delete_many([info.key for info in reversed(infos)])
        victim = volume.nodes.child(new.above, new.name)
        if victim is not None and victim is not node:
            volume.nodes.detach(victim)
        if node is not None:
            volume.nodes.move(node, new.above, new.name)
        volume.tree.moved_directory(old.path, new.path)
        volume.emptied(old.above, old.path)
        self._follow(drafting, node)

    def _check_target(self, new: Place, flags: int) -> bool:
        """Return whether nothing is at the target. An empty directory may be."""
        volume = self._volume
        target = volume.tree.ask(new.path)
        is_taken = self._is_taken(target, new)
        if flags & RENAME_NOREPLACE and is_taken:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if is_taken and not target.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        victim = volume.nodes.child(new.above, new.name)
        if target.is_directory and self._removal.holds_any(new.path, victim):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        return not is_taken

    def _copy_all(
        self, infos: Iterable[ObjectInfo], path: str, new_path: str, *, is_new: bool, is_again: bool
    ) -> None:
        """Copy all objects; if that fails, remove what was copied. `is_new`: nothing was at the target, not even a marker.

        `is_again`: a predecessor may have copied all. Then nothing is removed, and what is gone is no failure if its copy is there:
        the predecessor may have begun to remove, and the store come to it only now.
        """
        volume = self._volume
        old, new = volume.tree.prefix(path), volume.tree.prefix(new_path)
        targets = [(info, new + info.key[len(old) :]) for info in infos]
        for _, key in targets:
            if len(key.encode()) > len(volume.tree.root.encode()) + KEY_MAX_BYTES:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        if not any(key == new for _, key in targets):
            volume.store.put(new, [])  # or a directory without a key of its own would be gone for others
        has_failed = threading.Event()

        def copy(info: ObjectInfo, key: str) -> None:
            if has_failed.is_set():
                return  # each would take all the time for retries, if the store is away
            try:
                volume.store.copy(info.key, key, etag=info.etag)
            except StoreFault as fault:
                if is_again and fault.kind is FaultKind.MISSING and self._source(key) is not None:
                    return
                has_failed.set()
                raise
            self._progress()

        futures = [self._copiers.submit(copy, info, key) for info, key in targets]
        faults = [fault for future in futures if (fault := future.exception()) is not None]
        if faults and not is_again:
            copied = [key for _, key in reversed(targets) if is_new or key != new]
            volume.store.delete_many([*copied, new] if is_new else copied)
        if faults:
            raise faults[0]

    def _follow(self, drafting: Iterable[Node], node: Node | None) -> None:
        """Have open files beneath a directory that has moved be where they are now."""
        volume = self._volume
        for one in drafting:
            draft, key = volume.draft(one), volume.key(one)
            if draft is not None:
                draft.move(key, volume.store.head(key))
        if node is None:
            return
        for one in volume.files.nodes():
            if one not in drafting and node in volume.nodes.lineage(one):
                self._content.look_again(one)
