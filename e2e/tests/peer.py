"""Other people's mutating webhooks, real ones: `python -m e2e.tests.peer HOST PORT CERTIFICATE KEY`, one habit at each path.

Habits that the unit tests know too come from `tests.webhook.other_webhooks`; those here need a real API server.
"""

import ssl
import sys
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.webhook.other_webhooks import Call, insist_on_first, patching

Manifest = dict[str, Any]

# What a container could say before Kubernetes 1.27.
_OLD_CONTAINER = frozenset(
    [
        "name",
        "image",
        "command",
        "args",
        "workingDir",
        "ports",
        "envFrom",
        "env",
        "resources",
        "volumeMounts",
        "volumeDevices",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "imagePullPolicy",
        "securityContext",
        "stdin",
        "stdinOnce",
        "tty",
    ]
)
_OLD_MOUNT = frozenset(["name", "readOnly", "mountPath", "subPath", "mountPropagation", "subPathExpr"])
_PROXY = {"image": "istio/proxyv2:1.29", "args": ["proxy", "sidecar"]}


def _containers(pod: Manifest) -> list[Manifest]:
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def round_trip_old_type(pod: Manifest) -> None:
    """Read into a type of Kubernetes 1.26 and write it again: what that type does not know is gone (GCSF#322)."""
    for section in ("initContainers", "containers"):
        for container in pod["spec"].get(section) or ():
            for name in set(container) - _OLD_CONTAINER:
                del container[name]
            for mount in container.get("volumeMounts") or ():
                for name in set(mount) - _OLD_MOUNT:
                    del mount[name]


def strip_volumes(pod: Manifest) -> None:
    """Leave volumes that a policy of its own does not know out, and every mount of them with it."""
    spec = pod["spec"]
    gone = {each["name"] for each in spec.get("volumes") or () if each["name"].startswith("sidemount")}
    spec["volumes"] = [each for each in spec.get("volumes") or () if each["name"] not in gone]
    for container in _containers(pod):
        container["volumeMounts"] = [
            mount for mount in container.get("volumeMounts") or () if mount["name"] not in gone
        ]


def strip_propagation(pod: Manifest) -> None:
    """Leave mountPropagation out, as a policy that forbids it does."""
    for container in _containers(pod):
        for mount in container.get("volumeMounts") or ():
            mount.pop("mountPropagation", None)


def strip_sidecars(pod: Manifest) -> None:
    """Leave native sidecars out that its template does not know (istio#54562)."""
    spec = pod["spec"]
    spec["initContainers"] = [
        each for each in spec.get("initContainers") or () if each.get("restartPolicy") != "Always"
    ]


def strip_annotations(pod: Manifest) -> None:
    """Leave annotations of domains that it does not know out."""
    annotations = pod["metadata"].get("annotations") or {}
    pod["metadata"]["annotations"] = {
        key: value for key, value in annotations.items() if "sidemount.io" not in key
    }


def strip_privileges(pod: Manifest) -> None:
    """Harden every container."""
    for container in _containers(pod):
        container["securityContext"] = {"allowPrivilegeEscalation": False, "privileged": False}


def add_sidecar(pod: Manifest) -> None:
    """Add a native sidecar in front and a plain one behind; the plain one shows the user's volume too (otel#3349)."""
    spec = pod["spec"]
    if all(each["name"] != "agent" for each in spec.get("initContainers") or ()):
        agent = {"name": "agent", "image": "agent:1", "restartPolicy": "Always"}
        spec["initContainers"] = [agent, *(spec.get("initContainers") or ())]
    if all(each["name"] != "shipper" for each in spec["containers"]):
        mount = {"name": "books", "mountPath": "/var/log/books"}
        spec["containers"].append({"name": "shipper", "image": "shipper:1", "volumeMounts": [mount]})


def move_mounts(pod: Manifest) -> None:
    """Show the user's volume at another path."""
    for container in pod["spec"]["containers"]:
        for mount in container.get("volumeMounts") or ():
            if mount["mountPath"] == "/data":
                mount["mountPath"] = "/mnt/data"


