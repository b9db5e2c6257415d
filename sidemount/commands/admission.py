"""Runs the webhook's own code on the pods of a manifest."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonpatch

from sidemount.commands.output import EXIT_OK, EXIT_REFUSED, printable
from sidemount.commands.pods import (
    PodPlace,
    find_pod,
    misplaced_annotations,
    pod_of,
    read_documents,
    review_of,
    template_of,
)
from sidemount.model.facts import Facts
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings
from webhook.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """One object of a manifest and what became of it. `place` and `outcome` are None for a kind that has no pod."""

    before: dict[str, Any]
    after: dict[str, Any]
    place: PodPlace | None
    outcome: Outcome | None


def admit_file(file: str, namespace: str, facts: Facts) -> Iterator[Admitted]:
    """Yield every object of the file as the webhook would leave it. Raises VolumeError for input that is no manifest."""
    settings = InjectionSettings()
    for document in read_documents(file):
        place = find_pod(document, namespace)
        if place is None:
            yield Admitted(before=document, after=document, place=None, outcome=None)
            continue
        for name in misplaced_annotations(place):
            where = ".".join((*place.path, "metadata", "annotations"))
            print(
                f"warning: {printable(place.title)}: annotation {printable(name)} stands on the workload, where it does nothing; move it to {where}",
                file=sys.stderr,
            )
        pod = pod_of(place)
        answer = mutate(review_of(pod, place.namespace), facts=facts, settings=settings)
        after = json.loads(json.dumps(pod))
        if answer.outcome.patch:
            after = jsonpatch.apply_patch(after, json.loads(answer.outcome.patch))
        yield Admitted(
            before=document,
            after=place.with_pod(template_of(place, after)),
            place=place,
            outcome=answer.outcome,
        )


def exit_code(outcomes: list[Outcome]) -> int:
    """Return 3 when any pod was refused, else 0."""
    return EXIT_OK if all(outcome.allowed for outcome in outcomes) else EXIT_REFUSED


def say_warnings(place: PodPlace, outcome: Outcome) -> None:
    """Print what `kubectl apply` would print of an outcome."""
    for warning in outcome.warnings:
        print(f"warning: {printable(place.title)}: {printable(warning)}", file=sys.stderr)
    if not outcome.allowed:
        print(
            f"refused: {printable(place.title)}: {printable(outcome.message)} ({outcome.reason.value})",
            file=sys.stderr,
        )
