"""A volume's socket: who knocks, is who it should be, and says something we understand.

Nothing a peer sends or leaves out can stop the keeper: frames are bounded, silence has a deadline, and the number of
peers that have not said who they are is limited.
"""

import contextlib
import errno
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from sidemount.host import handover, wire
from sidemount.host.foreign_descriptors import let_go
from sidemount.host.handover import Hello, Message, Refusal, Refused
from sidemount.host.limited_log import LimitedLog
from sidemount.host.loop import Loop, Timer
from sidemount.host.pidfd import peer_pidfd
from sidemount.model.errors import BadMessage

_STRANGERS_MAX = 16
_HELLO_WITHIN_S = 5.0
_ACCEPT_AGAIN_S = 0.1
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_BAD_FRAMES_MAX = 64
_LAST_FRAMES_MAX = 256  # a socket's queue is shorter; who has inherited the socket could fill it for ever


class Peer:
    """A process at the other end of the socket."""

    __slots__ = ("bad_frames", "connection", "introduced", "pid", "pidfd", "timer")

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.pidfd: int | None = None
        self.introduced = False
        self.bad_frames = 0
        self.timer: Timer | None = None

    def send(self, message: Message, descriptor: int | None = None) -> bool:
        """Send a message; False if the peer is gone or does not read."""
        try:
            wire.send(self.connection, *handover.encode(message), descriptor)
        except OSError:
            return False
        return True

    def answer(self, text: str) -> None:
        """Answer a probe."""
        with contextlib.suppress(OSError):
            wire.send(self.connection, wire.Kind.STATUS, text.encode("utf-8", "replace")[:4096])


@dataclass(frozen=True, slots=True)
class Introduction:
    """A daemon that has said who it is. Whoever takes `descriptor` (None unless it hands one back) must close it."""

    peer: Peer
    hello: Hello
    descriptor: int | None


class GateKeeper(Protocol):
    """Whom the gate reports to. What is not kept of an introduction must be closed with `Gate.refuse`."""

    def on_introduction(self, introduction: Introduction) -> None:
        """Take a daemon, or refuse it."""
        ...

    def on_message(self, peer: Peer, message: Message, descriptor: int | None) -> None:
        """Take a message of a daemon that was introduced, and its descriptor, to be closed."""
        ...

    def on_probe(self, peer: Peer) -> None:
        """Answer a probe and let it go, now or later."""
        ...

    def on_hung_probe(self, peer: Peer) -> None:
        """Answer whether the daemon's container has to be restarted, and let the probe go."""
        ...

    def on_closed(self, peer: Peer) -> None:
        """Learn that a peer's connection has ended. It is closed already."""
        ...