def add_mounts(pod: Manifest) -> None:
    """Show every volume of the user's to every app container a second time."""
    for container in pod["spec"]["containers"]:
        mounts = container.setdefault("volumeMounts", [])
        if all(mount["mountPath"] != "/copy" for mount in mounts):
            mounts.append({"name": "books", "mountPath": "/copy"})


def rename_volume(pod: Manifest) -> None:
    """Give the user's volume another name, in the list of volumes and wherever it is mounted."""
    for volume in pod["spec"].get("volumes") or ():
        if volume["name"] == "books":
            volume["name"] = "library"
    for container in _containers(pod):
        for mount in container.get("volumeMounts") or ():
            if mount["name"] == "books":
                mount["name"] = "library"


def inject_mesh(pod: Manifest) -> None:
    """Do as Istio's injector with native sidecars: its own two containers first, made anew from the template in each round.

    Source: istio.io, Installing the Sidecar; pkg/kube/inject/webhook.go, reapplyOverwrittenContainers and postProcessPod.
    """
    spec = pod["spec"]
    names = {"istio-init", "istio-proxy"}
    rest = [each for each in spec.get("initContainers") or () if each["name"] not in names]
    mounts = [{"name": "istio-envoy", "mountPath": "/etc/istio/proxy"}]
    spec["initContainers"] = [
        {
            "name": "istio-init",
            "image": _PROXY["image"],
            "args": ["istio-iptables"],
            "securityContext": {"runAsNonRoot": False, "runAsUser": 0, "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]}},
        },
        {
            **_PROXY,
            "name": "istio-proxy",
            "restartPolicy": "Always",
            "startupProbe": {"httpGet": {"path": "/healthz/ready", "port": 15021}, "periodSeconds": 1, "failureThreshold": 600},
            "lifecycle": {"preStop": {"exec": {"command": ["pilot-agent", "request", "--debug-port=15020", "POST", "drain"]}}},
            "volumeMounts": mounts,
        },
        *rest,
    ]  # fmt: skip
    volumes = spec.setdefault("volumes", [])
    if all(each["name"] != "istio-envoy" for each in volumes):
        spec["volumes"] = [{"name": "istio-envoy", "emptyDir": {"medium": "Memory"}}, *volumes]
    pod["metadata"].setdefault("annotations", {})["sidecar.istio.io/status"] = '{"revision":"default"}'
    pod["metadata"].setdefault("labels", {})["security.istio.io/tlsMode"] = "istio"


def resize(pod: Manifest) -> None:
    """Set the resources of every container that is not an app's, as VPA may (autoscaler#7641)."""
    for container in pod["spec"].get("initContainers") or ():
        container["resources"] = {"requests": {"cpu": "33m", "memory": "80Mi"}, "limits": {"memory": "333Mi"}}


def mark(pod: Manifest) -> None:
    """Say that it was here."""
    pod["metadata"].setdefault("annotations", {})["peer.example.com/was-here"] = "true"


HABITS: Mapping[str, Callable[[Manifest], None]] = {
    "old-type": round_trip_old_type,
    "strip-volumes": strip_volumes,
    "strip-propagation": strip_propagation,
    "strip-sidecars": strip_sidecars,
    "strip-annotations": strip_annotations,
    "strip-privileges": strip_privileges,
    "first": insist_on_first,
    "sidecar": add_sidecar,
    "move-mounts": move_mounts,
    "add-mounts": add_mounts,
    "rename-volume": rename_volume,
    "mesh": inject_mesh,
    "resize": resize,
    "mark": mark,
}
"""Each habit by its path and label."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    calls: Mapping[str, Call]

    def do_POST(self) -> None:
        """Answer a review."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.calls[self.path.partition("?")[0].strip("/")](body, 10)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def serve(host: str, port: int, certificate: str, key: str) -> None:
    """Serve until killed."""
    _Handler.calls = {name: patching(habit) for name, habit in HABITS.items()}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer((host, port), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
