"""How the kernel is told of an open file what pyfuse3 has no name for: that it is passed through (FUSE_PASSTHROUGH), that closes are not told.

The kernel is told in the answer to OPEN. For that one answer a socket takes the place of the device that libfuse writes to, as it does
when INIT is played back; the answer is taken from there, changed, and goes on to the kernel, with the device in its place again. All
that happens within one step of the serving thread: from the end of the handler of OPEN to the worker's next call into the runtime, between
which nothing else is run or read. Source: <linux/fuse.h>, struct fuse_open_out.
"""

import contextlib
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable

_ANSWER = struct.Struct("=IiQQIi")  # length, error, unique; handle, flags, backing file
_ANSWER_MAX = 1 << 16
_PASSTHROUGH = 1 << 7
_DIRECT_IO = 1 << 0
_NO_FLUSH = 1 << 5


class Detour:
    """Of one session. `writing` is to be held by whoever else writes to the device in another thread."""

    def __init__(self, on_answer: Callable[[Callable[[], None]], None]) -> None:
        """`on_answer(end)` has `end` called once, as soon as the handler that runs now has been answered."""
        self.writing = threading.Lock()
        self._on_answer = on_answer
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._device = self._session = -1
        self._handle = self._backing = 0

    def attach(self, device: int, session: int) -> None:
        """Have the device, and the descriptor that libfuse writes to."""
        self._device = fcntl.fcntl(device, fcntl.F_DUPFD_CLOEXEC, 0)
        self._session = session

    def close(self) -> None:
        """Give it up."""
        self._ours.close()
        self._theirs.close()
        if self._device >= 0:
            os.close(self._device)
            self._device = -1

    def begin(self, handle: int, backing: int = 0) -> None:
        """Have the answer to the OPEN that is being handled say that nobody is to be told of closes. The last thing that the handler does.

        With `backing`, the kernel's number of a file, it passes that through, too.
        """
        if self._device < 0:
            raise RuntimeError("nothing can be said beside an answer here")
        self.writing.acquire()
        self._handle, self._backing = handle, backing
        os.dup2(self._theirs.fileno(), self._session, inheritable=False)
        self._on_answer(self._end)

    def _end(self) -> None:
        """Put the device back and give it what it was to be told. A failure ends the process; the kernel asks its successor again."""
        try:
            answers = []
            with contextlib.suppress(BlockingIOError):
                while answer := self._ours.recv(_ANSWER_MAX):
                    answers.append(answer)
            os.dup2(self._device, self._session, inheritable=False)
            for answer in answers:
                with contextlib.suppress(FileNotFoundError):  # whoever asked has given up
                    os.write(self._device, _changed(answer, self._handle, self._backing))
        finally:
            self.writing.release()


def _changed(answer: bytes, handle: int, backing: int) -> bytes:
    """Return the answer that gives a handle out with what is to be said beside it; any other answer as it is.

    With a file that is passed through the kernel takes nothing else but that reads come to the daemon all the same.
    """
    if len(answer) != _ANSWER.size:
        return answer
    length, error, unique, given, flags, _ = _ANSWER.unpack(answer)
    if length != _ANSWER.size or error or given != handle:
        return answer
    kept = flags & _DIRECT_IO | _PASSTHROUGH if backing else flags
    return _ANSWER.pack(length, error, unique, given, kept | _NO_FLUSH, backing)
