"""What the node service and the nursery of its daemons say to each other: one JSON object a datagram, with exactly these keys.

Both are of one release. A START brings the daemon's log as a descriptor, a STARTED the process as a pidfd. Standard library only.
"""

import json
from collections.abc import Mapping
from typing import Any

from sidemount.model.errors import BadMessage

MESSAGE_MAX = 1 << 16

START = "start"  # a daemon with these arguments and rights
READY = "ready"  # everything is loaded
STARTED = "started"  # it lives
REFUSED = "refused"  # it could not be started
ENDED = "ended"  # with this code; negative: by that signal

_FIELDS: Mapping[str, tuple[str, ...]] = {
    START: ("id", "arguments", "pid_file", "group", "uid", "capabilities", "unconfined"),
    READY: (),
    STARTED: ("id", "pid"),
    REFUSED: ("id", "fault"),
    ENDED: ("pid", "code"),
}


def written(say: str, **fields: Any) -> bytes:
    """Return the datagram of a word."""
    if set(fields) != set(_FIELDS[say]):
        raise AssertionError(f"{say}: {sorted(fields)}")
    return json.dumps({"say": say, **fields}).encode()


def read(datagram: bytes) -> tuple[str, dict[str, Any]]:
    """Return word and fields of a datagram. Raises BadMessage."""
    try:
        fields = json.loads(datagram)
        say = fields.pop("say")
        if set(fields) == set(_FIELDS[say]):
            return say, fields
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadMessage(f"node service and nursery: {type(error).__name__}") from error
    raise BadMessage(f"node service and nursery: {say} has the wrong fields")
