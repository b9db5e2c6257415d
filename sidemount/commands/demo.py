"""`sidemount demo`: an injected pod on this machine, every step checked."""

import argparse

from sidemount.model.errors import Unsupported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--keep", action="store_true", help="leave the working directory behind")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. Returns 0 only if every step was seen to work; raises VolumeError."""
    try:
        from e2e.demo.show import show
    except ModuleNotFoundError as error:  # podlet and the demo are no part of the installed package
        if not (error.name or "").startswith("e2e"):
            raise
        raise Unsupported("the demo runs from a checkout of the project", hint="run: make demo") from error
    return show(keep=arguments.keep)
