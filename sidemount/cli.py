"""The `sidemount` command: one table of commands, one boundary for errors."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidemount.commands import classes, demo, doctor, explain, inject
from sidemount.commands.output import EXIT_BAD_INPUT, complain
from sidemount.model.errors import VolumeError


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
    "doctor": _Command(
        summary="check whether this machine can run volumes",
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
    parser = argparse.ArgumentParser(prog="sidemount", description="FUSE volumes for any Kubernetes pod.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        command.add_arguments(
            commands.add_parser(name, help=command.summary, description=f"{command.summary.capitalize()}.")
        )
    parsed = parser.parse_args(arguments)
    try:
        code = _COMMANDS[parsed.command].run(parsed)
        sys.stdout.flush()
    except VolumeError as error:
        complain(parsed.command, error)
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
