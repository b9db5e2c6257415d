"""What keeper and daemon say to each other, as values: the bodies of the frames.

Bodies are JSON objects with exactly the fields of their version: a keeper and a daemon of different releases may meet
during an upgrade, so a field is added or taken away only with a new `wire.VERSION`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sidemount.host.wire import Kind
from sidemount.model.errors import BadMessage, shown
from sidemount.model.mountspec import MountSpec, decode_spec, encode_spec
from sidemount.model.object_numbers import NAME_MAX, NAMES_MAX

_COUNTER_MAX = (1 << 63) - 1
_TEXT_MAX = 4096
_INIT_MAX = 4096
_NUMBERS_BYTES = 16 << 10
BACKINGS_MAX = 1024  # of a volume; all are told in one frame
BACKING_MAX = (1 << 30) - 1


class Refusal(Enum):
    """Why a keeper does not take a daemon."""

    BUSY = "busy"  # another one serves, or the connection is not there yet: ask again
    STALE = "stale"  # the descriptor handed back belongs to no mount of this keeper
    STOPPING = "stopping"  # the pod is ending
    IDENTITY = "identity"  # not the user that serves this volume
    PROTOCOL = "protocol"  # not understood


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A daemon introduces itself. With `hands_back` the frame carries the descriptor it is serving.

    `takeover`: it can continue the connection whose state is `state`, "" if none. `generation` and `init` are what its keeper
    gave it; a generation of 0 asks for work.
    """

    takeover: bool
    hands_back: bool = False
    generation: int = 0
    init: bytes = b""
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """The keeper's order; the frame carries the descriptor, unless the client mounts by itself.

    `continued`: an earlier daemon has served this connection. `init` is empty if it still lies in the queue. `kept`: how many
    descriptors that were kept for it follow.
    """

    spec: MountSpec
    generation: int
    continued: bool
    init: bytes
    heartbeat_ms: int
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """INIT is answered; the volume can be shown."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The daemon lives. `handled` only grows; both are 0 if the client cannot count."""

    handled: int = 0
    in_progress: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The daemon was told to end and goes on serving until the keeper lets it go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Nobody needs the volume from this daemon any more: flush, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """The daemon ends. `clean`: everything it held has reached the store."""

    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The keeper does not take the daemon."""

    reason: Refusal
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The keeper has taken the descriptor back."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A process of the daemon's that serves from now on; the frame carries its pidfd.

    Said before it reads anything, so that whoever is to continue after it can wait for its certain end.
    """

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How the daemon is. `takeover`: it can be succeeded, by whoever has the state of that id.

    `abnormal`: "" if all is well. `serving`: False while it waits before it tries once more.
    """

    takeover: bool
    state: str
    abnormal: str = ""
    serving: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Keep the frame's descriptor for a successor, whatever becomes of the daemon. There are only a few."""

    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A descriptor that was kept, in the frame."""

    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The process of that generation hangs: end it and go on with another."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Answer what is being worked on and let a fresh process go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The process that served has ended, and the connection cannot be continued here."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Why a process cannot serve. `lasting`: another one could not either, with this state."""

    detail: str
    hint: str
    lasting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """How the process ended that served before. `suspicion`: how much speaks for what it worked on being the cause, 0 for nothing."""

    suspicion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The keeper was told to end. Was the daemon, too?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer, and a proof that the daemon lives."""

    told_to_end: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lend:
    """The daemon would take the mounts away at the pod's end if its keeper cannot. An older keeper passes this over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """The directory of mount points, in the frame. Only whoever has asked is given it: an older daemon would break the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Another keeper follows: what was lent is to be given up. Only whoever has been lent something is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What of the volume is in use, as far as the process that serves knows."""

    open_handles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The daemon could tell what its volume counts. An older keeper passes this over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The keeper takes numbers. Only whoever has offered is told: an older daemon would break the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What the process that serves has counted since it began. `process` is another one for each; names that are unknown are passed over."""

    process: int
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The directory that is the volume's source, in the frame, said before `Serve`: for a daemon that cannot open it by its path.

    Only daemons of mount pods are told.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The files that are registered with the kernel as far as the daemon knows; it could use more. An older keeper passes this over."""

    backings: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registers:
    """The keeper registers files. Only whoever has said what it holds is told: an older daemon would break the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Register the frame's descriptor, a regular file's, with the kernel. `number` is never used twice."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The answer: the kernel's number for it, 0 if it is not registered."""

    number: int
    backing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unregister:
    """Nobody has the file open any more."""

    backing: int


