"""The objects of `manifests/`, read as files: what kustomize makes of them is for the end-to-end tests."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
MANIFESTS = ROOT / "manifests"

Json = dict[str, Any]


@lru_cache(maxsize=1)
def documents() -> tuple[tuple[Path, Json], ...]:
    """Return every document of every file, with the file."""
    found = []
    for path in sorted(MANIFESTS.rglob("*.yaml")):
        found += [
            (path, document)
            for document in yaml.safe_load_all(path.read_text())
            if document is not None and "kind" in document  # a driver description has none
        ]
    return tuple(found)


def objects(kind: str) -> list[Json]:
    """Return all objects of a kind, patches of overlays included."""
    return [document for _, document in documents() if document["kind"] == kind]


def of_base(kind: str, name: str) -> Json:
    """Return one object of the base."""
    (found,) = (
        document
        for path, document in documents()
        if path.parent.name == "base" and document["kind"] == kind and document["metadata"]["name"] == name
    )
    return found


def deployment() -> Json:
    """Return the webhook's Deployment without its certificates."""
    return of_base("Deployment", "webhook")


def sidecar() -> Json:
    """Return the patch that gives it `certs rotate`."""
    (found,) = (
        document
        for path, document in documents()
        if path == MANIFESTS / "components/rotated-certificates/sidecar.yaml"
    )
    return found


def observer() -> Json:
    """Return the observer's Deployment."""
    (found,) = (
        document
        for path, document in documents()
        if path == MANIFESTS / "components/observer/deployment.yaml"
    )
    return found


def csi_controller() -> Json:
    """Return the controller's Deployment, without what the component snapshots adds."""
    (found,) = (
        document
        for path, document in documents()
        if path == MANIFESTS / "components/csi/controller.yaml" and document["kind"] == "Deployment"
    )
    return found


def csi_node() -> Json:
    """Return the node service's DaemonSet."""
    (found,) = objects("DaemonSet")
    return found


def pod_spec(workload: Json) -> Json:
    """Return the pod of a workload."""
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def class_schema() -> Json:
    """Return the schema of FuseDriverClass."""
    (version,) = of_base("CustomResourceDefinition", "fusedriverclasses.sidemount.io")["spec"]["versions"]
    schema: Json = version["schema"]["openAPIV3Schema"]
    return schema
