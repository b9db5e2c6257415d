"""A keeper whose bound of stacked mounts is reached soon: `few_layers NUMBER -- keeper's arguments`."""

import sys

from sidecar.keeper import main as keeper_main
from sidemount.host import volume_places

if __name__ == "__main__":
    at = sys.argv.index("--")
    vars(volume_places)["LAYERS_MAX"] = int(sys.argv[1])
    sys.exit(keeper_main(sys.argv[at + 1 :]))
