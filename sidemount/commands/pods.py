"""Pods in manifests: where the pod of each kind of workload is, and the admission review the API server would send for it."""

import copy
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidemount.model.errors import HostFailure, InvalidRequest, shown
from sidemount.model.names import (
    INJECT_ANNOTATION,
    VOLUME_ANNOTATION_PREFIX,
    VOLUMES_ANNOTATION,
    label_fault,
)
from sidemount.model.yamltext import parse_documents

_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
    "Pod": (),
}
_SIZE_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """A pod in a manifest. `path` leads from the document to it; `title` names it for people."""

    document: dict[str, Any]
    path: tuple[str, ...]
    title: str
    namespace: str

    @property
    def pod(self) -> dict[str, Any]:
        """The pod or template itself."""
        found: Any = self.document
        for key in self.path:
            found = found[key]
        assert isinstance(found, dict)
        return found

    def with_pod(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return the document with the pod replaced."""
        if not self.path:
            return pod
        document = copy.deepcopy(self.document)
        parent: Any = document
        for key in self.path[:-1]:
            parent = parent[key]
        parent[self.path[-1]] = pod
        return document


def read_documents(file: str) -> tuple[dict[str, Any], ...]:
    """Return the objects of a manifest file (`-` is standard input), lists expanded. Raises VolumeError."""
    try:
        raw = _read(file)
    except OSError as error:
        raise HostFailure(
            f"{file}: {error.strerror}",
            errno=error.errno or 0,
            hint="name a manifest file, or - for standard input",
        ) from error
    if len(raw) > _SIZE_MAX:
        raise InvalidRequest(f"{file} is larger than {_SIZE_MAX} bytes")
    try:
        documents = parse_documents(raw.decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {error.message}", reason=error.reason, hint=error.hint) from error
    objects = tuple(_expanded(documents, file))
    if not objects:
        raise InvalidRequest(f"{file} holds no object", hint="give a Pod or a workload")
    return objects


def _read(file: str) -> bytes:
    """Return a file's bytes, one more than allowed at most: it may be a pipe, or a device that never ends."""
    if file != "-":
        with Path(file).open("rb") as opened:
            return opened.read(_SIZE_MAX + 1)
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed", hint="name a manifest file")
    return sys.stdin.buffer.read(_SIZE_MAX + 1)


def find_pod(document: dict[str, Any], namespace: str) -> PodPlace | None:
    """Return where the document's pod is, None for a kind that has none.

    `namespace` is the one asked for on the command line, "" if none. Raises InvalidRequest when it contradicts the manifest's or the
    template is not there.
    """
    why = label_fault(namespace) if namespace else ""
    if why:
        raise InvalidRequest(f"-n {shown(namespace)} is no namespace: it {why}")
    path = _TEMPLATES.get(str(document.get("kind")))
    if path is None:
        return None
    metadata = _mapping(document.get("metadata"))
    title = f"{document['kind']}/{metadata.get('name') or metadata.get('generateName') or '?'}"
    own = str(metadata.get("namespace") or "")
    if namespace and own and namespace != own:
        raise InvalidRequest(
            f"{title} is in namespace {own}, not {namespace}", hint="drop -n, or change metadata.namespace"
        )
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{title} has no {'.'.join(path)}")
    return PodPlace(document=document, path=path, title=title, namespace=own or namespace or "default")


def misplaced_annotations(place: PodPlace) -> tuple[str, ...]:
    """Return our annotations that stand on the workload instead of its pod template, where they do nothing."""
    if not place.path:
        return ()
    found: Any = place.document
    names: list[str] = []
    for key in ("", *place.path[:-1]):
        found = found.get(key) if key else found
        annotations = _mapping(_mapping(_mapping(found).get("metadata")).get("annotations"))
        names.extend(str(name) for name in annotations if _is_ours(str(name)))
    return tuple(names)


def pod_of(place: PodPlace) -> dict[str, Any]:
    """Return the pod as its controller would create it."""
    if not place.path:
        return place.pod
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(place.pod)}
    metadata = dict(_mapping(pod.get("metadata")))
    owner = _mapping(place.document.get("metadata")).get("name") or "pod"
    metadata.setdefault("generateName", f"{owner}-")
    pod["metadata"] = metadata
    return pod


def template_of(place: PodPlace, pod: dict[str, Any]) -> dict[str, Any]:
    """Return what stands in the manifest for an injected pod: the inverse of `pod_of`."""
    if not place.path:
        return pod
    template = dict(pod)
    before = place.pod
    for key in ("apiVersion", "kind"):
        if key not in before:
            template.pop(key, None)
    metadata = dict(_mapping(template.get("metadata")))
    if "generateName" not in _mapping(before.get("metadata")):
        metadata.pop("generateName", None)
    if metadata or "metadata" in before:
        template["metadata"] = metadata
    else:
        template.pop("metadata", None)
    return template


def review_of(pod: Mapping[str, Any], namespace: str) -> bytes:
    """Return the AdmissionReview that the API server would send for the creation of a pod."""
    metadata = _mapping(pod.get("metadata"))
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": metadata.get("name") or "",
            "namespace": namespace,
            "operation": "CREATE",
            "userInfo": {"username": "sidemount"},
            "object": pod,
            "oldObject": None,
            "dryRun": True,
        },
    }
    try:
        return json.dumps(review, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"the pod cannot be written as JSON: {error}", hint="quote dates and special numbers"
        ) from error


def _expanded(documents: tuple[Any, ...], file: str) -> Iterator[dict[str, Any]]:
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict) or not document.get("kind"):
            raise InvalidRequest(f"{file}: document {number} is no Kubernetes object: it has no kind")
        kind = str(document["kind"])
        if kind.endswith("List") and isinstance(document.get("items"), list):
            # Items of a typed list need not say their kind.
            implied = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
            items = (
                {**implied, **item} if kind != "List" and isinstance(item, dict) else item
                for item in document["items"]
            )
            yield from _expanded(tuple(items), file)
        else:
            yield document


def _is_ours(annotation: str) -> bool:
    return annotation in (INJECT_ANNOTATION, VOLUMES_ANNOTATION) or annotation.startswith(
        VOLUME_ANNOTATION_PREFIX
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
