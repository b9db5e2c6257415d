"""A plugin without a nursery: `python -m e2e.bench.executing_plugin`. Every daemon is a program that is started."""

import os
import sys

from csi import process_launcher
from csi.nursery import Nursery
from csi.plugin_entry import run


class NoNursery(Nursery):
    """One that never comes up; the launcher does without, as it does while a real one loads."""

    def start(self) -> None:
        """Start nothing."""


def main() -> int:
    """Run the plugin."""
    vars(process_launcher)["Nursery"] = NoNursery
    return run(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
