"""An application that does one small thing without end and notes how long it took: `prober DIRECTORY SECONDS`.

Says at once on standard error, in a JSON line each, which calls were slow: {"slow": [begin, end]} in moments of the monotonic clock,
and which failed: {"error"}. Prints {"calls", "errors"} in the end.
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
    errors: list[str] = []
    calls = 0
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    while (begin := time.monotonic()) < until and not told:
        try:
            os.statvfs(place)
        except OSError as error:
            errors.append(repr(error))
            _say({"error": repr(error)})
        end = time.monotonic()
        calls += 1
        if end - begin > _SLOW_S:
            _say({"slow": [begin, end]})
        time.sleep(_PAUSE_S)
    sys.stdout.write(json.dumps({"calls": calls, "errors": errors[:20]}) + "\n")
    return 0


def _say(what: dict[str, object]) -> None:
    sys.stderr.write(json.dumps(what) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
