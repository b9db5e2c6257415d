"""`sidemount doctor`: can this machine run volumes, and what does its kernel give."""

import argparse

from sidemount.commands.output import EXIT_FAILED, EXIT_OK, as_json, as_yaml, table
from sidemount.host.machine import Finding, Verdict, inspect_machine

_MARKS = {Verdict.OK: "ok", Verdict.DEGRADED: "less", Verdict.MISSING: "MISSING"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Returns 1 when something that is needed is missing."""
    findings = tuple(inspect_machine())
    missing = [finding for finding in findings if finding.verdict is Verdict.MISSING]
    if arguments.output == "table":
        print(
            table(
                ("", "TOPIC", "FOUND"),
                [(_MARKS[finding.verdict], finding.topic, finding.found) for finding in findings],
            )
        )
        for finding in findings:
            if finding.verdict is not Verdict.OK:
                print(f"\n{finding.topic}: {_advice(finding)}")
        print(
            f"\ndoctor: {'this machine can run volumes' if not missing else 'this machine cannot run volumes yet'}"
        )
    else:
        found = {
            "ok": not missing,
            "findings": [
                {
                    "topic": f.topic,
                    "verdict": f.verdict.value,
                    "found": f.found,
                    "meaning": f.meaning,
                    "wayOut": f.way_out,
                }
                for f in findings
            ],
        }
        print(as_json(found) if arguments.output == "json" else as_yaml([found]).rstrip("\n"))
    return EXIT_FAILED if missing else EXIT_OK


def _advice(finding: Finding) -> str:
    return "; ".join(part for part in (finding.meaning, finding.way_out) if part)
