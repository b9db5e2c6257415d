"""Other people's webhooks, with the habits that break injectors. Each is a function for `Webhook.call`."""

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

import jsonpatch

Manifest = dict[str, Any]
Call = Callable[[bytes, int], bytes]


def patching(change: Callable[[Manifest], None]) -> Call:
    """Return a webhook that changes the pod in place and answers the difference."""

    def call(review: bytes, timeout_s: int) -> bytes:
        request = json.loads(review)["request"]
        changed = copy.deepcopy(request["object"])
        change(changed)
        patch = jsonpatch.make_patch(request["object"], changed).patch
        response: Manifest = {"uid": request["uid"], "allowed": True}
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        return json.dumps(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        ).encode()

    return call


def strip_restart_policy(pod: Manifest) -> None:
    """Compiled against types older than native sidecars (GCSF#322: knative, spiffe, k8s-image-swapper < 1.5.10)."""
    for container in pod["spec"].get("initContainers") or ():
        container.pop("restartPolicy", None)


def insist_on_first(pod: Manifest) -> None:
    """Puts its own native sidecar first, and moves it back there whenever it is not (istio#53920, kuma#13791)."""
    containers = pod["spec"].get("initContainers") or []
    mine = {"name": "istio-proxy", "image": "istio/proxyv2:1.29", "restartPolicy": "Always"}
    mine = next((container for container in containers if container["name"] == "istio-proxy"), mine)
    rest = [container for container in containers if container["name"] != "istio-proxy"]
    pod["spec"]["initContainers"] = [mine, *rest]


def swap_images(pod: Manifest) -> None:
    """Rewrites every image to a mirror (imageswap#11)."""
    for field in ("initContainers", "containers"):
        for container in pod["spec"].get(field) or ():
            if not container["image"].startswith("mirror.example/"):
                container["image"] = "mirror.example/" + container["image"]


def add_container(pod: Manifest) -> None:
    """Adds an app container that wants the volume too, after we have been called (otel#3349, kyverno#17282)."""
    if all(container["name"] != "late" for container in pod["spec"]["containers"]):
        mount = {"name": "train", "mountPath": "/late"}
        pod["spec"]["containers"].append({"name": "late", "image": "late:1", "volumeMounts": [mount]})


def resize_ours(pod: Manifest) -> None:
    """Sets resources of our containers, as VPA does (autoscaler#7641)."""
    for container in pod["spec"].get("initContainers") or ():
        if container["name"] == "sidemount-train":
            container["resources"] = {
                "requests": {"cpu": "100m", "memory": "96Mi"},
                "limits": {"memory": "256Mi"},
            }


def nothing(pod: Manifest) -> None:
    """Looks and leaves."""
