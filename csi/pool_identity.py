"""Which pool lies at a path: an id in a file of its own, so that a mount point with nothing mounted is no empty pool (ADR 45)."""

import contextlib
import errno
import os
import re
import secrets
import threading
from collections.abc import Callable

from csi.pool_memory import PoolMemory
from csi.volume_files import read_text, sync_directory, write_text
from sidemount.host.logs import log
from sidemount.model.errors import HostFailure, NotReady
from sidemount.model.pool_layout import MARKER, SNAPSHOTS, VOLUMES

_ID = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_Signature = tuple[int, int, int, int]


class PoolIdentity:
    """The id that a pool has had since it was first used. Safe in several threads, and with several controllers."""

    def __init__(
        self, pool: str, state_dir: str = "", is_named: Callable[[str], bool] = lambda pool: False
    ) -> None:
        """The id is remembered in `state_dir`, if there is one. `is_named` tells whether somebody knows of volumes in a pool; it may raise NotReady."""
        self._pool = pool
        self._marker = f"{pool}/{MARKER}"
        self._memory = PoolMemory(state_dir, pool)
        self._is_named = is_named
        self._mutex = threading.Lock()
        self._id = ""
        self._seen: _Signature | None = None

    def check(self) -> None:
        """See that the pool is there, and the same as ever. Raises NotReady if not, OSError, HostFailure."""
        if self._signature() == self._seen is not None:
            return
        with self._mutex:
            self._look()

    def _look(self) -> None:
        signature = self._signature()
        expected = self._id or self._memory.recall()
        found = None if signature is None else self._read()
        if found is None:
            found = self._first(expected)
            signature = self._signature()
        elif expected and found != expected:
            raise NotReady(
                f"at {self._pool} is another pool than before: its id is {found}, not {expected}",
                hint=f"mount the filesystem of the pool{self._memory.way_out()}",
            )
        self._id = found
        self._memory.keep(found)
        self._seen = signature

    def _first(self, expected: str) -> str:
        """Return the id of a pool that has none: one that is new, or that was made before there were ids."""
        if expected:
            raise NotReady(
                f"pool {self._pool} is not there: the directory has no file {MARKER}",
                hint=f"mount its filesystem{self._memory.way_out()}",
            )
        if not self._holds_anything() and self._is_named(self._pool):
            raise NotReady(
                f"pool {self._pool} is not there: PersistentVolumes name it, but the directory holds no volume",
                hint=f"mount its filesystem; for a pool that is new, write an id of your own to {self._marker}",
            )
        made = self._make()
        log("csi.pool").info("pool_found", pool=self._pool, id=made)
        return made

    def _make(self) -> str:
        """Write the marker, unless another controller has meanwhile, and return the id."""
        id_ = secrets.token_hex(16)
        aside = f"{self._marker}.{id_}"
        write_text(aside, f"{id_}\n")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self._marker)
        finally:
            os.unlink(aside)
        sync_directory(self._pool)
        return self._read() or id_

    def _read(self) -> str | None:
        text = read_text(self._marker)
        if text is None:
            return None
        if not _ID.match(text.strip()):
            raise HostFailure(f"{self._marker} holds no id", errno=errno.EBADMSG)
        return text.strip()

    def _signature(self) -> _Signature | None:
        try:
            status = os.stat(self._marker, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns

    def _holds_anything(self) -> bool:
        for place in (VOLUMES, SNAPSHOTS):
            with contextlib.suppress(FileNotFoundError):
                if os.listdir(f"{self._pool}/{place}"):
                    return True
        return False
