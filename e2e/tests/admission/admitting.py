"""An API server with Sidemount's manifests on it, and the webhook that it calls: a process beside it, with the rights of the account."""

import base64
import contextlib
import copy
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.kubectl import Json, Kubectl, KubectlFailed
from e2e.cluster.namespaces import entering_network
from e2e.cluster.places import SOURCE
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.rendered import MANIFESTS, as_text, render
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL, OWN_NAMESPACE
from tests.webhook.running import make_certificates

MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
OPEN = {INJECTION_LABEL: INJECTION_ENABLED}
WAIT_S = 120.0
_PORT = 9443
_STOP_S = 40.0
_CALL_S = 10


class WebhookProcess:
    """A webhook on the cluster's network, and its caller there. It is started and ended as often as a test likes."""

    def __init__(self, cluster: RunningCluster, directory: Path, kubeconfig: Path) -> None:
        self._within = entering_network(cluster.pid)
        self._kubeconfig = kubeconfig
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.files = make_certificates(directory / "tls")
        self.log = directory / "log"

    def start(self, *arguments: str) -> None:
        """Start it and wait until it is ready."""
        argv = [
            *self._within, sys.executable, "-m", "webhook",
            "--listen", f"127.0.0.1:{_PORT}",
            "--tls-cert", str(self.files.serving),
            "--tls-key", str(self.files.serving_key),
            "--facts-from", "cluster",
            "--kubeconfig", str(self._kubeconfig),
            "--lame-duck-seconds", "0",
            *arguments,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, cwd=SOURCE, stdout=subprocess.DEVNULL, stderr=log)
        assert wait_for(lambda: self.call("/readyz")[0] == 200, WAIT_S), self.told()

    def end(self) -> None:
        """End it, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        process.kill()
        process.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def call(self, path: str, body: bytes = b"") -> tuple[int, str]:
        """Return status and text of an answer; status 0 when there is none."""
        asked = self._directory / "asked"
        asked.write_bytes(body)
        posted = ["-H", "Content-Type: application/json", "--data-binary", f"@{asked}"] if body else []
        done = subprocess.run(
            [
                *self._within, "curl", "-sS", "-m", "30", "-w", "\n%{http_code}",
                "--cacert", str(self.files.authority), *posted, f"https://localhost:{_PORT}{path}",
            ],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        text, _, status = done.stdout.rpartition("\n")
        return int(status or 0), text

    def told(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-4000:]


class Admitting:
    """The server, its webhook, and what a test does there."""

    def __init__(self, cluster: RunningCluster, directory: Path) -> None:
        self.cluster = cluster
        self.api = cluster.kubectl()
        objects = render(self.api, MANIFESTS / "overlays/default")
        self._configurations = [each for each in objects if each["kind"] in (MUTATING, VALIDATING)]
        self.bindings = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicyBinding"]
        others = [each for each in objects if each["kind"] not in (MUTATING, VALIDATING)]
        apply(self.api, *others)
        self.webhook = WebhookProcess(cluster, directory, self._account(directory))
        assert wait_for(self._has_classes, WAIT_S), "our type is not served"
        self.webhook.start()
        self.call_webhook()

    def _account(self, directory: Path) -> Path:
        """Return a kubeconfig of the webhook's own account: nobody gives the process more than its role does."""
        token = self.api.run("create", "token", "webhook", f"--namespace={OWN_NAMESPACE}", "--duration=24h")
        config = yaml.safe_load(self.cluster.places.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token.strip()}
        path = directory / "kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def _has_classes(self) -> bool:
        try:
            self.api.run("apply", "-k", str(MANIFESTS / "classes"))
        except KubectlFailed:
            return False
        return True

    def call_webhook(self) -> None:
        """Have the API server call the process, and wait until it does."""
        bundle = base64.b64encode(self.webhook.files.authority.read_bytes()).decode()
        for configuration in self._configurations:
            found = copy.deepcopy(configuration)
            for entry in found["webhooks"]:
                path = entry["clientConfig"]["service"]["path"]
                entry["clientConfig"] = {"url": f"https://127.0.0.1:{_PORT}{path}", "caBundle": bundle}
                # A machine with more to do than this one must not make a call late.
                entry["timeoutSeconds"] = _CALL_S
            apply(self.api, found)
        assert wait_for(self._is_called, WAIT_S), self.webhook.told()

    def _is_called(self) -> bool:
        asking = pod("asking", {"volume.sidemount.io/x": "dir:///srv/x"}, "default")
        told = refusal(self.api, asking, "--dry-run=server")
        return 'admission webhook "pods.sidemount.io" denied' in told

    def namespace(self, name: str, labels: Mapping[str, str] = OPEN) -> str:
        """Make a namespace; return its name. Nobody deletes it: an API server alone cannot."""
        self.api.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}
        )
        return name

    def create(self, manifest: Json) -> tuple[Json, str]:
        """Create an object; return it as it is, and what was warned of. Raises KubectlFailed."""
        done = subprocess.run(
            self.api.argv("create", "-o", "json", "-f", "-"),
            input=json.dumps(manifest),
            capture_output=True,
            text=True,
            env=self.api.environment(),
            timeout=60,
        )
        if done.returncode:
            raise KubectlFailed(("create",), done.stderr.strip())
        return json.loads(done.stdout), done.stderr

    def refused(self, manifest: Json) -> str:
        """Return with what words a creation is refused, "" if it is not; in a dry run of the server's and in earnest alike."""
        dry = refusal(self.api, manifest, "--dry-run=server")
        if dry:
            assert refusal(self.api, manifest) == dry
        return dry


