"""The life of one volume as a pure machine: (session, event) → (session, actions).

    Mounting → WaitingForDaemon → Starting → Attaching → Serving ─┬─ the daemon is lost, takeover ──→ WaitingForDaemon
       ↑                                                          ├─ the daemon is lost, no takeover → Mounting (remount)
       │                                                          └─ the connection is lost → Aborted → Mounting
    Adopting (a restarted keeper finds a mount of its own) ──→ Attaching, or Mounting if that mount is dead

From every phase, on termination: Flushing → Detached. The executor carries the actions out and reports what came of them; it
owns clocks: a phase that can last has a deadline, which comes back as an event.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum


class Phase(Enum):
    """Where a volume stands."""

    MOUNTING = "Mounting"  # no connection; one is being made, or will be when the back-off ends
    ADOPTING = "Adopting"  # a mount of ours is there, its descriptor is not
    WAITING = "WaitingForDaemon"  # the connection is there, nobody serves it
    STARTING = "Starting"  # a daemon has the descriptor and has not answered INIT
    ATTACHING = "Attaching"  # it answers; mount and views are being shown
    SERVING = "Serving"  # every view is live
    ABORTED = "Aborted"  # the kernel ended the connection; the daemon may still be flushing
    FLUSHING = "Flushing"  # told to end: nothing is mounted any more, the daemon flushes
    DETACHED = "Detached"  # over


class Event(Enum):
    """What happened."""

    MOUNTED = "mounted"  # the connection is made; for a client that mounts by itself: its place is prepared
    MOUNT_FAILED = "mount_failed"
    CONNECTED = "connected"  # a daemon of the right identity asks for work
    HANDED_BACK = "handed_back"  # a daemon brings the descriptor of the mount that is there
    READY = (
        "ready"  # the daemon answers INIT; the mount of a client that mounts by itself is there and answers
    )
    ATTACHED = "attached"  # mount and every view are shown and answer
    ATTACH_FAILED = "attach_failed"
    GONE = "gone"  # the daemon has ended
    HUNG = "hung"  # the daemon lives and does nothing
    UNKILLABLE = "unkillable"  # it was killed for that and does not end
    CONDITION = "condition"  # the daemon tells whether it can be succeeded
    STOPPING = "stopping"  # the daemon was told to end by someone else
    QUIET = "quiet"  # no request is open and none comes
    LOST = "lost"  # the kernel has ended the connection
    DEAD = "dead"  # the mount that was found is dead
    DEADLINE = "deadline"  # of the phase
    SYNCED = "synced"  # what the kernel held has gone to the daemon, or never will
    TERMINATE = "terminate"  # the keeper was told to end


class Action(Enum):
    """What the executor does, in the order given."""

    MAKE_CONNECTION = "make_connection"
    INSPECT_FOUND = "inspect_found"  # is the mount that was found dead?
    SERVE = "serve"  # give the waiting daemon descriptor, INIT and spec
    ACCEPT = "accept"  # take descriptor and daemon from the hand-back
    REFUSE_BUSY = "refuse_busy"
    REFUSE_STALE = "refuse_stale"
    REFUSE_STOPPING = "refuse_stopping"
    ATTACH = "attach"
    ABORT = "abort"  # end the kernel's connection and give up its descriptor
    KILL_DAEMON = "kill_daemon"
    DROP_DAEMON = "drop_daemon"
    WATCH_QUIET = "watch_quiet"
    SYNC = "sync"
    STOP_DAEMON = "stop_daemon"
    DETACH = "detach"
    FINISH = "finish"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A volume's state. `self_mounting` and `takeover` are its class's and never change.

    `generation` counts the daemons served. `held`: the connection has been served and shown, so only a daemon that can
    take over may continue it. `able`: the daemon that serves can. `failures` counts since the volume was last live.
    """

    phase: Phase
    self_mounting: bool = False
    takeover: bool = False
    generation: int = 0
    held: bool = False
    able: bool = False
    failures: int = 0


Step = tuple[Session, tuple[Action, ...]]
_Rule = Callable[[Session, bool], Step]


