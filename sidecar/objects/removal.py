"""Removing names, with the node table kept in step."""

import errno
import os

from sidecar.directory.names import single
from sidecar.objects.handles import mark_of
from sidecar.objects.keys import is_beneath
from sidecar.objects.nodes import Node
from sidecar.objects.volume import Volume
from sidecar.takeover.operation import RMDIR, UNLINK
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault


class Removal:
    """The operations that take names away. A step that is recalled is one that a predecessor began: see `takeover.journal`."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    def unlink(self, parent: int, name: bytes) -> None:
        """Remove a file. Whoever has it open keeps what is in a cache, and what was written goes nowhere."""
        volume = self._volume
        above = volume.nodes[parent]
        path = volume.path_in(above, single(name))
        key = volume.tree.key(path)
        with volume.journal.step(UNLINK, parent, name) as step:
            if step.is_done:
                return
            node = volume.nodes.child(above, name)
            with volume.moves.of_file(0 if node is None else node.id):
                if not (step.is_recalled and self._is_another(key, step.first)):
                    info = self._present(path, node)
                    step.intend(first=1 if info is None else mark_of(info.etag))
                    volume.drafts.supersede(key)
                    volume.store.delete(key)
                volume.lose(node, above, path)
            step.done()

    def _present(self, path: str, node: Node | None) -> ObjectInfo | None:
        """Return what is known of a file that is to be removed. ENOENT if it is known not to be there."""
        volume = self._volume
        fact = volume.tree.recall(path)
        is_drafted = node is not None and volume.draft(node) is not None
        if fact is not None and not fact.is_there and not is_drafted:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return None if fact is None else fact.info

    def _is_another(self, key: str, mark: int) -> bool:
        """Tell whether a predecessor has removed an object, and what is there now, if anything, is somebody else's."""
        try:
            info = self._volume.store.head(key)
        except StoreFault as fault:
            if fault.kind is FaultKind.MISSING:
                return True
            raise
        return mark > 1 and mark_of(info.etag) != mark

    def rmdir(self, parent: int, name: bytes) -> None:
        """Remove a directory in which nothing lies, whether shown or not: its marker."""
        volume = self._volume
        above = volume.nodes[parent]
        path = volume.path_in(above, single(name))
        marker = volume.tree.key(path, is_directory=True)
        with volume.journal.step(RMDIR, parent, name) as step:
            if step.is_done:
                return
            node = volume.nodes.child(above, name)
            with volume.moves.of_file(0 if node is None else node.id):
                if self.holds_any(path, node):
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
                step.intend()
                volume.store.delete(marker)
                volume.lose(node, above, path)
            step.done()

    def holds_any(self, path: str, node: Node | None) -> bool:
        """Tell whether anything lies in a directory: in the store, being written, or a directory that is there without a key."""
        volume = self._volume
        if volume.tree.has_names(path):
            return True
        if any(is_beneath(kept, path) for kept in volume.tree.kept_in(path)):
            return True
        return node is not None and bool(volume.drafting_beneath(node))