def refusal(api: Kubectl, manifest: Json, *arguments: str) -> str:
    """Return with what words a creation is refused, "" if it is not."""
    try:
        api.run("create", *arguments, "-f", "-", text=json.dumps(manifest))
    except KubectlFailed as fault:
        return fault.reason
    return ""


def apply(api: Kubectl, *objects: Json) -> None:
    """Apply as the server does it: nothing is kept in annotations, whose size is bounded."""
    api.run("apply", "--server-side", "--force-conflicts", "-f", "-", text=as_text(objects))


def pod(name: str, annotations: Mapping[str, str], namespace: str, **spec: Any) -> Json:
    """Return a pod of one container that mounts the emptyDir `train` at /data; `spec` replaces fields."""
    app = {"name": "app", "image": "i", "volumeMounts": [{"name": "train", "mountPath": "/data"}]}
    whole = {"volumes": [{"name": "train", "emptyDir": {}}], "containers": [app], **spec}
    metadata = {"name": name, "namespace": namespace, "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def claiming(name: str, namespace: str, claim: str = "data", **spec: Any) -> Json:
    """Return a pod that uses a claim and asks for nothing."""
    volume = {"name": "train", "persistentVolumeClaim": {"claimName": claim}}
    return pod(name, {}, namespace, **{"volumes": [volume], **spec})


def volume(
    name: str,
    claim: tuple[str, str] | None = None,
    *,
    handle: str = "",
    driver: str = "csi.sidemount.io",
    modes: Iterable[str] = ("ReadWriteMany",),
    attributes: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """Return a CSI PersistentVolume of the class `directory`, for a claim of (namespace, name) if one is given."""
    given = {"class": "directory", "source": f"dir:///srv/{name}"} if attributes is None else dict(attributes)
    csi = {"driver": driver, "volumeHandle": handle or name, "volumeAttributes": given}
    whole: Json = {
        "capacity": {"storage": "1Gi"},
        "accessModes": list(modes),
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "csi": csi,
        **spec,
    }
    if claim is not None:
        whole["claimRef"] = {"namespace": claim[0], "name": claim[1]}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": whole}


def claim(namespace: str, name: str = "data", volume_name: str = "", storage_class: str = "") -> Json:
    """Return a claim, bound if a volume is given: an API server alone binds none."""
    spec: Json = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": storage_class,
    }
    if volume_name:
        spec["volumeName"] = volume_name
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def ours(found: Json) -> list[str]:
    """Return the names of our containers in a pod."""
    return [
        each["name"]
        for each in found["spec"].get("initContainers", ())
        if each["name"].startswith("sidemount-")
    ]


def until_refused(api: Kubectl, manifest: Json, is_wanted: Callable[[str], bool]) -> None:
    """Wait until a dry run is answered in some way: what an API server is told reaches its caches a moment later."""
    told = [""]

    def look() -> bool:
        told[0] = refusal(api, manifest, "--dry-run=server")
        return is_wanted(told[0])

    assert wait_for(look, WAIT_S), told[0]
