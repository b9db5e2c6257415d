"""A plugin whose janitor gives nothing much time: `python -m tests.csi.hasty_plugin`."""

import os
import sys
from functools import partial

from csi import cleaning
from csi.janitor import Janitor
from csi.plugin_entry import run


def main() -> int:
    """Run the plugin."""
    vars(cleaning)["Janitor"] = partial(Janitor, grace_s=1.0, look_s=0.1)
    return run(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
