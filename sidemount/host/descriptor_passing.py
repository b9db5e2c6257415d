"""Descriptors through a Unix socket, never to be inherited by a program that another thread starts meanwhile.

Python 3.11's `socket.recv_fds` takes flags and drops them, close-on-exec among them.
"""

import array
import socket


def receive_with_descriptors(
    connection: socket.socket, bytes_max: int, most: int
) -> tuple[bytes, list[int], int]:
    """Return a datagram, the descriptors beside it (the caller's to close) and the flags of recvmsg(2)."""
    descriptors = array.array("i")
    space = socket.CMSG_LEN(most * descriptors.itemsize)
    try:
        received = connection.recvmsg(bytes_max, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other end was closed before it read everything of ours. Said once, and what it has sent lies behind that.
        received = connection.recvmsg(bytes_max, space, socket.MSG_CMSG_CLOEXEC)
    payload, ancillary, flags, _ = received
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return payload, list(descriptors), flags
