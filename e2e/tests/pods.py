"""Pods of tests, and waiting for what becomes of them."""

from collections.abc import Callable, Mapping
from typing import Any

from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.waiting import wait_for
from e2e.tests.images import busybox
from sidemount.model.names import VOLUME_ANNOTATION_PREFIX

READY_S, GONE_S = 240.0, 180.0
_HOSTNAME = "kubernetes.io/hostname"
_TEMPLATES = {"template": "Pod", "jobTemplate": "Job"}
SLEEP = "trap 'exit 0' TERM; {script}; sleep 100000 & wait $!"


def shell(name: str, script: str = ":", **fields: Any) -> Json:
    """Return a container that runs a script and then waits for its end."""
    return task(name, SLEEP.format(script=script), **fields)


def task(name: str, script: str, **fields: Any) -> Json:
    """Return a container that ends with its script."""
    return {"name": name, "image": busybox(), "command": ["sh", "-c", script], **fields}


def pod(
    name: str,
    *containers: Json,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})},
        "spec": {"terminationGracePeriodSeconds": 5, "containers": list(containers), **spec},
    }


def with_volumes(manifest: Json, sources: Mapping[str, str]) -> Json:
    """Return a pod that asks for volumes by annotation: their names, and the URI of each."""
    annotations = {f"{VOLUME_ANNOTATION_PREFIX}{name}": uri for name, uri in sources.items()}
    metadata, spec = manifest["metadata"], manifest["spec"]
    return {
        **manifest,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], **annotations}},
        "spec": {
            **spec,
            "volumes": [*spec.get("volumes", ()), *({"name": name, "emptyDir": {}} for name in sources)],
        },
    }


def mounted(name: str, path: str, **fields: Any) -> Json:
    """Return a container's mount of a volume."""
    return {"name": name, "mountPath": path, **fields}


def controller(version: str, kind: str, name: str, made: Json, **spec: Any) -> Json:
    """Return an object whose template is a pod."""
    template = {"metadata": made["metadata"], "spec": made["spec"]}
    whole = {**spec, "template": template}
    if kind in ("Deployment", "StatefulSet"):
        whole["selector"] = {"matchLabels": made["metadata"]["labels"]}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": whole}


