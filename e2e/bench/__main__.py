"""`python -m e2e.bench [NAME …]`: run the benchmarks and print one row a figure.

A benchmark is a module `bench_<name>.py` beside this one with a function `rows() -> Iterator[Row]`.
"""

import argparse
import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from e2e.bench.rows import Row, render_table, render_verdict

_PREFIX = "bench_"


def known_benches() -> list[str]:
    """Return the names of all benchmarks, sorted."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name.removeprefix(_PREFIX) for module in found if module.name.startswith(_PREFIX))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for. Always 0: a benchmark reports, it does not judge a build; 2 for an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.bench", description="Measure against peers, in turns."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(known_benches())}; all if none"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args(argv)
    names = arguments.names or known_benches()
    if unknown := sorted(set(names) - set(known_benches())):
        print(
            f"bench: {', '.join(unknown)}: no such benchmark; known: {', '.join(known_benches())}",
            file=sys.stderr,
        )
        return 2
    load = os.getloadavg()[0]
    rows = [row for name in names for row in _measured(name)]
    if arguments.output == "json":
        print(
            json.dumps(
                [{**asdict(row), "ratio": row.ratio, "verdict": row.verdict} for row in rows], indent=2
            )
        )
        return 0
    print(render_table(rows))
    print(
        f"{os.cpu_count()} processors, load {load:.1f} before the run; ratios are ours/theirs, medians of rounds in turns"
    )
    print(render_verdict(rows))
    return 0


def _measured(name: str) -> Iterator[Row]:
    print(f"bench: measuring {name} …", file=sys.stderr)
    try:
        yield from importlib.import_module(f"e2e.bench.{_PREFIX}{name}").rows()
    except Exception as error:
        # Whatever a machine lacks costs this benchmark its rows, not the others theirs.
        yield Row(what=name, fault=f"{type(error).__name__}: {error}".splitlines()[0][:200])


if __name__ == "__main__":
    sys.exit(main())
