"""Be one application for a while: `python -m e2e.torture.apps KIND DIRECTORY SECONDS SEED`; SIGTERM ends it before.

Prints one JSON line in the end: how many operations, which errors, what was wrong, and what must be in which file.
"""

import contextlib
import json
import mmap
import random
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from e2e.torture.apps.blocks import blocks
from e2e.torture.apps.churn import churn
from e2e.torture.apps.crowd import failure
from e2e.torture.apps.keeper import keeper
from e2e.torture.apps.lister import lister
from e2e.torture.apps.locker import locker
from e2e.torture.apps.log import log
from e2e.torture.apps.mapper import mapper
from e2e.torture.apps.ranges import ranges
from e2e.torture.apps.reopener import reopener
from e2e.torture.apps.tally import Application, Tally
from e2e.torture.apps.writer import writer

APPLICATIONS: Mapping[str, Application] = {
    "blocks": blocks,
    "churn": churn,
    "keeper": keeper,
    "lister": lister,
    "locker": locker,
    "log": log,
    "mapper": mapper,
    "ranges": ranges,
    "reopener": reopener,
    "writer": writer,
}


def main(arguments: list[str]) -> int:
    """Work, then report."""
    kind, directory, seconds, seed = arguments
    place = Path(directory)
    tally = Tally()
    is_told = mmap.mmap(-1, 1)  # shared with the processes that the application starts
    signal.signal(signal.SIGTERM, lambda number, frame: is_told.__setitem__(0, 1))
    end = time.monotonic() + float(seconds)
    with contextlib.suppress(OSError):  # whoever needs it will say what is wrong
        place.mkdir()
    try:
        APPLICATIONS[kind](
            place, lambda: not is_told[0] and time.monotonic() < end, random.Random(seed), tally
        )
    except OSError as error:
        tally.fail(failure(error))
    sys.stdout.write(json.dumps({"kind": kind, **tally.report()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
