"""`python -m e2e.torture`: kill what serves while applications verify every byte, and tell how long they had to wait.

`python -m e2e.torture failures`: what applications in a pod see when something fails, row by row.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.failures.command import failures
from e2e.torture.goals import judge
from e2e.torture.outcome import Outcome
from e2e.torture.plot import svg
from e2e.torture.report import as_json, table, whole_report
from e2e.torture.run import torture
from e2e.torture.variants import VARIANTS, Variant

_MANY = 1_000_000
_INSIDE = "SIDEMOUNT_TORTURE_INSIDE"


def main(arguments: list[str]) -> int:
    """Torture. Exit codes: 0 nothing was lost, 1 something was (with `--strict`: or a goal was missed), 2 usage."""
    if arguments[:1] == ["failures"]:
        return failures(arguments[1:])
    options = _parser().parse_args(arguments)
    if os.geteuid() != 0:
        sys.stderr.write("torture: needs root: it mounts\n")
        return 2
    if os.environ.get(_INSIDE) != "1":
        return _enter(arguments)
    names = list(VARIANTS) if options.variant == "all" else options.variant.split(",")
    outcomes = _run([VARIANTS[name] for name in names], options)
    sys.stdout.write(as_json(outcomes) if options.output == "json" else whole_report(outcomes))
    sys.stdout.write("\n")
    if options.plot:
        _write_plot(Path(options.plot), outcomes)
    return exit_code(outcomes, strict=options.strict)


def exit_code(outcomes: Sequence[Outcome], *, strict: bool) -> int:
    """Return 1 if anything was lost, wrong or left behind; `strict`: or if a goal was missed."""
    is_good = all(outcome.is_good for outcome in outcomes)
    are_met = all(judgement.is_met for judgement in judge(outcomes))
    return 0 if is_good and (are_met or not strict) else 1


def _enter(arguments: Sequence[str]) -> int:
    """Run in namespaces of mounts and processes: whatever happens, nothing stays."""
    inside = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    environment = {**os.environ, _INSIDE: "1"}
    init = [
        "sh",
        "-c",
        '"$@"; exit $?',
        "sh",
    ]  # the first process: it reaps what killed processes leave behind
    command = [*inside, *init, sys.executable, "-m", "e2e.torture", *arguments]
    return os.spawnvpe(os.P_WAIT, "unshare", command, environment)


def _run(chosen: list[Variant], options: argparse.Namespace) -> list[Outcome]:
    seed = options.seed if options.seed is not None else int(time.time())
    load = os.getloadavg()[0]
    sys.stderr.write(f"seed {seed}; {os.cpu_count()} processors, a load of {load:.1f} before it begins\n")
    outcomes = []
    for number, variant in enumerate(chosen):
        with tempfile.TemporaryDirectory(prefix="torture-") as work:
            sys.stderr.write(f"{variant.name}: {options.seconds:.0f} s\n")
            outcome = torture(
                variant,
                Path(work),
                seconds=options.seconds,
                blows=options.kills or _MANY,
                seed=seed + number * 1000,
            )
            outcomes.append(outcome)
            if options.output == "table":
                sys.stderr.write(table([outcome]) + "\n")
            if not outcome.is_good and options.logs:
                _keep_logs(Path(work), Path(options.logs), variant.name)
    return outcomes


def _write_plot(path: Path, outcomes: list[Outcome]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg(outcomes))
    sys.stderr.write(f"stall times: {path.resolve()}\n")


def _keep_logs(work: Path, to: Path, name: str) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for log in (*work.glob("*.log"), *work.glob("*.said")):
        (to / f"{name}-{log.name}").write_bytes(log.read_bytes())


def _names(text: str) -> str:
    unknown = [name for name in text.split(",") if name not in VARIANTS and name != "all"]
    if unknown:
        raise argparse.ArgumentTypeError(f"no variant {unknown[0]!r}; there are {', '.join(VARIANTS)}, all")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.torture", description=__doc__)
    parser.add_argument(
        "--variant", type=_names, default="all", help=f"{', '.join(VARIANTS)} or all, comma-separated"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each variant (%(default)s)")
    parser.add_argument("--kills", type=int, default=0, help="end a variant after so many (0: by time only)")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--strict", action="store_true", help="a missed goal is a failure too")
    parser.add_argument(
        "--plot",
        default="build/torture/stalls.svg",
        metavar="FILE",
        help="write the stall times as SVG (%(default)s)",
    )
    parser.add_argument(
        "--logs",
        default="build/torture",
        metavar="DIR",
        help="keep the logs of what went wrong (%(default)s)",
    )
    parser.add_argument("-o", "--output", default="table", choices=("table", "json"))
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
