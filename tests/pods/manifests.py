"""Manifests: pods that ask for volumes, and what the webhook knows of the cluster."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]

NAMESPACE = "ml"
BUSYBOX = "busybox"
PYTHON = "python"
APP_USER = 1000
# A first process ignores SIGTERM until it has a handler: it counts as ready when it has.
_UNTIL_TERM = "trap 'exit 0' TERM; {script}; echo up >/dev/termination-log; sleep 1000 & wait $!"
SETTLED: Json = {
    "exec": {"command": ["test", "-s", "/dev/termination-log"]},
    "periodSeconds": 1,
    "timeoutSeconds": 5,
}
AS_USER: Json = {"runAsUser": APP_USER, "runAsGroup": APP_USER, "capabilities": {"drop": ["ALL"]}}


def shell(name: str, script: str = ":", **fields: Any) -> Json:
    """Return a container of user 1000 that runs a shell script, then waits for SIGTERM."""
    command = ["sh", "-c", _UNTIL_TERM.format(script=script)]
    return _container(name, BUSYBOX, command, {"readinessProbe": SETTLED, **fields})


def task(name: str, script: str, **fields: Any) -> Json:
    """Return a container of user 1000 that runs a shell script and ends with it."""
    return _container(name, BUSYBOX, ["sh", "-c", script], fields)


def program(name: str, file: Path, *arguments: str, **fields: Any) -> Json:
    """Return a container of user 1000 that runs a Python program; ready when the program says so."""
    command = ["python3", "-S", "-u", "-c", file.read_text(), *arguments]
    return _container(name, PYTHON, command, {"readinessProbe": SETTLED_PROGRAM, **fields})


SETTLED_PROGRAM: Json = {
    "exec": {"command": ["python3", "-S", "-c", "import os; raise SystemExit(not os.stat('/dev/termination-log').st_size)"]},
    "periodSeconds": 1,
    "timeoutSeconds": 5,
}  # fmt: skip


def _container(name: str, image: str, command: list[str], fields: Mapping[str, Any]) -> Json:
    return {"name": name, "image": image, "command": command, "securityContext": AS_USER, **fields}


def mount(volume: str, path: str, **fields: Any) -> Json:
    """Return a volumeMount."""
    return {"name": volume, "mountPath": path, **fields}


def pod(
    volumes: Mapping[str, str],
    *containers: Json,
    inits: tuple[Json, ...] = (),
    scratch: tuple[str, ...] = (),
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod that asks for volumes (name → source URI); `scratch` names plain emptyDirs."""
    asked = {f"volume.sidemount.io/{name}": source for name, source in volumes.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", "namespace": NAMESPACE, "annotations": {**asked, **(annotations or {})}},
        "spec": {
            "terminationGracePeriodSeconds": 10,
            "volumes": [{"name": name, "emptyDir": {}} for name in (*volumes, *scratch)],
            "initContainers": list(inits),
            "containers": list(containers),
            **spec,
        },
    }


def namespace(name: str = NAMESPACE) -> Json:
    """Return a namespace that allows injection."""
    labels = {"sidemount.io/injection": "enabled"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def directory_class(source: str, **spec: Any) -> Json:
    """Return the class that serves every directory beneath `source`."""
    own = {
        "deliveries": ["sidecar"],
        "sources": [f"dir://{source}/**"],
        "namespaces": {},
        "filesystem": "directory",
    }
    return driver_class("directory", {**own, **spec})


def driver_class(name: str, spec: Json) -> Json:
    """Return a FuseDriverClass."""
    return {
        "apiVersion": "sidemount.io/v1alpha1",
        "kind": "FuseDriverClass",
        "metadata": {"name": name},
        "spec": spec,
    }
