"""`sidemount inject`: a manifest as the webhook would leave it."""

import argparse

from sidemount.commands.admission import admit_file, exit_code, say_warnings
from sidemount.commands.known_facts import add_facts_arguments, load_facts
from sidemount.commands.output import EXIT_OK, as_json, as_yaml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-f",
        "--filename",
        required=True,
        metavar="FILE",
        help="manifest of a pod or workload, - for standard input",
    )
    parser.add_argument(
        "-n", "--namespace", default="", help="namespace, where the manifest names none (default: default)"
    )
    add_facts_arguments(parser)
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")


def run(arguments: argparse.Namespace) -> int:
    """Print every object; nothing of a file in which any pod is refused. Returns the exit code; raises VolumeError."""
    results = list(admit_file(arguments.filename, arguments.namespace, load_facts(arguments)))
    outcomes = []
    for result in results:
        if result.place is not None and result.outcome is not None:
            say_warnings(result.place, result.outcome)
            outcomes.append(result.outcome)
    code = exit_code(outcomes)
    if code == EXIT_OK:
        documents = [result.after for result in results]
        if arguments.output == "json":
            print(
                as_json(
                    documents[0]
                    if len(documents) == 1
                    else {"apiVersion": "v1", "kind": "List", "items": documents}
                )
            )
        else:
            print(as_yaml(documents), end="")
    return code
