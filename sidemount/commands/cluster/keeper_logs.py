"""Keepers' logs of many pods at once: so many at a time, each with its deadline, all of them with one more."""

import asyncio
import sys
import time
from collections.abc import Sequence

from sidemount.commands.cluster.api_server import ApiServer
from sidemount.commands.cluster.paths import log_path
from sidemount.commands.health.judgement import KeeperLog
from sidemount.commands.health.pod import PodView
from sidemount.host.cluster_reader import ReadFailed, Trouble
from sidemount.model.keeper_log import by_volume, parse_line
from sidemount.model.names import KEEPER_CONTAINER

_AT_ONCE = 16
_LINES = 2000
_MAX_BYTES = 1 << 20
_ALL_S = 120.0
_FIRST = '"keeper_started"'  # an event of each keeper's beginning
_TELL_EVERY_S = 2.0

_Key = tuple[str, str]


async def read_logs(api: ApiServer, pods: Sequence[PodView]) -> dict[_Key, KeeperLog]:
    """Return the log of every pod's keeper, by namespace and name. What cannot be read says why; nothing is raised."""
    found: dict[_Key, KeeperLog] = {}
    queue = iter(pods)
    progress = _Progress(len(pods))

    async def work() -> None:
        for pod in queue:
            found[pod.namespace, pod.name] = await _read(api, pod)
            progress.tell(len(found))

    try:
        async with asyncio.timeout(_ALL_S), asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(pods))):
                group.create_task(work())
    except TimeoutError:
        late = KeeperLog(volumes={}, fault=f"not within {_ALL_S:g} s of all together")
        return {(pod.namespace, pod.name): found.get((pod.namespace, pod.name), late) for pod in pods}
    return found


async def _read(api: ApiServer, pod: PodView) -> KeeperLog:
    path = log_path(pod.namespace, pod.name, KEEPER_CONTAINER, lines=_LINES)
    try:
        text = await api.text_end(path, _MAX_BYTES)
    except ReadFailed as failure:
        return KeeperLog(volumes={}, fault=_why(pod, failure))
    lines = text.splitlines()
    events = [event for line in lines if (event := parse_line(line)) is not None]
    return KeeperLog(volumes=by_volume(events), is_cut=not any(_FIRST in line for line in lines))


def _why(pod: PodView, failure: ReadFailed) -> str:
    """Say why without the pod's name, so that the same trouble of many pods is told once."""
    match failure.trouble:
        case Trouble.FORBIDDEN:
            return f"it needs the right to get pods/log in namespace {pod.namespace}"
        case Trouble.NOT_FOUND:
            return "the pod is gone"
        case Trouble.MALFORMED:
            return "its container has none yet"
        case Trouble.SERVER:
            return f"kubelet of node {pod.node or '?'} does not answer"
    return str(failure)


class _Progress:
    """Says on standard error how far it is, when it takes long."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._told_at = time.monotonic()

    def tell(self, done: int) -> None:
        """Say it, unless something was said a moment ago."""
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S and done < self._number:
            self._told_at = now
            print(f"sidemount status: {done} of {self._number} logs read …", file=sys.stderr)
