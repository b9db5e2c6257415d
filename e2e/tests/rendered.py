"""What kustomize makes of `manifests/`, and what an API server says to many objects at once."""

import copy
import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.kubectl import Json, Kubectl
from e2e.cluster.places import SOURCE

MANIFESTS = SOURCE / "manifests"
OVERLAYS = tuple(sorted(path.name for path in (MANIFESTS / "overlays").iterdir()))
_NOBODY = "https://127.0.0.1:1"
_ANSWER_S = 180.0
_CREATED = re.compile(r"^\S+?/(\S+) (?:created|serverside-applied)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answers:
    """Names of the objects that were accepted, and what was said of all others, one line each."""

    accepted: frozenset[str]
    refusals: tuple[str, ...]


def render(api: Kubectl, directory: Path) -> list[Json]:
    """Return the objects of a kustomization."""
    return [each for each in yaml.safe_load_all(api.run("kustomize", str(directory))) if each is not None]


def calling_nobody(configuration: Json) -> Json:
    """Return a webhook configuration whose calls fail at once: nobody listens where it calls."""
    found = copy.deepcopy(configuration)
    for entry in found["webhooks"]:
        entry["clientConfig"] = {"url": _NOBODY + entry["clientConfig"]["service"]["path"]}
    return found


def try_all(api: Kubectl, objects: Iterable[Mapping[str, Any]], *arguments: str) -> Answers:
    """Create objects, in a dry run of the server's; the refusal of one keeps no other from being tried."""
    text = as_text(objects)
    done = subprocess.run(
        api.argv("create", "--dry-run=server", *arguments, "-f", "-"),
        input=text,
        capture_output=True,
        text=True,
        env=api.environment(),
        timeout=_ANSWER_S,
    )
    refusals = tuple(line for line in done.stderr.splitlines() if line and not line.startswith("Warning:"))
    return Answers(frozenset(_CREATED.findall(done.stdout)), refusals)


def as_text(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return objects as kubectl reads them. Characters are themselves: YAML knows no pairs of surrogates."""
    return "\n---\n".join(json.dumps(each, ensure_ascii=False) for each in objects)


def stand_in(group: str, kind: str, plural: str) -> Json:
    """Return a type that takes anything, in the place of one that somebody else's operator brings."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }
