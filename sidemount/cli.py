"""The `sidemount` command: one table of commands, one boundary for errors."""

import argparse
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sidemount.commands import classes, demo, doctor, explain, inject, status
from sidemount.commands.output import EXIT_BAD_INPUT, EXIT_FAILED, complain
from sidemount.model.errors import HostFailure, Reason, VolumeError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


_COMMANDS = {
    "inject": _Command(
        summary="show a pod or workload as the webhook would make it",
        add_arguments=inject.add_arguments,
        run=inject.run,
    ),
    "explain": _Command(
        summary="show class, delivery, reason and mounts of each volume",
        add_arguments=explain.add_arguments,
        run=explain.run,
    ),
    "classes": _Command(
        summary="show the allowlist of clients and what each can do",
        add_arguments=classes.add_arguments,
        run=classes.run,
    ),
    "status": _Command(
        summary="show the volumes of a cluster's pods and how they are",
        add_arguments=status.add_arguments,
        run=status.run,
    ),
    "doctor": _Command(
        summary="check whether this machine or cluster can run volumes",
        add_arguments=doctor.add_arguments,
        run=doctor.run,
    ),
    "demo": _Command(
        summary="run an injected pod on this machine and check every step",
        add_arguments=demo.add_arguments,
        run=demo.run,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 fine, 1 failed, 2 bad input, 3 refused."""
    parser = argparse.ArgumentParser(prog=_program(), description="FUSE volumes for any Kubernetes pod.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        command.add_arguments(
            commands.add_parser(name, help=command.summary, description=f"{command.summary.capitalize()}.")
        )
    _prepare_streams()
    parsed = parser.parse_args(arguments)
    if sys.stdout is None:
        complain(parsed.command, HostFailure("standard output is closed"))
        return EXIT_FAILED
    try:
        code = _COMMANDS[parsed.command].run(parsed)
        sys.stdout.flush()
    except VolumeError as error:
        complain(parsed.command, error)
        return EXIT_FAILED if error.reason is Reason.CLUSTER_ACCESS else EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader, such as head, has seen enough
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        _drop_output()
        which = f"{error.filename}: " if error.filename else ""
        complain(parsed.command, HostFailure(f"{which}{error.strerror or error}"))
        return EXIT_FAILED
    except Exception as error:
        complain(parsed.command, HostFailure(f"a fault of ours: {type(error).__name__}{_where(error)}"))
        return EXIT_FAILED
    return code


def _program() -> str:
    """Return what the user has called us: kubectl runs its plugins under the name `kubectl-sidemount`."""
    return "kubectl sidemount" if Path(sys.argv[0]).name.startswith("kubectl-") else "sidemount"


def _prepare_streams() -> None:
    """Make the streams fit to print to: a closed one for errors takes nothing, and manifests are UTF-8 whatever the locale."""
    if sys.stderr is None:  # print() would write to standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def _drop_output() -> None:
    """Send what is still buffered nowhere: Python would fail on it again as it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


if __name__ == "__main__":
    sys.exit(main())
