"""A plugin that SIGKILLs itself at a chosen point of its steps: `python -m tests.csi.dying_plugin`, the point in DIES_AT.

DIES_AT counts observed points from 1; 0 is never. Each is written to the file in POINTS_TO before anything else happens.
"""

import os
import signal
import sys

from csi.plugin_entry import run


def main() -> int:
    """Run the plugin."""
    at = int(os.environ["DIES_AT"])
    seen = 0

    def observe(point: str) -> None:
        nonlocal seen
        seen += 1
        with open(os.environ["POINTS_TO"], "a", encoding="ascii") as file:
            file.write(f"{point}\n")
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return run(sys.argv[1:], os.environ, observe)


if __name__ == "__main__":
    sys.exit(main())
