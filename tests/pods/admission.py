"""The webhook's own code as the API server would ask it, in this process."""

import base64
import copy
import json
from collections.abc import Iterable
from pathlib import Path

import jsonpatch
import yaml

from sidemount.commands.pods import review_of
from sidemount.host.facts_directory import FactsDirectory
from sidemount.model.facts import Facts
from tests.pods.manifests import NAMESPACE, Json
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings
from webhook.outcome import Answer
from webhook.validate import validate


class Refused(Exception):
    """The webhook did not admit a pod."""


def read_facts(directory: Path, manifests: Iterable[Json]) -> Facts:
    """Write manifests into a directory and return what the webhook reads there."""
    directory.mkdir()
    (directory / "facts.yaml").write_text(yaml.safe_dump_all(manifests))
    facts = FactsDirectory(directory).facts()
    assert not facts.faults(), facts.faults()
    return facts


def admit(pod: Json, facts: Facts, settings: InjectionSettings) -> Json:
    """Return the pod as it is after both webhooks. Raises Refused."""
    response = _response(mutate(review_of(pod, NAMESPACE), facts=facts, settings=settings))
    patch = json.loads(base64.b64decode(response["patch"]))
    injected: Json = jsonpatch.apply_patch(copy.deepcopy(pod), patch)
    _response(validate(review_of(injected, NAMESPACE), facts=facts, settings=settings))
    return injected


def _response(answer: Answer) -> Json:
    response: Json = json.loads(answer.body)["response"]
    if not response["allowed"]:
        raise Refused(response["status"]["message"])
    return response