class Gate:
    """Listens in the volume's directory."""

    def __init__(self, loop: Loop, run_dir: str, uid: int, keeper: GateKeeper, log: LimitedLog) -> None:
        """`uid` is the only user, besides ours for probes, whose processes are let in. Raises OSError."""
        self._loop = loop
        self._uid = uid
        self._keeper = keeper
        self._log = log
        self._strangers: list[Peer] = []
        self._listener = wire.listen(run_dir, uid=uid)
        self._pause: Timer | None = None
        self._listen()

    def move(self, run_dir: str) -> None:
        """Listen in another directory; whoever is connected stays so. Raises OSError, and goes on as before then."""
        listener = wire.listen(run_dir, uid=self._uid)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._loop.unwatch(self._listener)
        self._listener.close()
        self._listener = listener
        self._listen()

    def close(self) -> None:
        """Listen no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.unwatch(self._listener)
        self._listener.close()
        for peer in list(self._strangers):
            self.release(peer)

    def refuse(self, introduction: Introduction, reason: Refusal, detail: str) -> None:
        """Tell a daemon no, and why, and let it go."""
        if introduction.descriptor is not None:
            let_go(introduction.descriptor)
        introduction.peer.send(Refused(reason=reason, detail=detail))
        self.release(introduction.peer)

    def hear_out(self, peer: Peer) -> None:
        """Take what a peer has said before it ended: its end may be seen before its last words."""
        for _frame in range(_LAST_FRAMES_MAX):
            if peer.connection.fileno() < 0 or not self._read(peer, self._uid):
                return

    def release(self, peer: Peer) -> None:
        """Close a peer's connection without reporting it."""
        if peer.timer is not None:
            peer.timer.cancel()
        if peer in self._strangers:
            self._strangers.remove(peer)
        self._loop.unwatch(peer.connection)
        peer.connection.close()
        if peer.pidfd is not None:
            os.close(peer.pidfd)
            peer.pidfd = None

    def _listen(self) -> None:
        self._loop.watch(self._listener, self._accept)

    def _accept(self) -> None:
        for _round in range(_STRANGERS_MAX):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if (
                    error.errno in _EXHAUSTED
                ):  # who waits goes on waiting, and would wake us at once again and again
                    self._loop.unwatch(self._listener)
                    self._pause = self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
                return
            self._receive(connection)

    def _receive(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        pid, uid, _ = wire.peer_ids(connection)
        peer = Peer(connection, pid)
        if uid not in (self._uid, os.geteuid()):
            self._log.warning("stranger_refused", uid=uid, expected_uid=self._uid, pid=pid)
            peer.send(Refused(reason=Refusal.IDENTITY, detail=f"uid {uid} does not serve this volume"))
            connection.close()
            return
        if len(self._strangers) >= _STRANGERS_MAX:
            self.release(self._strangers[0])
        self._strangers.append(peer)
        peer.timer = self._loop.call_later(_HELLO_WITHIN_S, lambda: self.release(peer))

        def read() -> None:
            self._read(peer, uid)

        self._loop.watch(connection, read)

    def _read(self, peer: Peer, uid: int) -> bool:
        """Take one frame; False if there is none."""
        try:
            frame = wire.receive(peer.connection)
        except BlockingIOError:
            return False
        except BadMessage as error:
            self._bad_frame(peer, error)
            return True
        except OSError:
            frame = None
        if frame is None:
            self._closed(peer)
            return False
        try:
            self._take(peer, uid, frame)
        except BadMessage as error:
            self._bad_frame(peer, error)
        finally:
            frame.close()
        return True

    def _take(self, peer: Peer, uid: int, frame: wire.Frame) -> None:
        if frame.kind is wire.Kind.PROBE and not peer.introduced:
            self._introduced(peer)
            self._keeper.on_probe(peer)
            return
        if frame.kind is wire.Kind.HUNG_PROBE and not peer.introduced:
            self._introduced(peer)
            self._keeper.on_hung_probe(peer)
            return
        message = handover.decode(frame.kind, frame.body)
        if handover.carries_descriptor(message) != (frame.descriptor is not None):
            raise BadMessage(f"{frame.kind.name}: descriptor missing, or one too many")
        if isinstance(message, Hello) != (not peer.introduced):
            raise BadMessage(f"{frame.kind.name}: not now")
        if isinstance(message, Hello) and message.hands_back and message.generation == 0:
            raise BadMessage("HELLO.generation: a descriptor that is handed back has one above 0")
        if isinstance(message, Hello):
            self._introduce(peer, uid, message, frame)
        else:
            descriptor = None if frame.descriptor is None else frame.take_descriptor()
            self._keeper.on_message(peer, message, descriptor)

    def _introduce(self, peer: Peer, uid: int, hello: Hello, frame: wire.Frame) -> None:
        if uid != self._uid:
            peer.send(Refused(reason=Refusal.IDENTITY, detail=f"uid {uid} does not serve this volume"))
            self.release(peer)
            return
        self._introduced(peer)
        peer.pidfd = peer_pidfd(peer.connection)
        descriptor = frame.take_descriptor() if hello.hands_back else None
        self._keeper.on_introduction(Introduction(peer, hello, descriptor))

    def _introduced(self, peer: Peer) -> None:
        peer.introduced = True
        self._strangers.remove(peer)
        if peer.timer is not None:
            peer.timer.cancel()

    def _bad_frame(self, peer: Peer, error: BadMessage) -> None:
        """Let a stranger go; a daemon that serves is more worth than one frame, unless it sends nothing else."""
        peer.bad_frames += 1
        self._log.warning("bad_frame", pid=peer.pid, fault=str(error), frames=peer.bad_frames)
        if peer.introduced and peer.bad_frames < _BAD_FRAMES_MAX:
            return
        if not peer.introduced:
            peer.send(Refused(reason=Refusal.PROTOCOL, detail=str(error)))
        self._closed(peer)

    def _closed(self, peer: Peer) -> None:
        was_introduced = peer.introduced
        pidfd, peer.pidfd = peer.pidfd, None  # the keeper may still want to know whether the process lives
        self.release(peer)
        peer.pidfd = pidfd
        if was_introduced:
            self._keeper.on_closed(peer)
        elif pidfd is not None:
            os.close(pidfd)
