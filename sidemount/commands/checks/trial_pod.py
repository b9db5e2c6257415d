"""The pods of a trial: sent to the API server for a dry run only, and harmless even if they were created."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidemount.commands.pods import review_of
from sidemount.model.driver_class import DriverClass
from sidemount.model.facts import Facts
from sidemount.model.names import KEEPER_CONTAINER, VOLUMES_ANNOTATION
from sidemount.model.source_glob import glob_matches
from sidemount.model.source_uri import source_fault
from sidemount.model.volume_request import Delivery
from webhook.admit import mutate
from webhook.injection_settings import InjectionSettings
from webhook.outcome import Verdict

_NAME = "sidemount-doctor"
_IMAGE = "registry.k8s.io/pause:3.10"
_TRIED = 20  # namespaces, and classes in each


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pod that should get its volume, and where."""

    namespace: str
    driver_class: str
    manifest: Mapping[str, Any]


def asking_trial(namespaces: Sequence[str], facts: Facts) -> Trial | None:
    """Return a pod that gets a volume by sidecar under these facts, None if no class serves any of the namespaces.

    Chosen by the webhook's own code, so that a refusal by the API server is never about the pod.
    """
    for namespace in namespaces[:_TRIED]:
        for known in list(facts.driver_classes().values())[:_TRIED]:
            if Delivery.SIDECAR not in known.deliveries:
                continue
            for source in _sources(known):
                pod = asking_pod(known, source)
                answer = mutate(review_of(pod, namespace), facts=facts, settings=InjectionSettings())
                if (
                    answer.outcome.verdict is Verdict.INJECTED
                    and KEEPER_CONTAINER.encode() in answer.outcome.patch
                ):
                    return Trial(namespace=namespace, driver_class=known.name, manifest=pod)
    return None


def plain_pod() -> dict[str, Any]:
    """Return a pod that asks for nothing, as narrow as `restricted` wants it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": f"{_NAME}-"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "trial",
                    "image": _IMAGE,
                    "resources": _resources(),
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


def privileged_pod() -> dict[str, Any]:
    """Return a pod with a container such as our keeper, before anything of ours is installed."""
    pod = plain_pod()
    keeper = {
        "name": _NAME,
        "image": _IMAGE,
        "restartPolicy": "Always",
        "resources": _resources(),
        "securityContext": {"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": "mounts", "mountPath": "/mounts", "mountPropagation": "Bidirectional"}],
    }
    pod["spec"]["initContainers"] = [keeper]
    pod["spec"]["volumes"] = [{"name": "mounts", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    return pod


def asking_pod(known: DriverClass | None, source: str) -> dict[str, Any]:
    """Return a pod that asks for one volume; of no class if `known` is None."""
    entry: dict[str, Any] = {"name": "data", "source": source, "readOnly": True}
    if known is not None:
        entry["class"] = known.name
        if known.credentials.required:
            entry["secret"] = _NAME
    pod = plain_pod()
    pod["metadata"]["annotations"] = {VOLUMES_ANNOTATION: json.dumps([entry])}
    pod["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return pod


def _sources(known: DriverClass) -> Iterator[str]:
    """Yield sources that the class's globs allow: every wildcard filled with a name, or with a path."""
    for glob in known.sources:
        for filling in (_NAME, f"{_NAME}/trial"):
            source = glob.replace("**", filling).replace("*", _NAME)
            if not source_fault(source) and glob_matches(glob, source):
                yield source


def _resources() -> dict[str, Any]:
    amounts = {"cpu": "10m", "memory": "16Mi"}
    return {"requests": amounts, "limits": amounts}