FromDaemon = (
    Hello
    | Ready
    | Heartbeat
    | Stopping
    | Bye
    | Successor
    | Condition
    | Keep
    | GiveUp
    | Failed
    | Answer
    | Lend
    | Usage
    | Offer
    | Numbers
    | Holds
    | Register
    | Unregister
)
FromKeeper = (
    Serve
    | Stop
    | Refused
    | Adopted
    | Kept
    | Kill
    | HandOver
    | Predecessor
    | Ask
    | Lent
    | Leaving
    | Source
    | Wanted
    | Registers
    | Registered
)
Message = FromDaemon | FromKeeper


def encode(message: Message) -> tuple[Kind, bytes]:
    """Return kind and body of the message's frame."""
    kind, table = _KIND[type(message)]
    fields = {name: field.render(getattr(message, name)) for name, field in table.items()}
    return kind, json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode(kind: Kind, body: bytes) -> Message:
    """Parse a body. Raises BadMessage."""
    found = _TYPE.get(kind)
    if found is None:
        raise BadMessage(f"{kind.name}: not a message between keeper and daemon")
    if kind is Kind.NUMBERS and len(body) > _NUMBERS_BYTES:
        raise BadMessage(f"{kind.name}: longer than {_NUMBERS_BYTES} bytes")
    make, table = found
    raw = _object(kind, body)
    wrong = sorted(set(raw) ^ set(table))
    if wrong:
        raise BadMessage(
            f"{kind.name}: field {shown(wrong[0])} is {'unknown' if wrong[0] in raw else 'missing'}"
        )
    message: Message = make(
        **{name: field.parse(raw[name], f"{kind.name}.{name}") for name, field in table.items()}
    )
    return message


def carries_descriptor(message: Message) -> bool:
    """Tell whether the message's frame must have a descriptor beside it; no other may."""
    match message:
        case Serve():
            return message.spec.descriptor
        case Hello():
            return message.hands_back
        case Successor() | Keep() | Kept() | Lent() | Source() | Register():
            return True
        case _:
            return False


