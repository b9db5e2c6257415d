"""PodRef: the pod that uses a volume, as kubelet names it in the volume context (podInfoOnMount). What is told of the volume is told there.

Source: https://kubernetes-csi.github.io/docs/pod-info.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.model.names import label_fault, subdomain_fault

_PREFIX = "csi.storage.k8s.io/pod."
_UID = re.compile(r"[0-9A-Za-z-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """One pod. All parts are well-formed names."""

    namespace: str
    name: str
    uid: str


def pod_of(context: Mapping[str, str]) -> PodRef | None:
    """Return the pod that a volume context names; None if it names none, or what can be none."""
    return _pod_ref(*(context.get(f"{_PREFIX}{part}", "") for part in ("namespace", "name", "uid")))


def encode_pod_ref(pod: PodRef) -> dict[str, str]:
    """Render for a record."""
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def decode_pod_ref(raw: Any) -> PodRef | None:
    """Parse what `encode_pod_ref` wrote; None for anything else: nothing depends on it but what is told."""
    if not isinstance(raw, dict):
        return None
    return _pod_ref(*(raw.get(part, "") for part in ("namespace", "name", "uid")))


def _pod_ref(namespace: Any, name: Any, uid: Any) -> PodRef | None:
    if not (isinstance(namespace, str) and isinstance(name, str) and isinstance(uid, str)):
        return None
    if label_fault(namespace) or subdomain_fault(name) or not _UID.fullmatch(uid):
        return None
    return PodRef(namespace=namespace, name=name, uid=uid)
