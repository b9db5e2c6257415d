"""The start-up probe of a volume: is every view of it live? Runs every second, so it imports next to nothing."""

import socket
import sys

from sidecar.flags import UsageError, parse_flags, print_usage
from sidemount.host import wire
from sidemount.model.errors import BadMessage
from sidemount.model.names import RUN_PATH

_TIMEOUT_S = 10.0
_FLAGS = {"run-dir": RUN_PATH}


def main(arguments: list[str]) -> int:
    """Ask the keeper. Exit codes: 0 live, 1 not (the reason is on stdout), 2 usage."""
    try:
        run_dir = parse_flags(arguments, _FLAGS)["run-dir"]
    except UsageError as error:
        print_usage("probe", _FLAGS, str(error))
        return 2
    answer = ask(run_dir)
    sys.stdout.write(f"{answer}\n")
    return 0 if answer == "ready" or answer.startswith("ready: ") else 1


def ask(run_dir: str, *, timeout_s: float = _TIMEOUT_S) -> str:
    """Return the keeper's answer: "ready", with ": " and a remark if there is one, or "not ready: " and why."""
    try:
        with wire.dial(run_dir, timeout_s=timeout_s) as connection:
            wire.send(connection, wire.Kind.PROBE)
            return _answer(connection)
    except TimeoutError:
        return f"not ready: the keeper does not answer within {timeout_s:g} s"
    except (OSError, BadMessage) as error:
        return f"not ready: the keeper cannot be reached at {run_dir}: {error}"


def _answer(connection: socket.socket) -> str:
    frame = wire.receive(connection)
    if frame is None:
        return "not ready: the keeper has closed the connection"
    frame.close()
    if frame.kind is not wire.Kind.STATUS:
        return f"not ready: the keeper answers {frame.kind.name}: {frame.body.decode('utf-8', 'replace')}"
    return frame.body.decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