def _object(kind: Kind, body: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(body.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{kind.name}: the body is not JSON") from error
    if type(raw) is not dict:
        raise BadMessage(f"{kind.name}: the body is {shown(raw)}, not an object")
    return raw


@dataclass(frozen=True, slots=True)
class _Field:
    parse: Callable[[Any, str], Any]
    render: Callable[[Any], Any] = lambda value: value


def _flag(raw: Any, where: str) -> bool:
    if type(raw) is not bool:
        raise BadMessage(f"{where}: must be true or false, not {shown(raw)}")
    return raw


def _count(raw: Any, where: str) -> int:
    if type(raw) is not int or not 0 <= raw <= _COUNTER_MAX:
        raise BadMessage(f"{where}: must be a whole number that is not negative, not {shown(raw)}")
    return raw


def _text(raw: Any, where: str) -> str:
    if type(raw) is not str or len(raw) > _TEXT_MAX:
        raise BadMessage(f"{where}: must be a text of at most {_TEXT_MAX} characters")
    return raw


def _octets(raw: Any, where: str) -> bytes:
    try:
        octets = bytes.fromhex(raw)
    except (TypeError, ValueError):
        raise BadMessage(f"{where}: must be hexadecimal") from None
    if len(octets) > _INIT_MAX:
        raise BadMessage(f"{where}: longer than {_INIT_MAX} bytes")
    return octets


def _numbers(raw: Any, where: str) -> dict[str, int]:
    if type(raw) is not dict or len(raw) > NAMES_MAX or any(len(name) > NAME_MAX for name in raw):
        raise BadMessage(f"{where}: must be at most {NAMES_MAX} numbers by name, not {shown(raw)}")
    return {name: _count(value, where) for name, value in raw.items()}


def _backing(raw: Any, where: str) -> int:
    if _count(raw, where) > BACKING_MAX:
        raise BadMessage(f"{where}: must be at most {BACKING_MAX}, not {shown(raw)}")
    return int(raw)


def _backings(raw: Any, where: str) -> tuple[int, ...]:
    if type(raw) is not list or len(raw) > BACKINGS_MAX:
        raise BadMessage(f"{where}: must be at most {BACKINGS_MAX} numbers, not {shown(raw)}")
    return tuple(_backing(backing, where) for backing in raw)


def _spec(raw: Any, where: str) -> MountSpec:
    if type(raw) is not str:
        raise BadMessage(f"{where}: must be a mount spec, not {shown(raw)}")
    return decode_spec(raw)


def _refusal(raw: Any, where: str) -> Refusal:
    try:
        return Refusal(raw)
    except ValueError:
        raise BadMessage(f"{where}: {shown(raw)} is no reason we know") from None


_FLAG = _Field(_flag)
_COUNT = _Field(_count)
_OCTETS = _Field(_octets, bytes.hex)
_Table = Mapping[str, _Field]
_KIND: Mapping[type[Any], tuple[Kind, _Table]] = {
    Hello: (
        Kind.HELLO,
        {
            "takeover": _FLAG,
            "hands_back": _FLAG,
            "generation": _COUNT,
            "init": _OCTETS,
            "state": _Field(_text),
        },
    ),
    Serve: (
        Kind.SERVE,
        {
            "spec": _Field(_spec, encode_spec),
            "generation": _COUNT,
            "continued": _FLAG,
            "init": _OCTETS,
            "heartbeat_ms": _COUNT,
            "kept": _COUNT,
        },
    ),
    Ready: (Kind.READY, {"generation": _COUNT}),
    Heartbeat: (Kind.HEARTBEAT, {"handled": _COUNT, "in_progress": _COUNT}),
    Stopping: (Kind.STOPPING, {}),
    Stop: (Kind.STOP, {}),
    Bye: (Kind.BYE, {"clean": _FLAG}),
    Refused: (
        Kind.REFUSED,
        {"reason": _Field(_refusal, lambda refusal: refusal.value), "detail": _Field(_text)},
    ),
    Adopted: (Kind.ADOPTED, {"generation": _COUNT}),
    Successor: (Kind.SUCCESSOR, {"generation": _COUNT}),
    Condition: (
        Kind.CONDITION,
        {"takeover": _FLAG, "state": _Field(_text), "abnormal": _Field(_text), "serving": _FLAG},
    ),
    Keep: (Kind.KEEP, {"key": _COUNT}),
    Kept: (Kind.KEPT, {"key": _COUNT}),
    Kill: (Kind.KILL, {"generation": _COUNT}),
    HandOver: (Kind.HAND_OVER, {}),
    GiveUp: (Kind.GIVE_UP, {"detail": _Field(_text)}),
    Predecessor: (Kind.PREDECESSOR, {"suspicion": _COUNT}),
    Ask: (Kind.ASK, {}),
    Answer: (Kind.ANSWER, {"told_to_end": _FLAG}),
    Lend: (Kind.LEND, {}),
    Lent: (Kind.LENT, {}),
    Leaving: (Kind.LEAVING, {}),
    Source: (Kind.SOURCE, {}),
    Usage: (Kind.USAGE, {"open_handles": _COUNT}),
    Offer: (Kind.OFFER, {}),
    Wanted: (Kind.WANTED, {}),
    Numbers: (Kind.NUMBERS, {"process": _COUNT, "values": _Field(_numbers, dict)}),
    Holds: (Kind.HOLDS, {"backings": _Field(_backings, list)}),
    Registers: (Kind.REGISTERS, {}),
    Register: (Kind.REGISTER, {"number": _COUNT}),
    Registered: (Kind.REGISTERED, {"number": _COUNT, "backing": _Field(_backing)}),
    Unregister: (Kind.UNREGISTER, {"backing": _Field(_backing)}),
    Failed: (Kind.FAILED, {"detail": _Field(_text), "hint": _Field(_text), "lasting": _FLAG}),
}
_TYPE: Mapping[Kind, tuple[type[Any], _Table]] = {
    kind: (make, table) for make, (kind, table) in _KIND.items()
}
