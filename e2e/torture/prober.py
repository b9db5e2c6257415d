"""An application that does one small thing without end and notes how long it took: `prober DIRECTORY SECONDS`.

Prints one JSON line: {"calls", "errors", "slow": [[begin, end], …]} with moments of the monotonic clock.
"""

import json
import os
import signal
import sys
import time

_SLOW_S = 0.0005
_PAUSE_S = 0.0002


def main(arguments: list[str]) -> int:
    """Probe until the time is over, or SIGTERM comes."""
    place, seconds = arguments
    until = time.monotonic() + float(seconds)
    slow: list[tuple[float, float]] = []
    errors: list[str] = []
    calls = 0
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    while (begin := time.monotonic()) < until and not told:
        try:
            os.statvfs(place)
        except OSError as error:
            errors.append(repr(error))
        end = time.monotonic()
        calls += 1
        if end - begin > _SLOW_S:
            slow.append((begin, end))
        time.sleep(_PAUSE_S)
    sys.stdout.write(json.dumps({"calls": calls, "errors": errors[:20], "slow": slow}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
