"""A keeper that is short of something once: `short_keeper processes|descriptors`, then a keeper's arguments.

The first process of every kind cannot be made; or the first looks at a mount fail.
"""

import errno
import os
import sys
from collections.abc import Callable

from sidecar.keeper import main
from sidemount.host import jobs, syscalls
from sidemount.host.disposable import Child, Reporter, start_child
from sidemount.host.volume_places import VolumePlaces

_failed: set[str] = set()


def _start_child(work: Callable[[Reporter], None], *, keep: tuple[int, ...] = ()) -> Child:
    kind = work.__qualname__
    if kind not in _failed:
        _failed.add(kind)
        sys.stderr.write(f'{{"event": "no_process", "kind": "{kind.partition(".")[0]}"}}\n')
        sys.stderr.flush()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return start_child(work, keep=keep)


def _short_once(name: str) -> None:
    really_open = getattr(VolumePlaces, name)

    def open_it(self: VolumePlaces) -> int:
        if name not in _failed:
            _failed.add(name)
            raise syscalls.failure("open", self.anchor, errno.EMFILE)
        root: int = really_open(self)
        return root

    setattr(VolumePlaces, name, open_it)


if __name__ == "__main__":
    lacking, *arguments = sys.argv[1:]
    if lacking == "processes":
        vars(jobs)["start_child"] = _start_child
    else:
        _short_once("open_root")
        _short_once("open_shown")
    sys.exit(main(arguments))
