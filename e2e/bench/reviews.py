"""AdmissionReviews of pods as workloads send them: defaulted, with managedFields, of two sizes."""

import json
import uuid
from typing import Any

Manifest = dict[str, Any]

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def make_reviews(count: int, *, containers: int, size_bytes: int, variables: int = 4) -> list[bytes]:
    """Return reviews of pods of one workload that ask for a volume: same template, other names and uids.

    Each is `size_bytes` long, filled up with an annotation as `kubectl apply` leaves one.
    """
    return [_review(number, containers, size_bytes, variables) for number in range(count)]


def make_envs_review(variables: int) -> bytes:
    """Return the review of a pod with that many environment variables."""
    return _review(0, 1, 0, variables)


def _review(number: int, containers: int, size_bytes: int, variables: int) -> bytes:
    pod = _pod(number, containers, variables)
    request: Manifest = {
        "uid": str(uuid.UUID(int=number + 1)),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:replicaset-controller",
            "groups": [
                "system:serviceaccounts",
                "system:serviceaccounts:kube-system",
                "system:authenticated",
            ],
        },
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    annotations = pod["metadata"]["annotations"]
    annotations["example.com/last-applied"] = ""
    missing = size_bytes - len(_encode(review))
    annotations["example.com/last-applied"] = "x" * max(missing, 0)
    return _encode(review)


def _encode(review: Manifest) -> bytes:
    return json.dumps(review, separators=(",", ":")).encode()


def _pod(number: int, containers: int, variables: int) -> Manifest:
    metadata = {
        "generateName": "trainer-5d8f7c9b6d-",
        "name": f"trainer-5d8f7c9b6d-{number:05x}",
        "creationTimestamp": None,
        "labels": {"app": "trainer", "pod-template-hash": "5d8f7c9b6d"},
        "annotations": {"volume.sidemount.io/train": "dir:///srv/library?readOnly=true"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "trainer-5d8f7c9b6d", "controller": True}
        ],
        "managedFields": [
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:spec": {"f:containers": {f'k:{{"name":"c{n}"}}': {".": {}} for n in range(containers)}}
                },
            }
        ],
    }
    spec = {
        "volumes": [
            {"name": "train", "emptyDir": {}},
            {
                "name": "kube-api-access-x",
                "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {}}]},
            },
        ],
        "containers": [_container(n, variables) for n in range(containers)],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": {}}


def _container(number: int, variables: int) -> Manifest:
    return {
        "name": f"c{number}",
        "image": f"registry.example/team/app-{number}:1.2.3",
        "args": ["--config=/etc/app/config.yaml", "--verbose"],
        "ports": [{"name": "http", "containerPort": 8080 + number, "protocol": "TCP"}],
        "env": [
            {"name": f"VARIABLE_{n}", "value": f"value of variable number {n}"} for n in range(variables)
        ],
        "resources": {
            "limits": {"cpu": "500m", "memory": "256Mi"},
            "requests": {"cpu": "100m", "memory": "128Mi"},
        },
        "volumeMounts": [
            {"name": "train", "mountPath": "/data"},
            {"name": "kube-api-access-x", "readOnly": True, "mountPath": TOKEN_PATH},
        ],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
            "periodSeconds": 10,
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
