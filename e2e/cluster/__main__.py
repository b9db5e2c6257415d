"""`python -m e2e.cluster`: see `e2e.cluster.command`."""

import sys

from e2e.cluster.command import main

sys.exit(main())
