"""The facts that a command works with: a directory of manifests, a cluster, or the samples that come with the package."""

import argparse
import asyncio
import sys
from pathlib import Path

from sidemount.commands.cluster.arguments import add_cluster_arguments
from sidemount.commands.output import printable
from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.errors import HostFailure
from sidemount.model.facts import Facts

SAMPLES = Path(__file__).parent.parent / "samples"
CLUSTER = "cluster"


def add_facts_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that choose the facts."""
    parser.add_argument(
        "--facts",
        default="",
        metavar="DIR",
        help=f"directory of manifests, or the word {CLUSTER} for what a cluster has now (default: the samples)",
    )
    add_cluster_arguments(parser)


def load_facts(arguments: argparse.Namespace) -> Facts:
    """Return the facts that the arguments choose; what could not be used is said on standard error. Raises VolumeError."""
    facts = _of_cluster(arguments) if arguments.facts == CLUSTER else _of_directory(arguments.facts)
    for fault in facts.faults():
        print(f"sidemount: {printable(fault.where)}: {printable(fault.message)}", file=sys.stderr)
    return facts


def _of_cluster(arguments: argparse.Namespace) -> Facts:
    from sidemount.commands.cluster.facts import read_facts  # the Kubernetes client is slow to import

    return asyncio.run(read_facts(arguments.kubeconfig, arguments.context, arguments.request_timeout))


def _of_directory(directory: str) -> Facts:
    path = Path(directory) if directory else SAMPLES
    if not path.is_dir():
        raise HostFailure(f"--facts {directory}: no such directory", hint="name a directory of manifests")
    return FactsDirectory(path, settle_s=0).facts()
