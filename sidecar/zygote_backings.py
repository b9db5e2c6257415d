"""The serving process's requests to have files registered, on their way to the keeper and back: asked only of one that does it."""

import os
from collections.abc import Callable
from typing import Protocol

from sidecar.zygote_children import Child
from sidemount.host.handover import FromDaemon, Holds, Register, Registered, Registers, Unregister

_UNDER_WAY_MAX = 8


class Tell(Protocol):
    """Tells the keeper, if there is one. The descriptor is asked for when the message goes out; without one it does not."""

    def __call__(self, message: FromDaemon, descriptor: Callable[[], int | None] | None = None) -> None:
        """Tell it."""
        ...


class BackingsLine:
    """Of one connection. Knows what is registered, in place of a process that has died, and tells each keeper."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._known: set[int] | None = None  # None: whoever serves wants nothing registered
        self._does_register = False
        self._has_asked = False
        self._is_untold = False
        self._under_way: dict[int, int] = {}  # descriptors of ours, by the number of their request

    def begin(self, holds: Holds, child: Child) -> None:
        """Take what a new serving process has inherited."""
        self._known = set(holds.backings)
        self._tell_known()
        if self._does_register:
            child.send(Registers())

    def registers(self, child: Child | None) -> None:
        """Note that the keeper registers files."""
        self._does_register = True
        if self._is_untold:
            self._tell_known()
        if child is not None and self._known is not None:
            child.send(Registers())

    def register(self, request: Register, descriptor: int, child: Child) -> None:
        """Pass a request on, or say no at once. The descriptor is ours to close."""
        if not self._does_register:
            os.close(descriptor)
            child.send(Registered(number=request.number, backing=0))
            return
        while len(self._under_way) >= _UNDER_WAY_MAX:  # so long ago that nobody waits for it
            self._close(next(iter(self._under_way)))
        self._under_way[request.number] = descriptor
        self._tell(request, lambda: self._under_way.get(request.number))

    def registered(self, answer: Registered, child: Child | None) -> None:
        """Pass the keeper's answer on. What nobody hears of is not to stay registered."""
        self._close(answer.number)
        if answer.backing and self._known is not None:
            self._known.add(answer.backing)
        if (child is None or not child.send(answer)) and answer.backing:
            self.unregister(Unregister(backing=answer.backing))

    def unregister(self, message: Unregister) -> None:
        """Pass it on."""
        if self._known is not None:
            self._known.discard(message.backing)
        if self._does_register:  # any other keeper learns what is left when it takes us
            self._tell(message)

    def new_line(self) -> None:
        """Begin anew: another keeper is at the other end, or the same one has forgotten."""
        self._does_register = self._has_asked = self._is_untold = False
        for number in list(self._under_way):
            self._close(number)

    def adopted(self) -> None:
        """Tell the keeper that has taken us what is registered."""
        if self._known is not None:
            self._has_asked = False
            self._tell_known()

    def _tell_known(self) -> None:
        """Tell what is registered. A keeper of an earlier release does not understand it, so it is told once and has to say something."""
        self._is_untold = self._has_asked and not self._does_register
        if not self._is_untold:
            self._has_asked = True
            self._tell(Holds(backings=sorted(self._known or ())))

    def _close(self, number: int) -> None:
        descriptor = self._under_way.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)
