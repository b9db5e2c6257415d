"""A daemon that dies of reading certain files: `poisoned_daemon HOW -- daemon's arguments`.

HOW is a signal's name, or "container": then the first process is killed, and everything with it. What is in the file decides, so
whoever is resumed with the request dies as well; "killed N times" ends only so many. Nothing of this is in the product.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sidecar import filesystems, spare
from sidecar.daemon import main as daemon_main

POISON = b"poison"
SLOW = b"slow"
KILLED = b"killed"


def _die(how: str) -> None:
    if how == "container":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    if how != "SIGKILL":
        signal.signal(
            signal.Signals[how], signal.SIG_DFL
        )  # whoever runs the tests may ignore it, as nohup does
    os.kill(os.getpid(), signal.Signals[how])
    signal.pause()


def _is_spared(text: bytes, deaths: Path) -> bool:
    """Tell whether so many have died of it already, else count one more."""
    with deaths.open("a") as file:
        if file.tell() >= int(text.split()[1]):
            return True
        file.write("x")
    return False


def _poisoned(real: Any, how: str) -> Any:
    def build(*arguments: Any, **settings: Any) -> Any:
        operations = real(*arguments, **settings)
        read, in_thread = operations.read, settings["in_thread"]
        deaths = Path(settings["state_dir"]) / "deaths"

        async def deadly_read(handle: int, offset: int, size: int) -> bytes:
            text = bytes(await read(handle, offset, size))  # a copy: the buffer is the next reader's
            if text.startswith(SLOW):  # so that it is in hand whenever another one kills
                await in_thread(time.sleep, 0.3)
            is_killed = text.startswith(KILLED) and not _is_spared(text, deaths)
            if is_killed or text.startswith(POISON):
                _die(how)
            return text

        operations.read = deadly_read
        return operations

    return build


if __name__ == "__main__":
    vars(spare)["build_operations"] = _poisoned(filesystems.build_operations, sys.argv[1])
    sys.exit(daemon_main(sys.argv[3:]))
