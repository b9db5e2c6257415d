"""What the operations of one volume share: its parts, what a node is now, and how it is told to the kernel."""

import stat
import threading
from dataclasses import dataclass

from sidecar.objects.draft import Draft
from sidecar.objects.handles import Handles, OpenFile, mark_of
from sidecar.objects.keys import ino_of, path_of
from sidecar.objects.known import Fact
from sidecar.objects.metrics import Metrics
from sidecar.objects.moves import Moves
from sidecar.objects.next_files import NextFiles
from sidecar.objects.nodes import Node, NodeTable, stale
from sidecar.objects.reading import Reading
from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.tree import Tree
from sidecar.objects.writing import Drafts
from sidecar.protocol_filesystem import Attributes, Entry
from sidecar.takeover.journal import Journal
from sidemount.stores.store import ObjectInfo, ObjectStore

_BLOCK = 512  # of st_blocks
_PREFERRED_BYTES = 1 << 16


@dataclass(kw_only=True)
class Volume:
    """One volume. `began_ns` is the time of its directories, of which a store tells none."""

    settings: ObjectsSettings
    store: ObjectStore
    tree: Tree
    nodes: NodeTable
    files: Handles[OpenFile]
    reading: Reading
    next_files: NextFiles
    drafts: Drafts
    journal: Journal
    metrics: Metrics
    moves: Moves
    began_ns: int

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._drafting: dict[int, Node] = {}

    # Drafts: what is being written. One of a node, shared by all that have it open.

    def draft(self, node: Node) -> Draft | None:
        """Return what is being written of a file."""
        return self.drafts.of(node.id) if node.id in self._drafting else None

    def begin_draft(self, node: Node, *, exclusive: bool = False) -> Draft:
        """Begin a new content of a file."""
        draft = self.drafts.create(node.id, self.key(node), exclusive=exclusive)
        self.note_draft(node)
        return draft

    def edit(self, node: Node, info: ObjectInfo) -> Draft:
        """Begin to change a file's content."""
        draft = self.drafts.edit(node.id, self.key(node), info)
        self.note_draft(node)
        return draft

    def note_draft(self, node: Node) -> None:
        """Know that a node has a draft. The kernel may forget the node before the draft is in the store."""
        with self._lock:
            if node.id in self._drafting:
                return
            self._drafting[node.id] = node
        self.nodes.pin(node)

    def end_draft(self, node: Node) -> None:
        """Let go of a draft."""
        with self._lock:
            is_known = self._drafting.pop(node.id, None) is not None
        self.drafts.forget(node.id)
        if is_known:
            self.nodes.unpin(node)

    def drafting(self) -> tuple[Node, ...]:
        """Return the nodes that have a draft."""
        with self._lock:
            return tuple(self._drafting.values())

    def drafting_beneath(self, directory: Node) -> list[Node]:
        """Return the nodes that have a draft and lie beneath a directory."""
        return [node for node in self.drafting() if directory in self.nodes.lineage(node)]

    def is_writable(self, node: Node) -> bool:
        """Tell whether anybody has a file open for writing."""
        return any(file.is_writable for file in self.files.of(node.id))

    # Nodes.

    def key(self, node: Node) -> str:
        """Return the key of a node. ESTALE if it has no name any more."""
        return self.tree.key(self.nodes.path(node), is_directory=node.is_directory)

    def path_in(self, parent: Node, name: bytes) -> str:
        """Return the path of a name in a directory."""
        return path_of(self.nodes.path(parent), name)

    def admit(self, parent: Node, name: bytes, path: str, fact: Fact) -> Entry:
        """Return the entry of what was found at a name, with one lookup more."""
        info = fact.info
        known = self.nodes.child(parent, name)
        if info is not None and known is not None and self.is_another_version(known, info):
            self.nodes.detach(known)  # whoever has it open goes on with what they have; this is another file
        node = self.nodes.admit(parent, name, path, is_directory=fact.is_directory)
        return Entry(node.id, self.tell(node, path, info))

    def lose(self, node: Node | None, above: Node, path: str) -> None:
        """Note that a name was removed. The directory that it was in stays."""
        if node is not None:
            self.nodes.detach(node)
        self.emptied(above, path)

    def emptied(self, above: Node, path: str) -> None:
        """Note that nothing is at a path any more. The directory that it was in stays, and those above."""
        self.tree.removed(path)
        for directory in self.nodes.lineage(above):
            self.nodes.keep(directory, is_kept=True)

    def is_another_version(self, node: Node, info: ObjectInfo) -> bool:
        """Tell whether somebody reads an earlier version of a file than the one that was found. Not if we are writing one."""
        if node.id in self._drafting:
            return False
        mark = mark_of(info.etag)  # all that is known of a handle that a predecessor has given out
        return any(file.mark not in (0, mark) for file in self.files.of(node.id))

    def tell(self, node: Node, path: str, info: ObjectInfo | None) -> Attributes:
        """Return attributes to be told to the kernel, and remember it."""
        draft = self.draft(node)
        if draft is not None:
            node.told_etag = ""
            return self.file_attributes(ino_of(path), draft.size, draft.modified_ns)
        if info is None:
            return self.directory_attributes(ino_of(path))
        node.told_etag = info.etag
        return self.file_attributes(ino_of(path), info.size, info.modified_ns)

    def attributes_now(self, node: Node) -> Attributes | None:
        """Return a node's attributes if nobody has to be asked for them."""
        draft = self.draft(node)
        path = self.nodes.known_path(node)
        ino = node.ino if path is None else ino_of(path)
        if draft is not None:
            node.told_etag = ""
            return self.file_attributes(ino, draft.size, draft.modified_ns, links=0 if path is None else 1)
        if node.is_directory:
            return self.directory_attributes(ino)
        for file in self.files.of(node.id):
            if file.info is not None:
                return self._told(node, ino, file.info, links=0 if path is None else 1)
        fact = None if path is None else self.tree.recall(path)
        if fact is None or fact.info is None or self.is_another_version(node, fact.info):
            return None
        return self._told(node, ino, fact.info)

    def attributes(self, node: Node) -> Attributes:
        """Return a node's attributes."""
        now = self.attributes_now(node)
        if now is not None:
            return now
        path = self.nodes.path(node)
        info = self.version(node)
        if self.is_another_version(node, info):
            raise stale()  # of what a predecessor had open only a mark is known
        return self._told(node, ino_of(path), info)

    def version(self, node: Node) -> ObjectInfo:
        """Return which version a file is of now. ESTALE if it is none any more."""
        info = self.tree.ask_file(self.nodes.path(node)).info
        if info is None:
            raise stale()
        return info

    def _told(self, node: Node, ino: int, info: ObjectInfo, *, links: int = 1) -> Attributes:
        node.told_etag = info.etag
        return self.file_attributes(ino, info.size, info.modified_ns, links=links)

    def file_attributes(self, ino: int, size: int, time_ns: int, *, links: int = 1) -> Attributes:
        """Return a file's attributes. It has no link when its name was removed, or is another file's."""
        settings = self.settings
        blocks = -(-size // _BLOCK)
        mode = stat.S_IFREG | settings.file_mode
        times = (time_ns, time_ns, time_ns)
        owner = (settings.uid, settings.gid)
        return Attributes(ino, mode, links, *owner, 0, size, _PREFERRED_BYTES, blocks, *times)

    def directory_attributes(self, ino: int) -> Attributes:
        """Return a directory's attributes."""
        settings = self.settings
        mode = stat.S_IFDIR | settings.directory_mode
        times = (self.began_ns, self.began_ns, self.began_ns)
        return Attributes(ino, mode, 1, settings.uid, settings.gid, 0, 0, _PREFERRED_BYTES, 0, *times)
