"""Open files: which version an open sees, reading it, writing another, and when that reaches the store.

A file that is being written is one draft, whoever has it open, and all of them read what was written. Everybody else reads the version that
was there when they opened the file. A version that somebody else has put in its place is another file as far as the kernel is
concerned, so that no page cache ever holds both.
"""

import contextlib
import errno
import os

from sidecar.objects.draft import Draft
from sidecar.objects.handles import OpenFile, flags_in
from sidecar.objects.nodes import Node, stale
from sidecar.objects.reading import Reader
from sidecar.objects.volume import Volume
from sidecar.protocol_filesystem import Attributes, Opened
from sidecar.takeover import operation
from sidemount.stores.store import FaultKind, ObjectInfo, StoreFault

_WRITING = os.O_ACCMODE | os.O_TRUNC


class Content:
    """The operations on file content. `read_now` is for one thread alone; everything else for any."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._files = volume.files

    # Opening.

    def believed(self, node_id: int, flags: int) -> ObjectInfo | None:
        """Return the version that an open would see without asking anybody; None if that is not known, or not so simple."""
        volume = self._volume
        node = volume.nodes[node_id]
        if flags & _WRITING or node.is_directory or volume.draft(node) is not None:
            return None
        path = volume.nodes.known_path(node)
        info = None if path is None else self._believed(path)
        return None if info is None or volume.is_another_version(node, info) else info

    def _believed(self, path: str) -> ObjectInfo | None:
        known = self._volume.tree.known
        fact = known.newer(path, 0.0)
        if fact is None or known.clock() - fact.at >= self._volume.settings.open_timeout_s:
            return None
        return fact.info

    def open(self, node_id: int, flags: int, believed: ObjectInfo | None = None) -> Opened:
        """Open a file. With what is `believed` nobody is asked."""
        volume = self._volume
        node = volume.nodes[node_id]
        if node.is_directory:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        with volume.journal.step(*operation.open_file(node_id, flags)) as step:
            info = believed or self._version(node, flags)
            step.intend()
            handle = self._files.add(OpenFile(node, flags, info), step)
            step.done()
        etag = "" if info is None else info.etag
        is_unchanged = node.opened_etag == etag != "" or (info is None and not flags & os.O_TRUNC)
        is_stale = node.told_etag != etag
        node.opened_etag = etag
        is_writable = flags & os.O_ACCMODE != os.O_RDONLY
        return Opened(handle, flushes=is_writable, keep_cache=is_unchanged, stale=is_stale)

    def _version(self, node: Node, flags: int) -> ObjectInfo | None:
        """Return the version that an open sees, None if that is a draft."""
        volume = self._volume
        if flags & os.O_TRUNC:
            self._begin(node)
            return None
        draft = volume.draft(node)
        if draft is not None:
            if draft.is_lost:
                volume.nodes.detach(node)
                raise stale()  # the name is somebody else's file by now, and the kernel finds that
            return None
        path = volume.nodes.known_path(node)
        if path is None:  # it has lost its name, and is opened by way of a descriptor
            return self._pinned(node)
        info = self._found(node, path, flags)
        if volume.is_another_version(node, info):
            volume.nodes.detach(node)
            raise stale()  # the kernel looks the name up again, and finds another file
        return info

    def _found(self, node: Node, path: str, flags: int) -> ObjectInfo:
        """Return the version that is at a path now, as far as it has to be asked for."""
        volume, known = self._volume, self._volume.tree.known
        believed = self._believed(path)
        if believed is not None:
            return believed
        fact = known.newer(path, 0.0)
        before = None if fact is None else fact.info
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return volume.version(node)
        key = volume.tree.key(path)
        try:
            info = volume.reading.fetch_at_open(key, before or self._last_read(node))
        except StoreFault as fault:
            if fault.kind is not FaultKind.MISSING:
                raise
            known.forget(path)
            raise stale() from fault
        volume.tree.changed(path, info)
        return info

    def _last_read(self, node: Node) -> ObjectInfo | None:
        return next((file.info for file in self._files.of(node.id) if file.info is not None), None)

    def _pinned(self, node: Node) -> ObjectInfo:
        info = self._last_read(node)
        if info is None:
            raise stale()
        return info

    def inherit(self, handle: int, node: Node, traits: int) -> None:
        """Have a file that a predecessor had open; what it reads is found when it is first read."""
        _, flags, mark = flags_in(traits)
        self._files.inherit(handle, OpenFile(node, flags, None, mark))

    # Reading.

    def read_now(self, handle: int, offset: int, size: int) -> bytes | memoryview | None:
        """Return content that is in memory; None if it has to be waited for."""
        file = self._files[handle]
        if self._volume.draft(file.node) is not None:
            return None
        reader = file.reader
        if reader is None:
            if file.info is None:  # a predecessor's: which version that was has to be asked for
                return None
            reader = self._reader(file)
        return reader.read_now(offset, size)

    def read(self, handle: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        """Read, waiting for the store."""
        file = self._files[handle]
        draft = self._volume.draft(file.node)
        if draft is not None:
            try:
                return draft.read(offset, size)
            except OSError:
                if self._volume.draft(file.node) is draft:
                    raise  # else it has ended meanwhile, and the store has it
        return self._reader(file).read(offset, size)

    def _reader(self, file: OpenFile) -> Reader:
        with file.lock:
            if file.reader is None:
                info = file.info or self._version_again(file)
                file.reader = self._volume.reading.open(info.key, info)
                file.info = info
                self._volume.next_files.note(info)
            return file.reader

    def _version_again(self, file: OpenFile) -> ObjectInfo:
        """Find the version that a predecessor had open. ESTALE if it is not there any more."""
        info = self._volume.version(file.node)
        taken = OpenFile(file.node, file.flags, info)
        if file.mark not in (0, taken.mark):
            raise stale()
        return info

    # Writing.

    def write(self, handle: int, offset: int, content: bytes) -> int:
        """Write."""
        file = self._files[handle]
        if not file.is_writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._draft(file.node, file).write(offset, content)

    def set_size(self, node: Node, size: int, handle: int | None) -> Attributes:
        """Cut a file off or lengthen it. Without a handle that is open for writing it reaches the store at once."""
        with self._volume.moves.of_file(
            node.id
        ):  # whoever closes it at this moment would end the draft under us
            self._set_size(node, size, None if handle is None else self._files.get(handle))
        return self._volume.attributes(node)

    def _set_size(self, node: Node, size: int, file: OpenFile | None) -> None:
        volume = self._volume
        draft = volume.draft(node)
        if draft is None and size == 0:
            draft = self._begin(node)
        elif draft is None:
            info = (None if file is None else file.info) or volume.version(node)
            if info.size == size:
                return
            draft = self._draft(node, file)
        draft.set_size(size)
        if not volume.is_writable(node):
            try:
                self.commit(node)
            finally:
                self._end(node)

    def _draft(self, node: Node, file: OpenFile | None) -> Draft:
        """Return the draft of a file, made of the version that is open if there is none yet."""
        volume = self._volume
        draft = volume.draft(node)
        if draft is not None:
            return draft
        with volume.moves.of_file(node.id):
            draft = volume.draft(node)
            if draft is None:
                info = (None if file is None else file.info) or volume.version(node)
                draft = volume.edit(node, info)
                self.turn_all(node, None)
            return draft

    def _begin(self, node: Node) -> Draft:
        """Return the draft of a file that is empty from now on."""
        volume = self._volume
        with volume.moves.of_file(node.id):
            is_first = volume.draft(node) is None
            draft = volume.begin_draft(node)
            if is_first:
                self.turn_all(node, None)
            return draft

    def turn_all(self, node: Node, info: ObjectInfo | None) -> None:
        """Have everybody who has a file open read its draft, or the version that was made of it."""
        for file in self._files.of(node.id):
            file.turn_to(info)
            self._files.noted(file)

    def look_again(self, node: Node) -> None:
        """Have everybody who has a file open read it where it is now: it has another key, and perhaps another ETag."""
        with contextlib.suppress(OSError):  # if it cannot be found, they keep what is in a cache
            self.turn_all(node, self._volume.version(node))

    def commit(self, node: Node) -> None:
        """Have what was written be in the store."""
        volume = self._volume
        with volume.moves.of_file(node.id):
            draft = volume.draft(node)
            path = volume.nodes.known_path(node)
            if draft is None or (path is None and not draft.is_lost):
                return
            info = draft.commit()
            if path is None:
                return
            node.opened_etag = info.etag
            volume.tree.changed(path, info)

    def must_flush(self, handle: int) -> bool:
        """Tell whether a close has anything to wait for."""
        file = self._files[handle]
        draft = self._volume.draft(file.node)
        return file.is_writable and draft is not None and draft.is_changed

    def flush(self, handle: int) -> None:
        """Commit what was written: somebody closes a descriptor, and has to hear of it if that fails."""
        if self.must_flush(handle):
            self.commit(self._files[handle].node)

    def fsync(self, handle: int) -> None:
        """Commit what was written."""
        self.commit(self._files[handle].node)

    def must_finish(self, handle: int) -> bool:
        """Tell whether a release has anything to wait for."""
        file = self._files.get(handle)
        return file is not None and self._may_end(file)

    def _may_end(self, file: OpenFile) -> bool:
        """Tell whether a file's draft may end with a handle: one that only reads may have made the file, or emptied it."""
        return file.is_writable or self._volume.draft(file.node) is not None

    def release(self, handle: int) -> None:
        """Close a file. With the last one that is open for writing its draft ends."""
        file = self._files.get(handle)
        if file is None:
            self._files.remove(handle)
            return
        node = file.node
        if self._may_end(file):
            # Of two that close at once each would leave it to the other.
            with self._volume.moves.of_file(node.id):
                if not any(one.is_writable for one in self._files.of(node.id) if one is not file):
                    self.finish(node)
                self._files.remove(handle)
        else:
            self._files.remove(handle)
        file.turn_to(None)

    def finish(self, node: Node) -> None:
        """End a file's draft: in the store, unless it has no name any more."""
        draft = self._volume.draft(node)
        if draft is None:
            return
        if self._volume.nodes.known_path(node) is None:
            draft.discard()
        else:
            with contextlib.suppress(
                OSError
            ):  # whoever closed it has heard of it; it is tried again, and logged
                self.commit(node)
        self._end(node)

    def _end(self, node: Node) -> None:
        path = self._volume.nodes.known_path(node)
        fact = None if path is None else self._volume.tree.known.newer(path, 0.0)
        self._volume.end_draft(node)
        self.turn_all(node, None if fact is None else fact.info)
