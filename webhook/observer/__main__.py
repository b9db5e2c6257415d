"""`python -m webhook.observer`: start the observer."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from sidemount.host import logs
from sidemount.model.errors import InvalidRequest, VolumeError
from webhook.observer.observer import Observer
from webhook.observer.settings import ObserverSettings, parse_settings

EXIT_BAD_INPUT = 2
EXIT_CANNOT_START = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Observe until a signal; return the exit code: 0 ended, 2 the settings are wrong, 3 it could not start or broke."""
    try:
        settings = parse_settings(sys.argv[1:] if argv is None else argv)
        logs.configure("observer", level=settings.log_level).info("starting", settings=settings.told())
        # The client's own debug lines may show what it sends.
        logging.getLogger("kubernetes").setLevel(logging.INFO)
        asyncio.run(_observe(settings))
    except VolumeError as error:
        print(f"sidemount observer: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, InvalidRequest) else EXIT_CANNOT_START
    except KeyboardInterrupt:  # before the signal's handler was there
        return EXIT_INTERRUPTED
    except Exception as error:
        logs.log("observer").error("ended", exc_info=True)
        print(f"sidemount observer: ended by {type(error).__name__}, see the log", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


async def _observe(settings: ObserverSettings) -> None:
    observer = Observer(settings, instance=os.uname().nodename)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, observer.end)
    await observer.run()


if __name__ == "__main__":
    sys.exit(main())
