"""`sidemount classes`: the allowlist, what each client can do, templates of classes, and the check of one."""

import argparse
from typing import Any

from sidemount.commands.classes_check import add_check_arguments, run_check
from sidemount.commands.classes_templates import print_template, print_templates
from sidemount.commands.known_facts import CLUSTER, add_facts_arguments, load_facts
from sidemount.commands.output import EXIT_FAILED, EXIT_OK, as_json, as_yaml, table
from sidemount.model.driver_class import DriverClass
from sidemount.model.options import OptionRule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_facts_arguments(parser)
    parser.add_argument(
        "--cluster", dest="facts", action="store_const", const=CLUSTER, help="the same as --facts cluster"
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument(
        "--templates", action="store_true", help="list the classes of other clients that come with Sidemount"
    )
    parser.add_argument(
        "--template", default="", metavar="CLIENT", help="print one of them, to be edited and applied"
    )
    add_check_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the classes. Returns 1 when some manifest could not be used (said on standard error); raises VolumeError."""
    if arguments.template:
        return print_template(arguments.template)
    if arguments.templates:
        return print_templates(arguments.output)
    if arguments.check:
        return run_check(arguments)
    facts = load_facts(arguments)
    classes = sorted(facts.driver_classes().values(), key=lambda known: known.name)
    if arguments.output == "table":
        header = ("CLASS", "CLIENT", "DELIVERIES", "SOURCES", "PRIVILEGE", "TAKEOVER", "READ-ONLY", "OPTIONS")
        print(table(header, [_row(known) for known in classes]) if classes else "no classes")
    else:
        found = {"classes": [_machine(known) for known in classes]}
        print(as_json(found) if arguments.output == "json" else as_yaml([found]).rstrip("\n"))
    return EXIT_FAILED if facts.faults() else EXIT_OK


def _row(known: DriverClass) -> tuple[str, ...]:
    return (
        known.name,
        f"{known.filesystem} (pools)" if known.provisions else known.filesystem or known.image,
        ",".join(delivery.value for delivery in known.deliveries) or "off",
        ",".join(known.sources) or "-",
        "none" if known.abilities.descriptor else "privileged",
        "yes" if known.abilities.takeover else "no",
        known.abilities.read_only,
        ",".join(sorted(known.options)) or "-",
    )


def _machine(known: DriverClass) -> dict[str, Any]:
    return {
        "name": known.name,
        "filesystem": known.filesystem,
        "image": known.image,
        "command": list(known.command),
        "provisions": known.provisions,
        "deliveries": [delivery.value for delivery in known.deliveries],
        "sources": list(known.sources),
        "options": {name: _option(rule) for name, rule in sorted(known.options.items())},
        "credentials": {
            "secretKeys": list(known.credentials.secret_keys),
            "required": known.credentials.required,
        },
        "abilities": {
            "descriptor": known.abilities.descriptor,
            "takeover": known.abilities.takeover,
            "readOnly": known.abilities.read_only,
        },
        "capabilities": list(known.capabilities),
        "uid": known.uid,
        "resources": {"requests": dict(known.resources.requests), "limits": dict(known.resources.limits)},
    }


def _option(rule: OptionRule) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": rule.type.value,
        "min": rule.minimum,
        "max": rule.maximum,
        "values": list(rule.values) or None,
        "pattern": rule.pattern or None,
        "default": rule.default,
    }
    return {key: value for key, value in described.items() if value is not None}
