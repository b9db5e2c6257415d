"""Where everything lies in a state file.

One sparse file in memory (tmpfs), mapped by its only writer: what a process has stored there is there when it is killed, with
no system call in between. Space is reserved before it is touched, so that a full filesystem is an error and never SIGBUS.
"""

import mmap

FORMAT = 1
MAGIC = 0x45544154534D4453  # "SDMSTATE"
WORD = 8

# Words of the head, the file's first page.
HEAD_WORDS = 64
AT_MAGIC = 0  # written last of all: a file without it is no state
AT_FORMAT = 1
AT_ID = 2  # two words
AT_LOST = 4  # not 0: something is missing, nobody can continue
AT_NODES_RESERVED = 5  # slots of nodes that have space
AT_HANDLES_RESERVED = 6
AT_NEXT_NODE = 7  # numbers that ids and handles are made of: none is ever used again
AT_NEXT_HANDLE = 8
AT_LOG_BEGIN = 9  # the log's first window
AT_LOG_END = 10  # the window after its last one

# The rest of the first page, which is there on every filesystem as soon as the head is.
NEWCOMERS_AT = 1024
NEWCOMER_BYTES = 40  # struct fuse_in_header
NEWCOMERS = (4096 - NEWCOMERS_AT) // NEWCOMER_BYTES

SLOT_BITS = 24
SLOT = (1 << SLOT_BITS) - 1  # the part of a node id, or of a handle, that is its slot
NODES_LEAST = 1024
NODES_MAX = 1 << SLOT_BITS
HANDLES_MAX = 1 << 20
HANDLE_WORDS = 4
STEPS = 64
STEP_BYTES = 1024
WINDOW = 1 << 18  # the log is reserved, mapped and given back by windows

_PAGE = max(mmap.ALLOCATIONGRANULARITY, 1 << 16)  # the largest page of any machine
JOURNAL = _PAGE
NODE_IDS = JOURNAL + -(-STEPS * STEP_BYTES // _PAGE) * _PAGE
LOOKUPS = NODE_IDS + NODES_MAX * WORD
HANDLES = LOOKUPS + NODES_MAX * WORD
LOG = HANDLES + HANDLES_MAX * HANDLE_WORDS * WORD
