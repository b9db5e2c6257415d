"""The probes of a volume, which run every few seconds, so they import next to nothing.

The start-up probe asks whether every view of it is live. The liveness probe asks whether kubelet has to restart the daemon's
container, and takes nothing for a yes but the keeper's own word: a keeper that is away, or slow, is no reason to kill a daemon.
"""

import socket
import sys

from sidecar.flags import UsageError, parse_flags, print_usage
from sidemount.host import process_attributes, wire
from sidemount.model.errors import BadMessage
from sidemount.model.names import RUN_PATH

_TIMEOUT_S = 10.0
_HUNG_TIMEOUT_S = 5.0
_READY, _HUNG = "ready", "hung"
_FLAGS = {"run-dir": RUN_PATH, "ask": _READY}


def main(arguments: list[str]) -> int:
    """Ask the keeper. Exit codes: 0 live, or not hung; 1 not live, or hung (the reason is on stdout); 2 usage."""
    try:
        flags = parse_flags(arguments, _FLAGS)
        if flags["ask"] not in (_READY, _HUNG):
            raise UsageError(f"--ask must be {_READY} or {_HUNG}")
    except UsageError as error:
        print_usage("probe", _FLAGS, str(error))
        return 2
    process_attributes.forbid_inspection()  # it runs where the volume's credentials are
    is_hung_asked = flags["ask"] == _HUNG
    answer = ask_hung(flags["run-dir"]) if is_hung_asked else ask(flags["run-dir"])
    sys.stdout.write(f"{answer}\n")
    if is_hung_asked:
        return 1 if answer.startswith("hung: ") else 0
    return 0 if answer == "ready" or answer.startswith("ready: ") else 1


def ask(run_dir: str, *, timeout_s: float = _TIMEOUT_S) -> str:
    """Return the keeper's answer: "ready", with ": " and a remark if there is one, or "not ready: " and why."""
    return _ask(run_dir, wire.Kind.PROBE, timeout_s)


def ask_hung(run_dir: str, *, timeout_s: float = _HUNG_TIMEOUT_S) -> str:
    """Return "hung: " and why if the keeper says so, anything else if it does not, whatever is wrong with us."""
    try:
        return _ask(run_dir, wire.Kind.HUNG_PROBE, timeout_s)
    except Exception as error:  # kubelet takes every failure of a probe for a reason to kill
        return f"the keeper could not be asked: {error!r}"


def _ask(run_dir: str, kind: wire.Kind, timeout_s: float) -> str:
    try:
        with wire.dial(run_dir, timeout_s=timeout_s) as connection:
            wire.send(connection, kind)
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
