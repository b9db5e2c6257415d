"""The filesystem `volume`: what `directory` does, within a budget that all mounts of the volume share, and standing still when it has to.

What does not change how much is held costs no lock: a write into what is there already costs one look at the file's size. That size cannot
shrink meanwhile, because whoever makes a file shorter is alone with the volume (see `sidecar.volume.standstill`). Whatever
makes a file longer or shorter, or takes a name away, is done under the budget's lock.
"""

import errno
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from sidecar.directory import syscalls
from sidecar.directory.filesystem import DirectoryFilesystem, InThread
from sidecar.directory.handles import parse_traits
from sidecar.directory.settings import DirectorySettings
from sidecar.directory.store import Store
from sidecar.protocol_filesystem import Attributes, Caller, Changes, Entry, Opened, Statistics
from sidecar.takeover.memory import Memory
from sidecar.volume.account import Account
from sidecar.volume.measure import measure, measure_remote
from sidecar.volume.opening import OpenVolume
from sidecar.volume.sizes import Sizes
from sidecar.volume.standstill import Standstill
from sidecar.volume.statistics import within_budget
from sidemount.host.budget_locks import wait_for
from sidemount.model.errors import HostFailure

T = TypeVar("T")

_LONGEST_WAIT_S = 600.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.005
_MOMENT_S = 0.0001
_MOMENTS = 5
_START_S = 20.0


