"""`python -m e2e.bench [NAME …]`: run the benchmarks and print one row a figure.

A benchmark is a module `bench_<name>.py` beside this one with a function `rows() -> Iterator[Row]`, which may take `seconds`: how long
a rate is measured at a time.
"""

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from e2e.bench.rows import Row, render_table, render_verdict

_PREFIX = "bench_"
_SECONDS_MAX = 10.0


def known_benches() -> list[str]:
    """Return the names of all benchmarks, sorted."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name.removeprefix(_PREFIX) for module in found if module.name.startswith(_PREFIX))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for. 0 even if a goal is missed: a benchmark reports, it does not judge a build.

    1 if a goal could not be judged, 2 for an unknown name or a wrong flag.
    """
    parser = argparse.ArgumentParser(
        prog="python -m e2e.bench", description="Measure against peers, in turns."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(known_benches())}; all if none"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--seconds", type=_seconds, help="how long a rate is measured at a time, where that can be chosen"
    )
    arguments = parser.parse_args(argv)
    names = arguments.names or known_benches()
    if unknown := sorted(set(names) - set(known_benches())):
        print(
            f"bench: {', '.join(unknown)}: no such benchmark; known: {', '.join(known_benches())}",
            file=sys.stderr,
        )
        return 2
    load = os.getloadavg()[0]
    rows = [row for name in names for row in _measured(name, arguments.seconds)]
    if arguments.output == "json":
        print(
            json.dumps(
                [{**asdict(row), "ratio": row.ratio, "verdict": row.verdict} for row in rows], indent=2
            )
        )
        return _exit_code(rows)
    print(render_table(rows))
    print(
        f"{os.cpu_count()} processors, load {load:.1f} before the run; ratios are ours/theirs, medians of rounds in turns"
    )
    print(render_verdict(rows))
    return _exit_code(rows)


def _measured(name: str, seconds: float | None) -> Iterator[Row]:
    print(f"bench: measuring {name} …", file=sys.stderr)
    try:
        rows = importlib.import_module(f"e2e.bench.{_PREFIX}{name}").rows
        takes_seconds = seconds is not None and "seconds" in inspect.signature(rows).parameters
        yield from rows(seconds=seconds) if takes_seconds else rows()
    except Exception as error:
        # Whatever a machine lacks costs this benchmark its rows, not the others theirs.
        yield Row(what=name, fault=f"{type(error).__name__}: {error}".splitlines()[0][:200])


def _exit_code(rows: Sequence[Row]) -> int:
    return 1 if any(row.fault for row in rows) else 0


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= _SECONDS_MAX:
        raise ValueError(text)
    return value


if __name__ == "__main__":
    sys.exit(main())
