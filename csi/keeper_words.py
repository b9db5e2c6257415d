"""What the plugin and its keeper say to each other: one JSON object a datagram, with exactly these keys.

Both are of one release: the plugin starts the keeper. Standard library only.
"""

from sidemount.host.vocabulary import Vocabulary

MESSAGE_MAX = 1 << 17

# The plugin's orders, with the fields of each.
KEEP = "keep"  # mount this volume at this target, and keep it
LISTEN = "listen"  # wait for its daemons in that directory from now on
DROP = "drop"  # detach it, let its daemon flush, and forget it
CHECK = "check"  # does its mount answer, and what are its statistics?
DETACH = "detach"  # take away what of ours is mounted at a place that no volume is kept for
SWEEP = "sweep"  # take a dead mount of ours away that a pod has left
# The keeper's reports.
STATUS = "status"  # how a volume is
NUMBERS = "numbers"  # what its daemon's process has counted
DROPPED = "dropped"  # a volume is detached, and its daemon let go
ANSWER = "answer"  # to a CHECK, DETACH or LISTEN

_WORDS = Vocabulary(
    "plugin and keeper",
    {
        KEEP: ("name", "target", "spec", "source", "run_dir", "directory"),
        LISTEN: ("name", "run_dir", "id"),
        DROP: ("name",),
        CHECK: ("name", "id"),
        DETACH: ("target", "id"),
        SWEEP: ("directory", "place", "mount", "id"),
        STATUS: (
            *("name", "phase", "fault", "abnormal", "hung", "generation", "lacks"),
            *("takeovers", "remounts", "pause_ms", "cause"),
        ),
        NUMBERS: ("name", "process", "numbers"),
        DROPPED: ("name",),
        ANSWER: ("id", "fault", "errno", "late", "found"),
    },
)
written, read = _WORDS.written, _WORDS.read
