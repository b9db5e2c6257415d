"""Which id a pool had, remembered over a restart in the controller's state, if it has one."""

import hashlib
import os

from csi.volume_files import read_text, write_text
from sidemount.host.logs import log


class PoolMemory:
    """Of one pool."""

    def __init__(self, state_dir: str, pool: str) -> None:
        """Without `state_dir` nothing is remembered."""
        self._pool = pool
        self._file = (
            f"{state_dir}/pools/{hashlib.sha256(pool.encode()).hexdigest()[:32]}" if state_dir else ""
        )

    def recall(self) -> str:
        """Return the id, "" if none is known. Raises HostFailure."""
        return (read_text(self._file) or "").strip() if self._file else ""

    def keep(self, id_: str) -> None:
        """Keep the id. A state that is full is no reason not to serve."""
        if not self._file or self.recall() == id_:
            return
        try:
            os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
            write_text(self._file, f"{id_}\n")
        except OSError as error:
            log("csi.pool").error("pool_not_remembered", pool=self._pool, fault=str(error))

    def way_out(self) -> str:
        """Return what else a hint says: how a pool is given up for another one."""
        restart = "restart the controller"
        return "; if it is gone for good, " + (
            f"remove {self._file} and {restart}" if self._file else restart
        )
