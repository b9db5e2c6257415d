"""What the fault proxy can do to a request, and which requests it does it to."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Delay:
    """Pass it on after a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer it ourselves. The server never sees it."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reset:
    """End the connection with an RST as soon as the request's head is there. The server never sees it."""


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Have it carried out, and end the connection with an RST instead of answering."""


@dataclass(frozen=True, slots=True)
class ResetInHead:
    """End the connection with an RST in the middle of the answer's head."""


@dataclass(frozen=True, slots=True)
class ResetInBody:
    """End the connection with an RST after so many bytes of the answer's body."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """End the connection in order after so many bytes of the answer's body, though its head promises all."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class ChangeHeaders:
    """Answer with other values of these headers; "" leaves one out."""

    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CorruptAnswer:
    """Change one byte of the answer's body."""

    at_byte: int = 0


@dataclass(frozen=True, slots=True)
class CorruptRequest:
    """Change one byte of the request's body on its way to the server."""

    at_byte: int = 0


@dataclass(frozen=True, slots=True)
class Drip:
    """Send the answer's head, and its body a byte at a time with a pause after each."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Never answer: until the client gives up, or the proxy ends."""


Fault = (
    Delay
    | Answer
    | Reset
    | LoseAnswer
    | ResetInHead
    | ResetInBody
    | Truncate
    | ChangeHeaders
    | CorruptAnswer
    | CorruptRequest
    | Drip
    | Hang
)

_ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>made by the proxy</Message></Error>'


def s3_error(status: int, code: str, **headers: str) -> Answer:
    """Return an answer with S3's error document. Underscores in the names of headers are hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, _ERROR.format(code=code).encode(), {"Content-Type": "application/xml", **named})


SLOW_DOWN = s3_error(503, "SlowDown")
TOO_MANY = Answer(429)
EXPIRED = s3_error(403, "ExpiredToken")


class Rule:
    """A fault for the requests of a method ("" any) whose target a pattern finds: `times` of them (None: all) after the first `skip`."""

    def __init__(self, fault: Fault, method: str, target: str, times: int | None, skip: int) -> None:
        self.fault = fault
        self._method = method
        self._target = re.compile(target)
        self._left = times
        self._skip = skip
        self._lock = threading.Lock()
        self.hits = 0
        """How many requests it was done to."""

    def takes(self, method: str, target: str) -> bool:
        """Tell whether this request is one of them, and count it."""
        if self._method not in ("", method) or not self._target.search(target):
            return False
        with self._lock:
            if self._skip:
                self._skip -= 1
                return False
            if self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            self.hits += 1
            return True
