"""Exercise a directory for a while and say whether it stayed what it had to be."""

import argparse
import os
import sys
import time
from pathlib import Path

from e2e.fsx.exerciser import Exerciser
from e2e.fsx.shadow import Mismatch

_PROGRESS_S = 5.0


def main() -> int:
    """Return 0 if nothing was wrong, 1 if something was, 2 if the directory cannot be used."""
    arguments = _arguments()
    directory: Path = arguments.dir
    try:
        if os.listdir(directory):
            return _refuse(f"{directory} is not empty")
    except OSError as error:
        return _refuse(f"{directory}: {error.strerror}")
    exerciser = Exerciser(directory, arguments.seed, arguments.largest, maps=not arguments.no_map)
    try:
        _exercise(exerciser, arguments)
    except (Mismatch, OSError) as error:
        print("\n".join(exerciser.log))
        print(f"fsx: FAILED after {exerciser.operations} operations, seed {arguments.seed}: {error!r}")
        return 1
    print(f"fsx: ok, {exerciser.operations} operations, seed {arguments.seed}")
    return 0


def _exercise(exerciser: Exerciser, arguments: argparse.Namespace) -> None:
    begun = shown = time.monotonic()
    while (now := time.monotonic()) - begun < arguments.seconds:
        if arguments.operations and exerciser.operations >= arguments.operations:
            break
        if now - shown >= _PROGRESS_S:
            shown = now
            print(f"fsx: {exerciser.operations} operations, {now - begun:.0f} s", flush=True)
        exerciser.step()
    exerciser.check_all()
    exerciser.close()
    exerciser.check_all()
    if arguments.source is not None:
        exerciser.check_all(arguments.source)


def _refuse(why: str) -> int:
    print(f"fsx: {why}", file=sys.stderr)
    return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.fsx", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="an empty directory that nobody else uses")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long (default 20)")
    parser.add_argument(
        "--operations", type=int, default=0, help="stop after so many (default: by time only)"
    )
    parser.add_argument("--seed", type=int, default=0, help="which operations (default 0)")
    parser.add_argument("--largest", type=int, default=400_000, help="the largest size of a file in bytes")
    parser.add_argument("--no-map", action="store_true", help="do not map files")
    parser.add_argument("--source", type=Path, help="the directory behind --dir, compared at the end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
