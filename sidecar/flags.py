"""Flags of the programs that must stay small: `--name value` or `--name=value`. argparse would be 3 % of a keeper."""

import sys
from collections.abc import Mapping


class UsageError(Exception):
    """The command line cannot be understood."""


def parse_flags(arguments: list[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return every flag's text, the default where it is not given. Raises UsageError."""
    given = dict(defaults)
    rest = iter(arguments)
    for argument in rest:
        name, has_value, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in defaults:
            raise UsageError(f"unknown argument {argument!r}")
        if not has_value:
            value = next(rest, "")
        if not value:
            raise UsageError(f"--{name} needs a value")
        given[name] = value
    return given


def print_usage(program: str, flags: Mapping[str, str], fault: str = "") -> None:
    """Tell how the program is called: on stderr with the fault, or on stdout because someone asked."""
    shown = " ".join(f"[--{name} {value or 'VALUE'}]" for name, value in flags.items())
    stream = sys.stderr if fault else sys.stdout
    stream.write(f"usage: python -m sidecar {program} {shown}\n")
    if fault:
        stream.write(f"{program}: {fault}\n")
