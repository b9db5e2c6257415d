"""`sidemount doctor`: can this machine, or a cluster, run volumes; and does it."""

import argparse
import asyncio
from collections.abc import Sequence

from sidemount.commands.checks.finding import Finding as ClusterFinding
from sidemount.commands.checks.finding import Verdict as ClusterVerdict
from sidemount.commands.cluster.arguments import add_cluster_arguments
from sidemount.commands.output import EXIT_FAILED, EXIT_OK, as_json, as_yaml, printable, table
from sidemount.host.machine import Finding, Verdict, inspect_machine
from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.names import label_fault

_MARKS = {Verdict.OK: "ok", Verdict.DEGRADED: "less", Verdict.MISSING: "MISSING"}
_CLUSTER_MARKS = {ClusterVerdict.WARN: "warn", ClusterVerdict.FAIL: "FAIL", ClusterVerdict.UNKNOWN: "?"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument("--cluster", action="store_true", help="look at a cluster instead of this machine")
    parser.add_argument(
        "--uninstalled", action="store_true", help="look whether a removal has left anything in a cluster"
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default="",
        help="namespace to try a pod in, as a dry run (default: one that is open)",
    )
    add_cluster_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Returns 1 when something that is needed is missing; raises VolumeError."""
    if arguments.cluster or arguments.uninstalled:
        why = label_fault(arguments.namespace) if arguments.namespace else ""
        if why:
            raise InvalidRequest(f"-n {shown(arguments.namespace)} is no namespace: it {why}")
        from sidemount.commands.checks.examination import examine  # the Kubernetes client is slow to import

        return _tell_cluster(asyncio.run(examine(arguments)), arguments)
    if arguments.kubeconfig or arguments.context or arguments.namespace:
        raise InvalidRequest("--kubeconfig, --context and -n are about a cluster", hint="add --cluster")
    return _tell_machine(tuple(inspect_machine()), arguments.output)


def _tell_machine(findings: Sequence[Finding], output: str) -> int:
    missing = [finding for finding in findings if finding.verdict is Verdict.MISSING]
    if output == "table":
        _print_table([(_MARKS[each.verdict], each) for each in findings])
        print(
            f"\ndoctor: {'this machine can run volumes' if not missing else 'this machine cannot run volumes yet'}"
        )
    else:
        _print_document(findings, output, ok=not missing)
    return EXIT_FAILED if missing else EXIT_OK


def _tell_cluster(findings: Sequence[ClusterFinding], arguments: argparse.Namespace) -> int:
    failed = [each for each in findings if each.verdict is ClusterVerdict.FAIL]
    unknown = [each for each in findings if each.verdict is ClusterVerdict.UNKNOWN]
    if arguments.output == "table":
        _print_table([(_CLUSTER_MARKS.get(each.verdict, "ok"), each) for each in findings])
        if arguments.uninstalled:
            said = "something left can hold pods back" if failed else "nothing left holds a pod back"
        else:
            said = "this cluster cannot run volumes yet" if failed else "this cluster can run volumes"
        doubt = f", as far as could be seen; {len(unknown)} could not be looked at" if unknown else ""
        print(f"\ndoctor: {said}{doubt}")
    else:
        _print_document(findings, arguments.output, ok=not failed)
    return EXIT_FAILED if failed else EXIT_OK


def _print_table(rows: Sequence[tuple[str, Finding | ClusterFinding]]) -> None:
    print(table(("", "TOPIC", "FOUND"), [(mark, each.topic, each.found) for mark, each in rows]))
    advice: dict[str, list[str]] = {}
    for _, each in rows:
        if said := _advice(each):
            advice.setdefault(said, []).append(each.topic)
    for said, topics in advice.items():
        print(f"\n{', '.join(dict.fromkeys(topics))}: {printable(said)}")


def _print_document(findings: Sequence[Finding | ClusterFinding], output: str, *, ok: bool) -> None:
    found = {
        "ok": ok,
        "findings": [
            {
                "topic": each.topic,
                "verdict": each.verdict.value,
                "found": each.found,
                "meaning": each.meaning,
                "wayOut": each.way_out,
            }
            for each in findings
        ],
    }
    print(as_json(found) if output == "json" else as_yaml([found]).rstrip("\n"))


def _advice(finding: Finding | ClusterFinding) -> str:
    return "; ".join(part for part in (finding.meaning, finding.way_out) if part)
