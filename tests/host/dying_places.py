"""A keeper that is killed beside one step at its mount points: `dying_places METHOD before|after VISIT -- keeper's arguments`.

METHOD is one of `VolumePlaces`; the keeper dies at its VISIT-th call. Nothing of this is in the product.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sidecar.keeper import main as keeper_main
from sidemount.host.volume_places import VolumePlaces


def install(method: str, moment: str, visit: int) -> None:
    """Have the method watched."""
    real: Callable[..., Any] = getattr(VolumePlaces, method)
    calls = 0

    def watched(self: VolumePlaces, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == visit and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(self, *arguments)
        if calls == visit:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(VolumePlaces, method, watched)


if __name__ == "__main__":
    at = sys.argv.index("--")
    name, when, count = sys.argv[1:at]
    install(name, when, int(count))
    sys.exit(keeper_main(sys.argv[at + 1 :]))