def begin(*, found: bool, self_mounting: bool = False, takeover: bool = False) -> Step:
    """Return a new volume's session. `found`: a mount of ours is at its place, left by an earlier keeper."""
    if found:
        session = Session(phase=Phase.ADOPTING, self_mounting=self_mounting, takeover=takeover)
        return session, (Action.INSPECT_FOUND,)
    return Session(phase=Phase.MOUNTING, self_mounting=self_mounting, takeover=takeover), (
        Action.MAKE_CONNECTION,
    )


def step(session: Session, event: Event, *, able: bool = False) -> Step:
    """Return what follows from an event. `able`: the daemon can continue this connection, and be succeeded in it."""
    return _RULES[session.phase][event](session, able)


# Rules -------------------------------------------------------------------------------------------------


def _stay(*actions: Action) -> _Rule:
    return lambda session, able: (session, actions)


def _go(phase: Phase, *actions: Action) -> _Rule:
    return lambda session, able: (replace(session, phase=phase), actions)


def _mounted(session: Session, able: bool) -> Step:
    return replace(session, phase=Phase.WAITING, held=False), ()


def _appeared(session: Session, able: bool) -> Step:
    """A client that mounts by itself needs nobody to tell it to."""
    if not session.self_mounting:
        return session, ()
    return replace(session, phase=Phase.ATTACHING, generation=session.generation + 1), (Action.ATTACH,)


def _failed(session: Session, able: bool) -> Step:
    return replace(session, failures=session.failures + 1), ()


def _failed_again(session: Session, able: bool) -> Step:
    """A view that was live is not: show it anew."""
    return replace(session, phase=Phase.ATTACHING, failures=session.failures + 1), ()


def _serve(session: Session, able: bool) -> Step:
    """Give a held connection only to a daemon that can continue it: another would answer with the wrong nodes."""
    can_continue = able and session.takeover
    if session.held and not can_continue:
        return _remounting(session, Action.REFUSE_BUSY, Action.ABORT)
    served = replace(session, phase=Phase.STARTING, generation=session.generation + 1, able=can_continue)
    return served, (Action.SERVE,)


def _adopted(session: Session, able: bool) -> Step:
    adopted = replace(session, phase=Phase.ATTACHING, held=True, able=able and session.takeover)
    return adopted, (Action.ACCEPT, Action.ATTACH)


def _relinked(session: Session, able: bool) -> Step:
    return replace(session, able=able and session.takeover), (Action.ACCEPT,)


def _told(session: Session, able: bool) -> Step:
    return replace(session, able=able and session.takeover), ()


def _attached(session: Session, able: bool) -> Step:
    return replace(session, phase=Phase.SERVING, held=True, failures=0), ()


def _lost_daemon(*first: Action) -> _Rule:
    """The daemon is gone or has to go: hold the connection for its successor, or make a fresh one."""

    def rule(session: Session, able: bool) -> Step:
        counted = replace(session, failures=session.failures + 1)
        if session.held and session.able:
            return replace(counted, phase=Phase.WAITING), (*first, Action.DROP_DAEMON)
        return _remounting(counted, *first, Action.DROP_DAEMON, Action.ABORT)

    return rule


def _hung(session: Session, able: bool) -> Step:
    """Kill it. Its successor may read only after its end is seen: two readers would each answer half of the requests."""
    if session.held and session.able:
        return session, (Action.KILL_DAEMON,)
    return _lost_daemon(Action.KILL_DAEMON)(session, able)


def _lost_connection(session: Session, able: bool) -> Step:
    """Let the daemon flush what it holds before another one starts on the same store."""
    if session.self_mounting:
        return _remounting(session, Action.STOP_DAEMON, Action.DROP_DAEMON, Action.ABORT)
    return replace(session, phase=Phase.ABORTED), (Action.ABORT,)


def _remount(*first: Action) -> _Rule:
    return lambda session, able: _remounting(session, *first)


def _remounting(session: Session, *first: Action) -> Step:
    fresh = replace(session, phase=Phase.MOUNTING, held=False, able=False)
    return fresh, (*first, Action.MAKE_CONNECTION)


