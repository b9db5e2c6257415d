"""What the node service and the nursery of its daemons say to each other: one JSON object a datagram, with exactly these keys.

Both are of one release. A START brings the daemon's log as a descriptor, a STARTED the process as a pidfd. Standard library only.
"""

from sidemount.host.vocabulary import Vocabulary

MESSAGE_MAX = 1 << 16

START = "start"  # a daemon with these arguments and rights
READY = "ready"  # everything is loaded
STARTED = "started"  # it lives
REFUSED = "refused"  # it could not be started
ENDED = "ended"  # with this code; negative: by that signal

_WORDS = Vocabulary(
    "node service and nursery",
    {
        START: ("id", "arguments", "pid_file", "group", "uid", "capabilities", "unconfined"),
        READY: (),
        STARTED: ("id", "pid"),
        REFUSED: ("id", "fault"),
        ENDED: ("pid", "code"),
    },
)
written, read = _WORDS.written, _WORDS.read
