"""`sidemount explain`: for each volume of a pod its class, delivery and reason, and what is mounted where."""

import argparse
from typing import Any

from sidemount.commands.admission import admit_file, exit_code
from sidemount.commands.inject import add_arguments as add_inject_arguments
from sidemount.commands.known_facts import load_facts
from sidemount.commands.output import as_json, as_yaml, printable, table
from sidemount.commands.pods import PodPlace
from webhook.outcome import MountOutcome, Outcome, VolumeOutcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_inject_arguments(parser)
    for action in parser._actions:
        if action.dest == "output":
            action.choices, action.default = ("table", "json", "yaml"), "table"


def run(arguments: argparse.Namespace) -> int:
    """Print the decisions. Returns the exit code; raises VolumeError."""
    found = [
        (result.place, result.outcome)
        for result in admit_file(arguments.filename, arguments.namespace, load_facts(arguments))
        if result.place is not None and result.outcome is not None
    ]
    if arguments.output == "table":
        print("\n\n".join(_text(place, outcome) for place, outcome in found) or "no pod in this manifest")
    else:
        pods = {"pods": [_machine(place, outcome) for place, outcome in found]}
        print(as_json(pods) if arguments.output == "json" else as_yaml([pods]).rstrip("\n"))
    return exit_code([outcome for _, outcome in found])


def _text(place: PodPlace, outcome: Outcome) -> str:
    head = f"{printable(place.title)} in namespace {printable(place.namespace)}: {outcome.verdict.value} ({outcome.reason.value})"
    lines = [head]
    if outcome.message:
        lines += [f"  {printable(part)}" for part in outcome.message.split("\n")]
    if outcome.volumes:
        rows = [
            (v.volume, v.driver_class or "-", v.delivery or "-", v.reason.value, v.source or "-", v.message)
            for v in outcome.volumes
        ]
        lines += ["", table(("VOLUME", "CLASS", "DELIVERY", "REASON", "SOURCE", "WHY"), rows)]
    mounts = [_row(volume, mount) for volume in outcome.volumes for mount in volume.mounts]
    if mounts:
        lines += ["", table(("CONTAINER", "PATH", "VOLUME", "SUBPATH", "ACCESS"), mounts)]
    lines += (
        ["", *(f"warning: {printable(warning)}" for warning in outcome.warnings)] if outcome.warnings else []
    )
    return "\n".join(lines)


def _row(volume: VolumeOutcome, mount: MountOutcome) -> tuple[str, ...]:
    return (
        mount.container,
        mount.path,
        volume.volume,
        mount.sub_path or "-",
        "read-only" if mount.read_only else "read-write",
    )


def _machine(place: PodPlace, outcome: Outcome) -> dict[str, Any]:
    return {
        "object": place.title,
        "namespace": place.namespace,
        "verdict": outcome.verdict.value,
        "reason": outcome.reason.value,
        "message": outcome.message,
        "warnings": list(outcome.warnings),
        "volumes": [
            {
                "name": volume.volume,
                "class": volume.driver_class,
                "source": volume.source,
                "delivery": volume.delivery,
                "reason": volume.reason.value,
                "message": volume.message,
                "mounts": [
                    {
                        "container": mount.container,
                        "path": mount.path,
                        "subPath": mount.sub_path,
                        "readOnly": mount.read_only,
                    }
                    for mount in volume.mounts
                ],
            }
            for volume in outcome.volumes
        ],
    }
