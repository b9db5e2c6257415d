"""A keeper for which the first process of every kind cannot be made."""

import errno
import os
import sys
from collections.abc import Callable

from sidecar.keeper import main
from sidemount.host import jobs
from sidemount.host.disposable import Child, Reporter, start_child

_failed: set[str] = set()


def _start_child(work: Callable[[Reporter], None], *, keep: tuple[int, ...] = ()) -> Child:
    kind = work.__qualname__
    if kind not in _failed:
        _failed.add(kind)
        sys.stderr.write(f'{{"event": "no_process", "kind": "{kind.partition(".")[0]}"}}\n')
        sys.stderr.flush()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return start_child(work, keep=keep)


if __name__ == "__main__":
    vars(jobs)["start_child"] = _start_child
    sys.exit(main(sys.argv[1:]))
