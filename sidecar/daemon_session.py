"""A pyfuse3 session over a descriptor that a keeper has mounted.

The keeper has taken the kernel's FUSE_INIT; it is played back to libfuse through a socket, and a request that asks for nothing
after it. When libfuse comes to that one, its answer to INIT lies in the socket: it goes on to the kernel, with what we add, and
the real descriptor takes the socket's place. To a successor's kernel it is the answer to a request it does not know.
"""

import contextlib
import ctypes
import mmap
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import pyfuse3

from sidecar.detour import Detour
from sidecar.init_answer import InitFlag, add_flags, idle_request, offer_passthrough
from sidemount.host import syscalls
from sidemount.model.errors import HostFailure

WORKERS_MAX = 24
_REQUEST_BYTES = (1 << 20) + (1 << 13)  # libfuse's buffer of one worker: 1 MiB of data, a page of headers
_M_MMAP_MAX = -4
_M_TRIM_THRESHOLD = -1
_MADV_POPULATE_WRITE = 23
_ANSWER_MAX = 4096
_FLAGS = InitFlag.DONT_MASK | InitFlag.PARALLEL_DIROPS | InitFlag.HANDLE_KILLPRIV_V2


class ServableOperations(Protocol):
    """What a built-in filesystem must have besides pyfuse3's handlers. `on_init` is called in `Operations.init()`."""

    on_init: Callable[[], None]
    init_error: Exception | None

    def init(self) -> None:
        """Begin. What goes wrong is kept in `init_error`."""
        ...


class FuseSession:
    """Serves one connection with pyfuse3, of which a process has only one."""

    def __init__(
        self,
        hooks: ServableOperations,
        operations: pyfuse3.Operations,
        device: int,
        init: bytes,
        served: Callable[[], None],
        detour: Detour | None = None,
        passes_through: bool = False,
    ) -> None:
        """Take over `device`. `hooks` is where INIT is noticed, `operations` what pyfuse3 calls: often the same.

        `served` is called when INIT is answered. `passes_through`: the kernel is told that files may be.
        """
        self._detour = detour
        self._passes_through = passes_through
        self._device = device
        self._init = init
        self._served = served
        self._begin = hooks.init
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._replay = ours
        ours.setblocking(False)
        ours.send(init)
        ours.send(idle_request())
        self.descriptor = theirs.detach()
        hooks.on_init = self._switch_over
        self._hooks = hooks
        self._intercept(operations)
        try:
            pyfuse3.init(operations, f"/dev/fd/{self.descriptor}", set(pyfuse3.default_options))
        except RuntimeError as error:
            raise HostFailure(f"libfuse does not take the descriptor: {error}") from error

    @property
    def main(self) -> Callable[[], Awaitable[Any]]:
        """Return pyfuse3's main loop. It returns when the mount is gone, or after `pyfuse3.terminate`."""
        return partial(pyfuse3.main, max_tasks=WORKERS_MAX)

    @property
    def init_error(self) -> Exception | None:
        """Return what went wrong at INIT: nothing has been served then."""
        return self._hooks.init_error

    def _intercept(self, operations: pyfuse3.Operations) -> None:
        """Have `hooks.init` called when the request after INIT is read, and not by INIT itself."""
        handlers: dict[str, Any] = vars(operations)
        before: dict[str, Any] = {name: handlers[name] for name in ("init", "forget") if name in handlers}

        async def forget(_: object) -> None:
            for name in ("init", "forget"):
                del handlers[name]
            handlers.update(before)
            self._begin()

        handlers["init"] = _nothing
        handlers["forget"] = forget

    def _switch_over(self) -> None:
        try:
            answer = add_flags(self._init, self._replay.recv(_ANSWER_MAX), _FLAGS)
            if self._passes_through:
                answer = offer_passthrough(self._init, answer)
            if self._detour is not None:
                self._detour.attach(self._device, self.descriptor)
            with contextlib.suppress(FileNotFoundError):  # a predecessor has answered
                os.write(self._device, answer)
            os.dup2(self._device, self.descriptor, inheritable=False)
        finally:
            os.close(self._device)
            self._replay.close()  # if anything failed, there is nothing more to be read and the session ends
        self._served()


def keep_buffers_in_memory() -> None:
    """Have malloc take read buffers from its heap and never give that back. Once a process, before `make_buffer_resident`."""
    syscalls.LIBC.mallopt(ctypes.c_int(_M_MMAP_MAX), ctypes.c_int(0))
    syscalls.LIBC.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int((1 << 31) - 1))


def make_buffer_resident(count: int = 1) -> None:
    """Have the memory that the next `count` read buffers will be made of resident and this process's own.

    A process killed while the kernel copies a request into a page that is not there makes the kernel answer EIO, which no
    successor can take back. libfuse makes a buffer just before it reads into it for the first time; malloc gives it the block
    that was freed last. A page shared with the parent since the fork is not there either, as far as that goes.
    """
    libc = syscalls.LIBC
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    size = count * _REQUEST_BYTES
    block = libc.malloc(size)
    if not block:
        raise HostFailure(f"no memory for a read buffer of {_REQUEST_BYTES} bytes")
    begin = block & -mmap.PAGESIZE
    end = (block + size + mmap.PAGESIZE - 1) & -mmap.PAGESIZE
    pages = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
    if libc.madvise(*pages, ctypes.c_int(_MADV_POPULATE_WRITE)) != 0:  # Linux before 5.14
        ctypes.memset(block, 1, size)
    libc.free(block)


def _nothing() -> None:
    """Begin later."""
