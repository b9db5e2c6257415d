"""`python -m e2e.torture failures`: what applications see when something fails, row by row."""

import argparse
import os
import sys

from e2e.failures.rows import ROWS
from e2e.failures.table import find_all, show
from e2e.images import busybox_image, sidemount_image
from tests.pods.stage import Images


def failures(arguments: list[str]) -> int:
    """Run the rows and print the table. Exit codes: 0 every row holds, 1 one does not, 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m e2e.torture failures", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name has these words")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        sys.stderr.write("failures: needs root: it runs pods\n")
        return 2
    rows = [row for row in ROWS if options.only in row.name]
    findings = find_all(rows, Images(busybox_image(), sidemount_image()))
    sys.stdout.write(
        f"{show(findings)}\nVolumes by CSI: docs/failures.md, and `make e2e` for what is in it.\n"
    )
    return 1 if any(finding.fault for finding in findings) else 0
