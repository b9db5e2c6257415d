"""The frames that keeper, daemons and probes exchange: one SEQPACKET datagram each, bounded, versioned.

A frame is a header (magic, version, kind, length of the body; network byte order), the body, and at most one descriptor
beside it. Standard library only and little of it: a probe must cost next to nothing.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum

from sidemount.host.descriptor_passing import receive_with_descriptors
from sidemount.host.foreign_descriptors import let_go
from sidemount.model.errors import BadMessage
from sidemount.model.names import KEEPER_SOCKET

VERSION = 1
FRAME_MAX = 1 << 16
_MAGIC = b"SMNT"
_HEADER = struct.Struct("!4sHHI")
_DESCRIPTORS_MAX = 16
_BACKLOG = 128
_BIND_ATTEMPTS = 16
_CREDENTIALS = struct.Struct("iII")


class Kind(IntEnum):
    """What a frame says. A number is never used anew."""

    HELLO = 1  # daemon: here I am; with the descriptor when it hands one back
    SERVE = 2  # keeper: serve this; with the descriptor
    READY = 3  # daemon: INIT is answered
    HEARTBEAT = 4  # daemon: alive, and this much done
    STOPPING = 5  # daemon: I was asked to stop
    STOP = 6  # keeper: nobody needs you any more, flush and end
    BYE = 7  # daemon: flushed, ending
    PROBE = 8  # probe: is the volume live?
    STATUS = 9  # keeper: the answer to a probe
    REFUSED = 10  # keeper: no, and why
    ADOPTED = 11  # keeper: I took the descriptor back, go on
    SUCCESSOR = 12  # daemon: this process of mine serves from now on; with its pidfd
    CONDITION = 13  # daemon: whether I can be succeeded, and what is wrong with me
    KEEP = 14  # daemon: keep this descriptor for my successor
    KEPT = 15  # keeper: what I kept for your predecessor
    KILL = 16  # keeper: your process hangs, end it
    HAND_OVER = 17  # keeper: let another process of yours go on
    GIVE_UP = 18  # daemon: what served is gone, and nobody here can continue it
    FAILED = 19  # child to its zygote: why it cannot serve
    HUNG_PROBE = 20  # probe: does nobody in the daemon's container do anything any more?
    PREDECESSOR = 21  # zygote to its child: how the process before it ended
    ASK = 22  # keeper: were you told to end?
    ANSWER = 23  # daemon: whether I was
    LEND = 24  # daemon: give me the means to take the mounts away if you are gone at the pod's end
    LENT = 25  # keeper: here; with a descriptor of the directory of mount points
    LEAVING = 26  # keeper: another one follows me, do nothing about the mounts
    USAGE = 27  # child to its zygote: how many files and directories are open
    SOURCE = 28  # keeper: this is the source's directory; with a descriptor of it
    OFFER = 29  # daemon: I could tell what the volume counts
    WANTED = 30  # keeper: do
    NUMBERS = 31  # daemon, and child to its zygote: what the volume has counted
    HOLDS = 32  # daemon: these files of mine are registered with the kernel; I could use more
    REGISTERS = 33  # keeper: I register files
    REGISTER = 34  # daemon: register this one; with its descriptor
    REGISTERED = 35  # keeper: under this number, or not
    UNREGISTER = 36  # daemon: no longer


class Frame:
    """One received frame. Owns its descriptor until it is taken."""

    __slots__ = ("body", "descriptor", "kind")

    def __init__(self, kind: Kind, body: bytes, descriptor: int | None) -> None:
        self.kind = kind
        self.body = body
        self.descriptor = descriptor

    def take_descriptor(self) -> int:
        """Return the descriptor, whose owner is then the caller. Raises BadMessage if there is none."""
        if self.descriptor is None:
            raise BadMessage(f"{self.kind.name}: comes without its descriptor")
        descriptor, self.descriptor = self.descriptor, None
        return descriptor

    def close(self) -> None:
        """Close the descriptor nobody has taken."""
        if self.descriptor is not None:
            let_go(self.descriptor)
            self.descriptor = None


def send(connection: socket.socket, kind: Kind, body: bytes = b"", descriptor: int | None = None) -> None:
    """Send one frame. Raises OSError, BadMessage if it is too long."""
    if _HEADER.size + len(body) > FRAME_MAX:
        raise BadMessage(f"{kind.name}: longer than {FRAME_MAX} bytes")
    frame = _HEADER.pack(_MAGIC, VERSION, kind, len(body)) + body
    socket.send_fds(connection, [frame], [] if descriptor is None else [descriptor])


def receive(connection: socket.socket) -> Frame | None:
    """Return the next frame, None at the end of the connection.

    Raises BadMessage on anything that is no frame of ours, with every descriptor in it closed; OSError.
    """
    data, descriptors, flags = receive_with_descriptors(connection, FRAME_MAX + 1, _DESCRIPTORS_MAX)
    try:
        if not data and not descriptors:
            return None
        if flags & socket.MSG_CTRUNC or len(descriptors) > 1:
            raise BadMessage("a frame with more than one descriptor")
        kind, body = parse(data, truncated=bool(flags & socket.MSG_TRUNC))
    except BaseException:
        for descriptor in descriptors:
            let_go(descriptor)
        raise
    return Frame(kind, body, descriptors[0] if descriptors else None)


def parse(data: bytes, *, truncated: bool = False) -> tuple[Kind, bytes]:
    """Return kind and body of a datagram. Raises BadMessage."""
    if truncated or len(data) > FRAME_MAX:
        raise BadMessage(f"a frame longer than {FRAME_MAX} bytes")
    if len(data) < _HEADER.size:
        raise BadMessage(f"a frame of {len(data)} bytes, shorter than its header")
    magic, version, kind, length = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise BadMessage("not a frame of ours")
    if version != VERSION:
        raise BadMessage(
            f"contract version {version}, this program speaks {VERSION}",
            hint="run keeper and daemon of one release",
        )
    if length != len(data) - _HEADER.size:
        raise BadMessage(f"a frame whose body is {len(data) - _HEADER.size} bytes and claims to be {length}")
    try:
        return Kind(kind), data[_HEADER.size :]
    except ValueError:
        raise BadMessage(f"a frame of unknown kind {kind}") from None


def listen(run_dir: str, *, uid: int) -> socket.socket:
    """Return the keeper's socket in the volume's directory, which only `uid` and root may connect to."""
    with _opened(run_dir) as directory:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            # The mode is right from the first moment; a chmod afterwards would follow a planted link.
            mask = os.umask(0o177)
            try:
                _bind(listener, directory)
            finally:
                os.umask(mask)
            os.chown(KEEPER_SOCKET, uid, -1, dir_fd=directory, follow_symlinks=False)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
    return listener


def _bind(listener: socket.socket, directory: int) -> None:
    """Take the socket's place. The directory is the daemon's, who may put anything there, and put it there again."""
    for attempts_left in reversed(range(_BIND_ATTEMPTS)):
        try:
            _clear(directory)
            listener.bind(_path_in(directory))
            return
        except OSError:
            if not attempts_left:
                raise


def _clear(directory: int) -> None:
    try:
        os.unlink(KEEPER_SOCKET, dir_fd=directory)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        aside = f"{KEEPER_SOCKET}.{os.urandom(8).hex()}"
        os.rename(KEEPER_SOCKET, aside, src_dir_fd=directory, dst_dir_fd=directory)


def dial(run_dir: str, *, timeout_s: float) -> socket.socket:
    """Return a connection to the keeper of the volume's directory. Raises OSError."""
    with _opened(run_dir) as directory:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # With a Python timeout a full queue would be an error at once; so the kernel waits.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
            connection.connect(_path_in(directory))
            connection.settimeout(timeout_s)
        except BaseException:
            connection.close()
            raise
    return connection


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def peer_ids(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that connected (0, 65534 where they have no name here)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _path_in(directory: int) -> str:
    # A socket's path holds 107 bytes; a kubelet's directories alone are longer.
    return f"/proc/self/fd/{directory}/{KEEPER_SOCKET}"