_IGNORE = _stay()
_BUSY = _stay(Action.REFUSE_BUSY)
_STALE = _stay(Action.REFUSE_STALE)
_END = _go(Phase.DETACHED, Action.DETACH, Action.ABORT, Action.FINISH)
_FLUSH = _go(Phase.FLUSHING, Action.DETACH, Action.SYNC)
# A daemon that has seen the end of its mount by itself does not know yet that no other will come.
_OVER = _go(Phase.DETACHED, Action.STOP_DAEMON, Action.DROP_DAEMON, Action.ABORT, Action.FINISH)
_REPLACE = _remount(Action.KILL_DAEMON, Action.DROP_DAEMON, Action.ABORT)
_REPLACE_GONE = _remount(Action.DROP_DAEMON, Action.ABORT)

_ALL_IGNORED: Mapping[Event, _Rule] = dict.fromkeys(Event, _IGNORE)
_UNSERVED: Mapping[Event, _Rule] = {
    **_ALL_IGNORED,
    Event.CONNECTED: _BUSY,
    Event.HANDED_BACK: _STALE,
}
_WITH_DAEMON: Mapping[Event, _Rule] = {
    **_UNSERVED,
    Event.HANDED_BACK: _relinked,  # the executor has checked that it is this connection's
    Event.GONE: _lost_daemon(),
    Event.HUNG: _hung,
    Event.UNKILLABLE: _REPLACE,
    Event.CONDITION: _told,
    Event.STOPPING: _stay(Action.WATCH_QUIET),
    Event.QUIET: _stay(Action.SYNC),
    Event.SYNCED: _stay(Action.STOP_DAEMON),
    Event.LOST: _lost_connection,
    Event.TERMINATE: _FLUSH,
}
_RULES: Mapping[Phase, Mapping[Event, _Rule]] = {
    Phase.MOUNTING: {
        **_UNSERVED,
        Event.MOUNTED: _mounted,
        Event.MOUNT_FAILED: _failed,
        Event.DEADLINE: _stay(Action.MAKE_CONNECTION),
        Event.TERMINATE: _END,
    },
    Phase.ADOPTING: {
        **_UNSERVED,
        # A daemon that holds nothing says nothing about the one that may: look once more.
        Event.CONNECTED: _stay(Action.REFUSE_BUSY, Action.INSPECT_FOUND),
        Event.HANDED_BACK: _adopted,
        Event.DEAD: _remount(),
        Event.DEADLINE: _remount(Action.ABORT),
        Event.TERMINATE: _FLUSH,
    },
    Phase.WAITING: {
        **_UNSERVED,
        Event.CONNECTED: _serve,
        Event.READY: _appeared,
        Event.LOST: _remount(Action.ABORT),
        Event.TERMINATE: _END,
    },
    Phase.STARTING: {
        **_WITH_DAEMON,
        Event.READY: _go(Phase.ATTACHING, Action.ATTACH),
        Event.DEADLINE: _hung,
        Event.STOPPING: _stay(Action.STOP_DAEMON),
    },
    Phase.ATTACHING: {
        **_WITH_DAEMON,
        Event.ATTACHED: _attached,
        Event.ATTACH_FAILED: _failed,
        Event.DEADLINE: _stay(Action.ATTACH),
    },
    Phase.SERVING: {
        **_WITH_DAEMON,
        Event.ATTACH_FAILED: _failed_again,
    },
    Phase.ABORTED: {
        **_UNSERVED,
        Event.GONE: _REPLACE_GONE,
        Event.HUNG: _REPLACE,
        Event.DEADLINE: _REPLACE,
        Event.STOPPING: _stay(Action.STOP_DAEMON),
        Event.TERMINATE: _go(Phase.FLUSHING, Action.DETACH, Action.STOP_DAEMON),
    },
    Phase.FLUSHING: {
        **_ALL_IGNORED,
        Event.CONNECTED: _stay(Action.REFUSE_STOPPING),
        # The keeper was restarted and told to end before this daemon came back.
        Event.HANDED_BACK: _stay(Action.ACCEPT, Action.STOP_DAEMON),
        Event.SYNCED: _stay(Action.STOP_DAEMON),
        Event.GONE: _OVER,
        Event.DEAD: _OVER,
        Event.DEADLINE: _OVER,
    },
    Phase.DETACHED: {
        **_ALL_IGNORED,
        Event.CONNECTED: _stay(Action.REFUSE_STOPPING),
        Event.HANDED_BACK: _stay(Action.REFUSE_STOPPING),
    },
}
