"""Pod manifests for the tests of podlet: busybox, short, whatever a test adds."""

from typing import Any

IMAGE = "busybox"
# Runs until SIGTERM, and then ends with 0 at once. Says when its traps are set: before that a container's
# first process ignores SIGTERM. The termination log is the one file that is always its own and writable.
UNTIL_TERM = "trap 'exit 0' TERM; {script}; echo up > /dev/termination-log; sleep 1000 & wait $!"

Json = dict[str, Any]

SETTLED: Json = {
    "exec": {"command": ["test", "-s", "/dev/termination-log"]},
    "periodSeconds": 1,
    "timeoutSeconds": 5,
}


def container(name: str, script: str = ":", **fields: Any) -> Json:
    """Return a container that runs a script, then waits for SIGTERM."""
    command = ["sh", "-c", UNTIL_TERM.format(script=script)]
    return {"name": name, "image": IMAGE, "command": command, "readinessProbe": SETTLED, **fields}


def task(name: str, script: str = ":", **fields: Any) -> Json:
    """Return a container that runs a script and ends with it."""
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **fields}


def sidecar(name: str, script: str = ":", **fields: Any) -> Json:
    """Return a native sidecar that runs a script, then waits for SIGTERM."""
    return {**container(name, script, **fields), "restartPolicy": "Always"}


def mount(volume: str, path: str, **fields: Any) -> Json:
    """Return a volumeMount."""
    return {"name": volume, "mountPath": path, **fields}


def pod(
    *containers: Json, inits: list[Json] | None = None, volumes: list[Json] | None = None, **spec: Any
) -> Json:
    """Return a Pod with a short grace."""
    metadata = {"name": "pod", "namespace": "ns", "labels": {"app": "x"}, "annotations": {"note": "a\nb"}}
    whole: Json = {
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "containers": list(containers),
        "initContainers": inits or [],
        "volumes": volumes or [],
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def exec_probe(script: str, **fields: Any) -> Json:
    """Return a probe that asks every period of a second (times the node's scale)."""
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, **fields}
