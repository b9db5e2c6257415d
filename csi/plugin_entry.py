"""The plugin's entry: settings, signals, exit codes."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence

from csi.controller_plugin import ControllerPlugin
from csi.publish_steps import Observe
from csi.service import NodePlugin
from csi.settings import CONTROLLER, Settings, parse_settings
from sidemount.host import logs, process_attributes
from sidemount.host.own_descriptors import raise_descriptor_limit
from sidemount.model.errors import InvalidRequest, VolumeError

EXIT_BAD_INPUT = 2
EXIT_CANNOT_START = 3


def run(argv: Sequence[str], environ: Mapping[str, str], observe: Observe = lambda point: None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    try:
        settings = parse_settings(argv, environ)
        logs.configure("csi", level=settings.log_level).info("starting", settings=settings.told())
        process_attributes.forbid_inspection()
        raise_descriptor_limit()
        asyncio.run(_serve(settings, observe))
        return 0
    except VolumeError as error:
        print(f"sidemount csi: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, InvalidRequest) else EXIT_CANNOT_START
    except Exception as error:
        # The trace is for the log; a person gets a line.
        logs.log("csi").error("ended", exc_info=True)
        print(f"sidemount csi: ended by {type(error).__name__}, see the log", file=sys.stderr)
        return EXIT_CANNOT_START


async def _serve(settings: Settings, observe: Observe) -> None:
    plugin = (ControllerPlugin if settings.role == CONTROLLER else NodePlugin)(settings, observe)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, plugin.end)
    await plugin.run(_announce)


def _announce(line: str) -> None:
    # Nobody may be reading; that is no reason not to serve.
    with contextlib.suppress(OSError):
        print(line, flush=True)