class VolumeFilesystem(DirectoryFilesystem):
    """One mount of a volume. Without a share (no limit, or mounted read-only) nothing is counted."""

    def __init__(
        self,
        store: Store,
        settings: DirectorySettings,
        in_thread: InThread,
        directories_open: int,
        memory: Memory,
        volume: OpenVolume,
    ) -> None:
        super().__init__(store, settings, in_thread, directories_open, memory)
        self._volume = volume
        flush = partial(syscalls.syncfs, volume.budget.fd) if self._is_remote else None
        self._still = Standstill(volume.budget.fd, flush)
        self._sizes: Sizes | None = None
        if volume.share is not None:
            self._account = Account(volume, volume.share, measure_remote if self._is_remote else measure)
            self._sizes = Sizes(
                self._account,
                store=store,
                nodes=self.nodes,
                reach=self._reach,
                files=self.files,
                content=self._content,
                metadata=self._metadata,
                removal=self._removal,
                is_remote=self._is_remote,
            )
            self._inherit_charges(self._sizes)

    # Content and sizes.

    async def write(self, handle: int, offset: int, content: bytes) -> int:
        """Write. EDQUOT if there is not room for all of it."""
        sizes = self._sizes
        if not self._still.enter_now():
            await self._wait(self._enter)
        try:
            if sizes is None:
                return await super().write(handle, offset, content)
            in_thread = self._is_remote or self._content.write_waits(handle)
            if in_thread:
                written = await self._in_thread(sizes.overwrite, handle, offset, content)
            else:
                written = sizes.overwrite(handle, offset, content)
            if written is None:
                extend = partial(sizes.extend, handle, offset, content)
                written = await self._under_budget(extend, in_thread=in_thread)
            return written
        finally:
            self._still.leave()

    async def setattr(self, node: int, changes: Changes, handle: int | None, caller: Caller) -> Attributes:
        """Change attributes."""
        sizes, size = self._sizes, changes.size
        if size is None or sizes is None:
            return await self._changing(super().setattr, node, changes, handle, caller)
        try:
            return await self._resizing(
                partial(sizes.is_longer, node, handle, size),
                partial(sizes.resize, node, changes, handle, caller, size=size),
            )
        finally:
            await self._discharge_closed(sizes, node)  # its name may have gone while it was looked up

    async def open(self, node: int, flags: int, caller: Caller) -> Opened:
        """Open a regular file."""
        sizes = self._sizes
        if sizes is None:
            if flags & os.O_TRUNC:
                return await self._changing(super().open, node, flags, caller)
            return await super().open(node, flags, caller)
        try:
            with sizes.opening(node):
                if flags & os.O_TRUNC == 0:
                    opened = await super().open(node, flags, caller)
                else:
                    opened = await self._open_empty(sizes, node, flags, caller)
                if sizes.is_charged_when_opened(node):
                    await self._charge_opened(sizes, node, opened.handle)
                return opened
        finally:
            await self._discharge_closed(sizes, node)

    async def _open_empty(self, sizes: Sizes, node: int, flags: int, caller: Caller) -> Opened:
        opened = await self._resizing(
            partial(sizes.is_longer, node, None, 0), partial(sizes.open_empty, node, flags, caller)
        )
        self._lasting.opened(opened.handle)
        return opened

    async def _charge_opened(self, sizes: Sizes, node: int, handle: int) -> None:
        try:
            await self._under_budget(partial(sizes.charge_opened, node, handle))
        except OSError:
            await super().release(handle)
            raise

    async def _discharge_closed(self, sizes: Sizes, node: int) -> None:
        if sizes.is_discharged(node):
            await self._under_budget(partial(sizes.discharge_closed, node))

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Opened, Entry]:
        """Make a regular file and open it."""
        return await self._changing(super().create, parent, name, mode, flags, caller)

    async def release(self, handle: int) -> None:
        """Close a file. What has no name any more ends with its last handle."""
        node = self.files.node_of(handle) if self._sizes is not None else None
        await super().release(handle)
        if self._sizes is not None and node is not None:
            await self._discharge_closed(self._sizes, node)

    async def statfs(self) -> Statistics:
        """Return the limit as the size, what is left of it as what is free; without a limit what the store says."""
        return await self._run(self._statistics)

    # Names.

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name that is not a directory's."""
        if self._sizes is None:
            await self._changing(super().unlink, parent, name)
        else:
            await self._changing(self._under_budget, partial(self._sizes.unlink, parent, name))

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        """Rename."""
        if self._sizes is None:
            await self._changing(super().rename, parent, name, new_parent, new_name, flags)
        else:
            rename = partial(self._sizes.rename, parent, name, new_parent, new_name, flags)
            await self._changing(self._under_budget, rename)

    async def link(self, node: int, parent: int, name: bytes) -> Entry:
        """Give a node one more name. Under the lock: whoever takes a name away has to know whether it is the last."""
        if self._sizes is None:
            return await self._changing(super().link, node, parent, name)
        return await self._changing(self._under_budget, partial(self._namespace.link, node, parent, name))

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        """Make a regular or special file."""
        return await self._changing(super().mknod, parent, name, mode, rdev, caller)

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        """Make a directory."""
        return await self._changing(super().mkdir, parent, name, mode, caller)

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        """Make a symbolic link."""
        return await self._changing(super().symlink, parent, name, target, caller)

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        await self._changing(super().rmdir, parent, name)

    async def setxattr(self, node: int, name: bytes, value: bytes, caller: Caller) -> None:
        """Set an extended attribute."""
        await self._changing(super().setxattr, node, name, value, caller)

    async def removexattr(self, node: int, name: bytes) -> None:
        """Remove an extended attribute."""
        await self._changing(super().removexattr, node, name)

    # Waiting.

    async def _changing(self, operation: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an operation that changes the volume, once nobody wants it to stand still."""
        if not self._still.enter_now():
            await self._wait(self._enter)
        try:
            return await operation(*args)
        finally:
            self._still.leave()

    async def _resizing(self, shrinks: Callable[[], bool], resize: Callable[..., T | None]) -> T:
        """Run what may make a file shorter: alone with the volume if it does, for nobody to write into what goes.

        `resize` returns None where it would have to be alone and is not.
        """
        if not await self._run(shrinks):
            result: T | None = await self._changing(self._under_budget, partial(resize, may_shrink=False))
            if result is not None:
                return result
        await self._wait(self._close)
        try:
            await self._wait(self._is_alone)
            result = await self._under_budget(partial(resize, may_shrink=True))
            assert result is not None
            return result
        finally:
            await self._run(self._still.reopen)

    async def _under_budget(self, operation: Callable[[], T], *, in_thread: bool = False) -> T:
        """Run an operation under the budget's lock."""

        def attempt() -> tuple[T] | None:
            if not self._account.try_lock():
                return None
            try:
                return (operation(),)
            finally:
                self._account.unlock()

        tried = attempt if self._is_remote else _soon(attempt)
        (result,) = await self._wait(tried, in_thread=in_thread)
        return result

    async def _wait(self, attempt: Callable[[], T | None], *, in_thread: bool = False) -> T:
        """Return what an attempt returns once that is not None.

        No thread is kept meanwhile: whoever reads needs them. EIO if another mount does not let go for too long.
        """
        deadline = time.monotonic() + _LONGEST_WAIT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            result = await (self._in_thread(attempt) if in_thread else self._run(attempt))
            if result is not None:
                return result
            if time.monotonic() > deadline:
                raise OSError(errno.EIO, "another mount of the volume holds it up")
            await self._in_thread(time.sleep, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self.memory.on_waiting()

    def _enter(self) -> bool | None:
        return self._still.enter() or None

    def _close(self) -> bool | None:
        return self._still.close() or None

    def _is_alone(self) -> bool | None:
        return self._still.is_alone() or None

    def _statistics(self) -> Statistics:
        store = self._store.statistics()
        head = self._volume.budget.read()
        return within_budget(store, head) if head.limit else store

    def _inherit_charges(self, sizes: Sizes) -> None:
        """Count what a predecessor had open without a name."""
        inheritance = self.memory.inheritance
        if inheritance is None:
            return
        if not wait_for(self._account.try_lock, time.monotonic() + _START_S):
            raise HostFailure("the volume's budget stays locked", errno=errno.EAGAIN)
        try:
            files = {
                node for node, number in inheritance.handles.values() if not parse_traits(number).is_directory
            }
            sizes.inherit(files, self.descriptors)
        finally:
            self._account.unlock()

    def _make_room(self, number: int | None) -> bool:
        # EDQUOT is the budget's, in which only what is open counts.
        return number != errno.EDQUOT and super()._make_room(number)


def _soon(attempt: Callable[[], T | None]) -> Callable[[], T | None]:
    """Return an attempt that waits for a few moments: others have the lock for no longer than one operation."""

    def patient() -> T | None:
        for _ in range(_MOMENTS):
            result = attempt()
            if result is not None:
                return result
            time.sleep(_MOMENT_S)
        return None

    return patient