class Namespace:
    """One test's namespace: what is created in it goes with it. Its pods are on `node`, where that is given."""

    def __init__(self, api: Kubectl, name: str, node: str = "") -> None:
        self.api = api
        self.name = name
        self._node = node

    def create(self, manifest: Json) -> Json:
        """Create an object here and return it as the API server has it. Raises KubectlFailed."""
        metadata = {**manifest["metadata"], "namespace": self.name}
        return self.api.create({**self._placed(manifest), "metadata": metadata})

    def _placed(self, manifest: Json) -> Json:
        """Return a manifest whose pods, its own or those of its template, are on the node."""
        if not self._node or "spec" not in manifest:
            return manifest
        spec = manifest["spec"]
        if manifest["kind"] == "Pod":
            return {**manifest, "spec": {**spec, "nodeSelector": {_HOSTNAME: self._node}}}
        for key in ("template", "jobTemplate"):
            if key in spec:
                inner = self._placed({"kind": _TEMPLATES[key], **spec[key]})
                inner.pop("kind")
                return {**manifest, "spec": {**spec, key: inner}}
        return manifest

    def run(self, manifest: Json) -> Json:
        """Create a pod and wait until all of it is ready."""
        self.create(manifest)
        return self.ready(manifest["metadata"]["name"])

    def ready(self, name: str) -> Json:
        """Wait until a pod is ready; return it."""
        return self.until(name, is_ready, "ready")

    def until(
        self, name: str, condition: Callable[[Json], bool], what: str, timeout_s: float = READY_S
    ) -> Json:
        """Wait until a condition of a pod holds; return the pod. On failure the message is what kubectl describes."""

        def look() -> Json | None:
            found = self.pod(name)
            return found if found is not None and condition(found) else None

        found = wait_for(look, timeout_s)
        assert found is not None, f"{name} is not {what} after {timeout_s:g} s\n{self.described(name)}"
        return found

    def until_object(
        self,
        kind: str,
        name: str,
        condition: Callable[[Json], bool],
        what: str,
        timeout_s: float = READY_S,
    ) -> Json:
        """Wait until a condition of an object of any kind holds; return it. On failure all pods here are described."""

        def look() -> Json | None:
            found = self.api.get(kind, name, self.name)
            return found if found is not None and condition(found) else None

        found = wait_for(look, timeout_s)
        assert found is not None, f"{kind} {name} is not {what} after {timeout_s:g} s\n" + "\n".join(
            self.described(each["metadata"]["name"]) for each in self.pods()
        )
        return found

    def pods(self, selector: str = "") -> list[Json]:
        """Return the pods here."""
        return self.api.items("pods", self.name, selector)

    def pod(self, name: str) -> Json | None:
        """Return a pod as it is now."""
        return self.api.get("pod", name, self.name)

    def delete(self, name: str, *arguments: str) -> None:
        """Delete a pod and wait until it is gone."""
        self.api.delete("pod", name, self.name, *arguments)
        gone = wait_for(lambda: self.pod(name) is None, GONE_S)
        assert gone, f"{name} is not gone after {GONE_S:g} s\n{self.described(name)}"

    def exec(
        self, name: str, container: str, *argv: str, text: str | None = None, timeout_s: float = 60.0
    ) -> str:
        """Run a command in a container, with `text` to read, and return what it printed. Raises KubectlFailed."""
        where = (f"--namespace={self.name}", f"--container={container}", name)
        stdin = () if text is None else ("--stdin",)
        return self.api.run("exec", *stdin, *where, "--", *argv, text=text, timeout_s=timeout_s)

    def logs(self, name: str, container: str) -> str:
        """Return what a container has printed."""
        return self.api.run("logs", f"--namespace={self.name}", name, f"--container={container}")

    def printed(self, name: str, container: str, expected: str) -> None:
        """Wait until a container has printed exactly this: one that is ready may not have come to it yet."""
        is_so = wait_for(lambda: self.logs(name, container) == expected, READY_S)
        assert is_so, (self.logs(name, container), expected, self.described(name))

    def described(self, name: str) -> str:
        """Return what a person would look at first."""
        told = []
        for arguments in (
            ("describe", "pod", name),
            ("logs", name, "--all-containers", "--prefix", "--tail=15"),
        ):
            try:
                told.append(self.api.run(arguments[0], f"--namespace={self.name}", *arguments[1:]))
            except KubectlFailed as fault:
                told.append(str(fault))
        return "\n".join(told)


def is_ready(found: Json) -> bool:
    """Tell whether a pod is ready."""
    return _has_condition(found, "Ready")


def has_ended(found: Json) -> bool:
    """Tell whether a pod has done its work, well or not."""
    return found["status"].get("phase") in ("Succeeded", "Failed")


def is_ending(found: Json) -> bool:
    """Tell whether an object is deleted, and only waits for its end."""
    return "deletionTimestamp" in found["metadata"]


def is_complete(found: Json) -> bool:
    """Tell whether a Job is complete."""
    return _has_condition(found, "Complete")


def has_failed(found: Json) -> bool:
    """Tell whether a Job is given up."""
    return _has_condition(found, "Failed")


def _has_condition(found: Json, wanted: str) -> bool:
    conditions = found.get("status", {}).get("conditions", ())
    return any(each["type"] == wanted and each["status"] == "True" for each in conditions)


def container_ids(found: Json) -> dict[str, str]:
    """Return which containers a pod has now: another number is another container."""
    status = found["status"]
    both = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return {each["name"]: each.get("containerID", "") for each in both}


def restarts(found: Json) -> dict[str, int]:
    """Return how often each container was started anew."""
    status = found["status"]
    both = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return {each["name"]: each["restartCount"] for each in both}
