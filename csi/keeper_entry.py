"""The keeper's entry: its arguments are the plugin's, who alone starts it. Standard library only."""

import socket

from csi.keeper import run_keeper
from sidemount.host import logs
from sidemount.model.errors import VolumeError


def run(arguments: list[str]) -> int:
    """Run the keeper of a state directory over the inherited descriptor; return the exit code."""
    log = logs.configure("csi-keeper")
    try:
        state_dir, descriptor, check_s = arguments
        line = socket.socket(fileno=int(descriptor))
        run_keeper(state_dir, line, check_s=float(check_s))
    except VolumeError as error:
        log.error("start_failed", fault=error.message, hint=error.hint)
        return 3
    except ValueError:
        log.error("start_failed", fault="only the plugin starts it")
        return 2
    return 0
