"""Record + settings → the manifest of its mount pod: one unprivileged pod a target, found again by its name. Pure; no secret is in it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from csi.launch_plan import POD_SECRETS_PATH
from csi.pod_launch import PodLaunch
from csi.records import Record
from sidemount.model.amounts import merge
from sidemount.model.daemon_container import (
    DAEMON_COMMAND,
    DAEMON_LIMITS,
    DAEMON_REQUESTS,
    MESSAGE_POLICY,
    RUN_SIZE,
    daemon_security,
    liveness_probe,
)
from sidemount.model.names import CACHE_PATH, CSI_DRIVER, INJECT_ANNOTATION, RUN_PATH, SOURCE_PATH

COMM_VOLUME = "comm"  # reached through kubelet's directory of the pod: `csi.comm_directory`
CONTAINER = "daemon"
INSTANCE_LABEL = "sidemount.io/mount-pod"
NODE_LABEL = "sidemount.io/node"
VOLUME_LABEL = "sidemount.io/volume"
CLASS_LABEL = "sidemount.io/class"
DIGEST_ANNOTATION = "sidemount.io/manifest"
_CACHE_VOLUME = "cache"
_SOURCE_VOLUME = "source"
_LABEL_MAX = 63
_TOLD_MAX = 1024
_GRACE_SLACK_S = 5  # the daemon gives up before kubelet kills it


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the operator decides about mount pods.

    `instance` tells this plugin's pods from another's on the same node. `grace_s`: how long a pod that is told to end goes on serving a
    volume that is still published: a node is drained of the applications first.
    """

    node_name: str
    instance: str
    namespace: str
    namespace_baseline: str
    image: str
    image_prefix: str = ""
    priority_class: str = ""
    grace_s: int = 600

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Every namespace that has pods of ours."""
        return tuple(dict.fromkeys((self.namespace, self.namespace_baseline)))

    @property
    def selector(self) -> str:
        """What picks this plugin's pods on this node."""
        return f"{INSTANCE_LABEL}={self.instance},{NODE_LABEL}={label_value(self.node_name)}"


def namespace_of(record: Record, settings: PodSettings) -> str:
    """Return where the record's pod is: Pod Security's level of the namespace must allow it."""
    return settings.namespace_baseline if _needs_baseline(record) else settings.namespace


def render_mount_pod(record: Record, settings: PodSettings) -> dict[str, Any]:
    """Return the manifest. Raises AssertionError for a record that is not to be in a pod."""
    launch = record.launch.pod
    if launch is None:
        raise AssertionError(f"{record.name}: its launcher is another one")
    metadata = _metadata(record, settings)
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": _spec(record, launch, settings),
    }
    metadata["annotations"][DIGEST_ANNOTATION] = digest_of(manifest)
    return manifest


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return what tells two manifests of one name apart."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def label_value(text: str) -> str:
    """Return a text as a label can hold it: itself where that is possible, else its hash."""
    is_plain = len(text) <= _LABEL_MAX and all(char.isalnum() or char in "-_." for char in text)
    if is_plain and text.isascii() and text[:1].isalnum() and text[-1:].isalnum():
        return text
    return _hashed(text)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _needs_baseline(record: Record) -> bool:
    launch = record.launch
    is_more = record.spec.uid == 0 or set(launch.capabilities) - {"NET_BIND_SERVICE"}
    return bool(is_more) or (launch.pod is not None and bool(launch.pod.nfs_path))


def _metadata(record: Record, settings: PodSettings) -> dict[str, Any]:
    return {
        "name": record.name,
        "namespace": namespace_of(record, settings),
        "labels": {
            "app.kubernetes.io/name": "sidemount-mount",
            "app.kubernetes.io/managed-by": CSI_DRIVER,
            INSTANCE_LABEL: settings.instance,
            NODE_LABEL: label_value(settings.node_name),
            VOLUME_LABEL: _hashed(record.volume_id),
            CLASS_LABEL: label_value(record.spec.driver_class),
        },
        "annotations": {
            "sidemount.io/volume-id": record.volume_id[:_TOLD_MAX],
            "sidemount.io/target": record.target[:_TOLD_MAX],
            INJECT_ANNOTATION: "false",
            # Whoever empties nodes has to empty them of the applications first.
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        },
    }


def _spec(record: Record, launch: PodLaunch, settings: PodSettings) -> dict[str, Any]:
    uid = record.spec.uid
    spec: dict[str, Any] = {
        # By affinity, not by nodeName: so the scheduler counts it, and makes room for it.
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {
                                    "key": "metadata.name",
                                    "operator": "In",
                                    "values": [settings.node_name],
                                }
                            ]
                        }
                    ]
                }
            }
        },
        "automountServiceAccountToken": False,
        "containers": [_container(record, launch, settings)],
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "securityContext": {
            "runAsGroup": uid,
            "runAsNonRoot": uid != 0,
            "runAsUser": uid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": settings.grace_s,
        # Where an application runs its volume has to run, whatever the node is tainted with meanwhile.
        "tolerations": [{"operator": "Exists"}],
        "volumes": _volumes(record, launch),
    }
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if launch.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in launch.pull_secrets]
    return spec


def _container(record: Record, launch: PodLaunch, settings: PodSettings) -> dict[str, Any]:
    args = ["--run-dir", RUN_PATH, "--secrets", POD_SECRETS_PATH]
    args += ["--stop-seconds", str(max(1, settings.grace_s - _GRACE_SLACK_S))]
    mounts: list[dict[str, Any]] = [{"name": COMM_VOLUME, "mountPath": RUN_PATH}]
    if launch.cache_size:
        args += ["--cache", CACHE_PATH]
        mounts.append({"name": _CACHE_VOLUME, "mountPath": CACHE_PATH})
    if launch.nfs_path:
        args += ["--source", SOURCE_PATH]
        mounts.append({"name": _SOURCE_VOLUME, "mountPath": SOURCE_PATH, "readOnly": record.spec.read_only})
    prefix = f"{settings.image_prefix.rstrip('/')}/" if settings.image_prefix else ""
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": f"{prefix}{launch.image or settings.image}",
        "command": list(DAEMON_COMMAND),
        "args": args,
        "livenessProbe": liveness_probe(),
        "resources": merge([(DAEMON_REQUESTS, DAEMON_LIMITS), (launch.requests, launch.limits)]).render(),
        "securityContext": daemon_security(record.spec.uid, record.launch.capabilities),
        "terminationMessagePolicy": MESSAGE_POLICY,
        "volumeMounts": mounts,
    }
    if launch.pull_policy:
        container["imagePullPolicy"] = launch.pull_policy
    return container


def _volumes(record: Record, launch: PodLaunch) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": COMM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": RUN_SIZE}}
    ]
    if launch.cache_size:
        volumes.append({"name": _CACHE_VOLUME, "emptyDir": {"sizeLimit": launch.cache_size}})
    if launch.nfs_path:
        nfs: dict[str, Any] = {"server": launch.nfs_server, "path": launch.nfs_path}
        if record.spec.read_only:
            nfs["readOnly"] = True
        volumes.append({"name": _SOURCE_VOLUME, "nfs": nfs})
    return volumes
