"""A place for descriptors that no process's death reaches: the queue of a socket pair, both ends of which others hold as well.

The daemon sends a descriptor into its own queue, where the kernel keeps it; nobody has to receive it. So holding costs one system
call and wakes nobody, and whoever shall outlive the daemon (its zygote, its keeper) needs the two ends and nothing else.
"""

import array
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Sequence

_LOG = logging.getLogger(__name__)
_BATCH = 250  # SCM_MAX_FD is 253
_KEY_BYTES = 8
_HELD_MAX = 4096
_MESSAGES_MAX = 128
_SWEPT_AT_ONCE = 64
_BUFFER_BYTES = 1 << 20  # asked for; the kernel gives what net.core.wmem_max allows
_SO_PEEK_OFF = 42  # <asm-generic/socket.h>; Python has no name for it


class Park:
    """Holds descriptors by key (a `DescriptorHolder`). Owns both ends. Safe to use from several threads.

    A key that was held twice is in the queue twice, and the later one counts. What was released stays there until it is
    swept: at once as long as there is little else, else when an eighth of the queue is such.
    """

    def __init__(self, inlet: socket.socket, outlet: socket.socket) -> None:
        self._inlet = inlet
        self._outlet = outlet
        self._lock = threading.Lock()
        self._held: dict[int, int] = {}
        self._messages = 0  # in the queue
        self._idle = 0  # descriptors in the queue that are not held any more
        for end in (inlet, outlet):
            end.setblocking(False)
        with contextlib.suppress(OSError):
            inlet.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    @staticmethod
    def make() -> "Park":
        """Return a new one."""
        return Park(*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))

    @staticmethod
    def adopt(inlet: int, outlet: int) -> "Park":
        """Return the park that two ends belong to. Takes the descriptors over."""
        return Park(socket.socket(fileno=inlet), socket.socket(fileno=outlet))

    @property
    def descriptors(self) -> tuple[int, int]:
        """Return the two ends, for `adopt` in another process."""
        return self._inlet.fileno(), self._outlet.fileno()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: int, descriptor: int) -> bool:
        """Keep a descriptor before this returns; False if it cannot be kept. The caller keeps it open until `release`."""
        with self._lock:
            if len(self._held) >= _HELD_MAX:
                return False
            if self._messages > _MESSAGES_MAX + len(self._held) // _BATCH:
                self._sweep()
            if not self._send([key], [descriptor]):
                return False
            self._idle += key in self._held
            self._held[key] = descriptor
            return True

    def release(self, key: int) -> None:
        """Keep it no longer. An unknown key is no error."""
        with self._lock:
            if self._held.pop(key, None) is None:
                return
            self._idle += 1
            held = len(self._held)
            if held <= _SWEPT_AT_ONCE or self._idle * 8 >= held:
                self._sweep()

    def drop(self, key: int) -> None:
        """Release, but leave what was released in the queue until it is swept, at the latest by `tidy`."""
        with self._lock:
            if self._held.pop(key, None) is not None:
                self._idle += 1

    def tidy(self) -> None:
        """Let go of everything that is not held any more."""
        with self._lock:
            if self._idle:
                self._sweep()

    def recover(self) -> dict[int, int]:
        """Return what was held when the last process that used this died: descriptors of ours, by key. They are still held.

        A killed process can have left a key that it had just released.
        """
        with self._lock:
            self._outlet.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
            self._messages = self._idle = 0
            while (message := self._peek()) is not None:
                self._messages += 1
                keys, descriptors = message
                if len(descriptors) < len(keys):
                    _LOG.warning("open_files_not_kept", extra={"count": len(keys) - len(descriptors)})
                for key, descriptor in zip(keys, descriptors, strict=False):
                    earlier = self._held.get(key)
                    if earlier is not None:
                        os.close(earlier)
                        self._idle += 1
                    self._held[key] = descriptor
            self._outlet.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, -1)
            return dict(self._held)

    def clear(self) -> None:
        """Let go of everything, whoever has put it there."""
        with self._lock:
            self._held.clear()
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._outlet.recv(1)
            self._messages = self._idle = 0

    def close(self) -> None:
        """Close both ends. What is held ends when nobody else holds them either."""
        self._inlet.close()
        self._outlet.close()

    def _sweep(self) -> None:
        """Send what is held once more, in few messages, then drop all older ones; or leave it if there is no room."""
        older = self._messages
        keys = list(self._held)
        for begin in range(0, len(keys), _BATCH):
            batch = keys[begin : begin + _BATCH]
            if not self._send(batch, [self._held[key] for key in batch]):
                self._idle += begin
                return
        for _ in range(older):
            self._outlet.recv(1)
        self._messages -= older
        self._idle = 0

    def _send(self, keys: Sequence[int], descriptors: Sequence[int]) -> bool:
        rights = array.array("i", descriptors)
        try:
            self._inlet.sendmsg([array.array("Q", keys)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            return False
        self._messages += 1
        return True

    def _peek(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Return keys and descriptors of the next message that was not looked at yet; the message stays."""
        keys, rights = array.array("Q"), array.array("i")
        flags = socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC
        space = socket.CMSG_LEN(_BATCH * rights.itemsize)
        try:
            payload, ancillary, _, _ = self._outlet.recvmsg(_BATCH * _KEY_BYTES, space, flags)
        except BlockingIOError:
            return None
        if not payload:
            return None
        keys.frombytes(payload[: len(payload) - len(payload) % _KEY_BYTES])
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                rights.frombytes(content[: len(content) - len(content) % rights.itemsize])
        return keys, rights
