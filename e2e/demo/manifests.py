"""The demo's facts and pods."""

from pathlib import Path
from typing import Any

NAMESPACE = "demo"


def write_facts(directory: Path, library: Path) -> None:
    """Write what the webhook knows of the cluster: one labelled namespace, one class that serves the library."""
    directory.mkdir()
    (directory / "facts.yaml").write_text(
        f"""\
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels: {{sidemount.io/injection: enabled}}
---
apiVersion: sidemount.io/v1alpha1
kind: FuseDriverClass
metadata: {{name: library}}
spec:
  deliveries: [sidecar]
  sources: ["dir://{library}"]
  namespaces: {{}}
  filesystem: directory
"""
    )


def reader_pod(library: Path) -> dict[str, Any]:
    """Return the pod that is injected: an init container and two apps on one volume, one at a sub-path."""
    sleep = ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "reader",
            "namespace": NAMESPACE,
            "annotations": {"volume.sidemount.io/books": f"dir://{library}", "example.com/owner": "you"},
        },
        "spec": {
            "volumes": [{"name": "books", "emptyDir": {}}, {"name": "notes", "emptyDir": {}}],
            "initContainers": [
                {
                    "name": "index",
                    "image": "busybox",
                    "command": [
                        "sh",
                        "-c",
                        "ls /books >/notes/index && md5sum /books/shelf/noise.bin >/notes/sum",
                    ],
                    "volumeMounts": [
                        {"name": "books", "mountPath": "/books", "readOnly": True},
                        {"name": "notes", "mountPath": "/notes"},
                    ],
                }
            ],
            "containers": [
                {
                    "name": "reader",
                    "image": "busybox",
                    "command": sleep,
                    "securityContext": {"runAsUser": 1000, "runAsGroup": 1000},
                    "volumeMounts": [
                        {"name": "books", "mountPath": "/books", "readOnly": True},
                        {"name": "notes", "mountPath": "/notes"},
                    ],
                },
                {
                    "name": "writer",
                    "image": "busybox",
                    "command": sleep,
                    "securityContext": {"runAsUser": 1001, "runAsGroup": 1001},
                    "volumeMounts": [{"name": "books", "mountPath": "/inbox", "subPath": "incoming"}],
                },
            ],
            "terminationGracePeriodSeconds": 10,
        },
    }


def stranger_pod() -> dict[str, Any]:
    """Return a pod that asks for a source that no class serves."""
    pod = bystander_pod()
    pod["metadata"] = {
        "name": "stranger",
        "namespace": NAMESPACE,
        "annotations": {"volume.sidemount.io/keys": "dir:///etc"},
    }
    pod["spec"]["volumes"] = [{"name": "keys", "emptyDir": {}}]
    return pod


def bystander_pod() -> dict[str, Any]:
    """Return a pod that does not ask."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bystander", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "app", "image": "busybox", "command": ["true"]}]},
    }
