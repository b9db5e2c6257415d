"""Pods and reviews that the tests of the server send."""

import json
import uuid
from typing import Any

Manifest = dict[str, Any]


def make_pod(source: str | None = "dir:///srv/library?readOnly=true", **spec: Any) -> Manifest:
    """Return a pod as a controller makes it: no name, no namespace. With a `source`, it asks for the volume `train`."""
    annotations = {"volume.sidemount.io/train": source} if source else {"team": "ml"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "trainer-", "annotations": annotations, "labels": {"app": "trainer"}},
        "spec": {
            "volumes": [{"name": "train", "emptyDir": {}}],
            "containers": [
                {"name": "app", "image": "app:1", "volumeMounts": [{"name": "train", "mountPath": "/data"}]}
            ],
            **spec,
        },
    }


def make_review(pod: Any, *, namespace: str = "default", operation: Any = "CREATE", **request: Any) -> bytes:
    """Return the bytes of a review of a pod."""
    return json.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": str(uuid.uuid4()),
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": namespace,
                "operation": operation,
                "object": pod,
                "oldObject": None,
                "dryRun": False,
                **request,
            },
        }
    ).encode()
