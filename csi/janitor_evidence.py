"""Which pods have ended, as the process table shows it: where no API server can be asked."""

import asyncio
import os
import re
from collections.abc import Collection

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of the kernel
_UID = re.compile(r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}")


class ProcessEvidence:
    """A pod whose processes are all gone, the sandbox's too, has ended, or begins anew with everything.

    Whoever does not see the node's processes must not take that for their end: it counts in the first process namespace, and for pods
    that were seen alive.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._alive: frozenset[str] = frozenset()
        self._seen: frozenset[str] = frozenset()

    async def look(self) -> None:
        """Note whose processes there are."""
        self._alive = await asyncio.to_thread(self._living)
        self._seen |= self._alive

    async def ended(self, pod_uids: Collection[str]) -> frozenset[str]:
        """Return those without any process."""
        sees_all = self._sees_all()
        alive = await asyncio.to_thread(self._living)
        return frozenset(uid for uid in pod_uids if uid not in alive and (sees_all or uid in self._seen))

    def _living(self) -> frozenset[str]:
        found: set[str] = set()
        for name in os.listdir(self._proc):
            if name.isdigit():
                try:
                    with open(f"{self._proc}/{name}/cgroup", encoding="utf-8", errors="replace") as file:
                        text = file.read()
                except OSError:
                    continue
                found.update(uid.replace("_", "-") for uid in _UID.findall(text))
        return frozenset(found)

    def _sees_all(self) -> bool:
        try:
            return os.stat(f"{self._proc}/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
        except OSError:
            return False
