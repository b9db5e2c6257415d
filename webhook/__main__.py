"""`python -m webhook`: start the admission service."""

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence

from sidemount.host import logs
from sidemount.model.errors import InvalidRequest, VolumeError
from webhook.service import Service
from webhook.settings import Settings, parse_settings

EXIT_UNCLEAN = 1
EXIT_BAD_INPUT = 2
EXIT_CANNOT_START = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Serve until a signal; return the exit code.

    0 drained, 1 ended while somebody waited, 2 the settings are wrong, 3 it could not start.
    """
    try:
        settings = parse_settings(
            sys.argv[1:] if argv is None else argv, os.environ if environ is None else environ
        )
        logs.configure("webhook", level=settings.log_level).info("starting", settings=settings.redacted())
        _allow_descriptors()
        return 0 if asyncio.run(_serve(settings)) else EXIT_UNCLEAN
    except VolumeError as error:
        print(f"sidemount webhook: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, InvalidRequest) else EXIT_CANNOT_START
    except KeyboardInterrupt:  # before the signal's handler was there
        return EXIT_INTERRUPTED
    except Exception as error:
        # The trace is for the log; a person gets a line.
        logs.log("webhook").error("ended", exc_info=True)
        print(f"sidemount webhook: ended by {type(error).__name__}, see the log", file=sys.stderr)
        return EXIT_CANNOT_START


async def _serve(settings: Settings) -> bool:
    service = Service(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, service.end)
    return await service.run(_announce)


def _announce(line: str) -> None:
    # Nobody may be reading; that is no reason not to serve.
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _allow_descriptors() -> None:
    """Raise the soft limit of open files to the hard one: connections shall not fail for a shell's default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
