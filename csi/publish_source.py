"""Whether a provisioned volume is there. Its pool may be a network filesystem that hangs, so nobody waits for it without end."""

import asyncio
import errno
import os
import threading

from csi.faults import NotFound
from csi.records import Record
from sidemount.model.errors import HostFailure, NotReady, shown
from sidemount.model.pool_layout import data_dir
from sidemount.model.provisioned import VOLUME_FILESYSTEM

_WITHIN_S = 5.0
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})

_hanging: set[str] = set()  # directories that somebody waits for already


async def check_source(record: Record, within_s: float = _WITHIN_S) -> None:
    """See that a provisioned volume exists. Raises NotFound, NotReady if its pool does not answer, HostFailure."""
    directory = record.launch.source_dir or record.launch.given_source
    if record.spec.filesystem != VOLUME_FILESYSTEM or not directory:
        return
    pool = os.path.dirname(os.path.dirname(directory))
    place = f"volume {shown(record.volume_id)}: its pool {pool}"
    if pool in _hanging:
        raise NotReady(f"{place} does not answer", hint="try again when its server is back")
    number = await _looked(data_dir(directory), pool, within_s)
    if number is None:
        raise NotReady(f"{place} does not answer", hint="try again when its server is back")
    if number in _MISSING:
        raise NotFound(
            f"volume {shown(record.volume_id)} does not exist in the pool {pool}",
            hint="it was deleted, or this node does not see the pool",
        )
    if number:
        raise HostFailure(f"{place}: {os.strerror(number)}", errno=number)


async def _looked(path: str, pool: str, within_s: float) -> int | None:
    """Return 0 if a directory is there, else the errno; None if there is no answer in time."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[int] = loop.create_future()

    def give(number: int) -> None:
        _hanging.discard(pool)
        if not answer.done():
            answer.set_result(number)

    def look() -> None:
        try:
            os.close(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
            number = 0
        except OSError as error:
            number = error.errno or errno.EIO
        try:
            loop.call_soon_threadsafe(give, number)
        except RuntimeError:  # the plugin has ended meanwhile
            _hanging.discard(pool)

    # A thread of its own, not one of the few that everybody else needs.
    threading.Thread(target=look, name="look", daemon=True).start()
    try:
        async with asyncio.timeout(within_s):
            return await asyncio.shield(answer)
    except TimeoutError:
        if answer.done():
            return answer.result()
        _hanging.add(pool)
        return None
