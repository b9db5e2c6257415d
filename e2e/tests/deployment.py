"""Sidemount on the cluster: the webhook behind a Service, facts from a ConfigMap, and the API server told to ask it."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from certs.authority import create_authority, issue_serving
from certs.hosts import parse_hosts
from certs.pem import render_certificate, render_key
from e2e.cluster.kubectl import Json
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL, OWN_NAMESPACE

SERVICE = "sidemount-webhook"
SOURCES = "/srv"
_PORT = 8443
_LABELS = {"app.kubernetes.io/name": SERVICE}
# Only pods that ask come to the webhook: whatever happens to it, no other pod waits for it.
_ASKS = (
    "has(object.metadata.annotations) && object.metadata.annotations.exists(name, "
    "name == 'sidemount.io/volumes' || name.startsWith('volume.sidemount.io/'))"
)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts."""

    authority: bytes
    serving: bytes
    key: bytes


def make_certificates(now: datetime) -> Certificates:
    """Return an authority's certificate and a serving certificate for the Service."""
    authority = create_authority("sidemount e2e", now=now)
    serving = issue_serving(authority, parse_hosts((f"{SERVICE}.{OWN_NAMESPACE}.svc",)), now=now)
    return Certificates(
        render_certificate(authority.certificate),
        render_certificate(serving.certificate),
        render_key(serving.key),
    )


def driver_class() -> Json:
    """Return the class that serves directories of the node."""
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": "directory"},
        "spec": {
            "deliveries": ["sidecar"],
            "sources": [f"dir://{SOURCES}/**"],
            "namespaces": {},
            "filesystem": "directory",
        },
    }


def objects(
    image: str, namespaces: Iterable[str], certificates: Certificates, replicas: int = 1
) -> tuple[Json, ...]:
    """Return what to apply, but for the webhook's configuration. `namespaces`: those that are open to injection."""
    facts = [driver_class(), *(_labelled(name) for name in namespaces)]
    tls = {"tls.crt": certificates.serving, "tls.key": certificates.key}
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN_NAMESPACE}},
        {
            **_of("v1", "ConfigMap", "sidemount-facts"),
            "data": {"facts.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": facts})},
        },
        {
            **_of("v1", "Secret", "sidemount-tls"),
            "type": "kubernetes.io/tls",
            "data": {name: base64.b64encode(text).decode() for name, text in tls.items()},
        },
        {
            **_of("v1", "Service", SERVICE),
            "spec": {"selector": _LABELS, "ports": [{"port": 443, "targetPort": _PORT}]},
        },
        {
            **_of("apps/v1", "Deployment", SERVICE),
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": _LABELS}, "spec": _webhook_pod(image)},
            },
        },
    )


def configuration(certificates: Certificates) -> Json:
    """Return what makes the API server ask: when pods are created that ask for volumes, in no namespace of the system's."""
    system = [OWN_NAMESPACE, "kube-system", "kube-public", "kube-node-lease"]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "sidemount"},
        "webhooks": [
            {
                "name": "pods.sidemount.io",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": 10,
                "clientConfig": {
                    "service": {"namespace": OWN_NAMESPACE, "name": SERVICE, "path": "/mutate"},
                    "caBundle": base64.b64encode(certificates.authority).decode(),
                },
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["pods"],
                        "operations": ["CREATE"],
                    }
                ],
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": system}
                    ]
                },
                "matchConditions": [{"name": "asks-for-volumes", "expression": _ASKS}],
            }
        ],
    }


def _webhook_pod(image: str) -> Json:
    arguments = [
        "webhook", f"--listen=0.0.0.0:{_PORT}", "--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key", "--facts=/facts",
        f"--image={image}", "--image-pull-policy=IfNotPresent",
    ]  # fmt: skip
    return {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "webhook",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": arguments,
                "ports": [{"containerPort": _PORT}],
                "readinessProbe": {
                    "httpGet": {"scheme": "HTTPS", "port": _PORT, "path": "/readyz"},
                    "periodSeconds": 1,
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": "tls", "mountPath": "/tls", "readOnly": True},
                    {"name": "facts", "mountPath": "/facts", "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "tls", "secret": {"secretName": "sidemount-tls", "defaultMode": 0o440}},
            {"name": "facts", "configMap": {"name": "sidemount-facts"}},
        ],
    }


def _labelled(name: str) -> Json:
    labels = {INJECTION_LABEL: INJECTION_ENABLED}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _of(version: str, kind: str, name: str) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": OWN_NAMESPACE}}
