"""Control groups of daemons that were killed and have not ended yet, because what they wait for does not answer."""

import asyncio
from collections.abc import Callable

from csi.cgroups import ControlGroups

_LOOK_S = 5.0


class DyingGroups:
    """Takes each away when nobody is left in it. To be used in the running loop."""

    def __init__(self, groups: ControlGroups, is_used: Callable[[str], bool]) -> None:
        """`is_used(name)` tells whether another daemon of that name has come: it has the group then."""
        self._groups = groups
        self._is_used = is_used
        self._looks: dict[str, asyncio.TimerHandle] = {}

    def add(self, name: str) -> None:
        """Look after a group from now on."""
        if name in self._looks:
            return
        self._looks[name] = asyncio.get_running_loop().call_later(_LOOK_S, self._look, name)

    def close(self) -> None:
        """Look no more. An empty group is nobody's harm."""
        for look in self._looks.values():
            look.cancel()

    def _look(self, name: str) -> None:
        del self._looks[name]
        if self._is_used(name):
            return
        if self._groups.processes(name):
            self.add(name)
        else:
            self._groups.remove(name)
