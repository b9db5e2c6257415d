"""`sidemount status`: which pods have which volumes, how these are, and what became of them."""

import argparse
import asyncio
import sys
import time

from sidemount.commands.cluster.arguments import add_cluster_arguments
from sidemount.commands.health.report import as_document, render_table
from sidemount.commands.output import EXIT_FAILED, EXIT_OK, as_json, as_yaml, printable
from sidemount.model.errors import InvalidRequest, shown
from sidemount.model.names import label_fault, subdomain_fault


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "pods", nargs="*", metavar="POD", help="pods to show (default: all that have volumes)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", default="", help="namespace (default: the context's)")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="every namespace")
    parser.add_argument(
        "-l", "--selector", default="", help="only pods with these labels, as kubectl takes them"
    )
    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"), default="table")
    parser.add_argument(
        "--health",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read the keepers' logs (default: if there are not too many)",
    )
    add_cluster_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the volumes. Returns 1 when any needs a look or a named pod is not there; raises VolumeError."""
    _check(arguments)
    from sidemount.commands.health.survey import (
        look,
    )  # the Kubernetes client: slow, and no other command's need

    found = asyncio.run(look(arguments))
    reports, notes = found.reports, found.notes
    for note in notes:
        print(f"sidemount status: {printable(note)}", file=sys.stderr)
    if arguments.output in ("json", "yaml"):
        document = as_document(reports, notes)
        print(as_json(document) if arguments.output == "json" else as_yaml([document]).rstrip("\n"))
    elif reports:
        wide = arguments.output == "wide"
        now_ms = int(time.time() * 1000)
        print(render_table(reports, now_ms=now_ms, wide=wide, namespaces=arguments.all_namespaces))
    elif not arguments.pods:
        place = "any namespace" if arguments.all_namespaces else f"namespace {found.namespace}"
        print(f"status: no pod in {printable(place)} has a volume of Sidemount")
    return EXIT_FAILED if found.is_lacking or any(report.is_unhealthy for report in reports) else EXIT_OK


def _check(arguments: argparse.Namespace) -> None:
    if arguments.pods and (arguments.all_namespaces or arguments.selector):
        raise InvalidRequest(
            "pods are named, so -A and -l have nothing to choose", hint="leave one of the two out"
        )
    why = label_fault(arguments.namespace) if arguments.namespace else ""
    if why:
        raise InvalidRequest(f"-n {shown(arguments.namespace)} is no namespace: it {why}")
    for pod in arguments.pods:
        why = subdomain_fault(pod.removeprefix("pod/"))
        if why:
            raise InvalidRequest(f"{shown(pod)} is no pod's name: it {why}")
