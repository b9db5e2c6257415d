"""Replicas of the webhook without a kubelet: processes with an address each on the cluster's network, behind the real Service.

For clusters that are an API server alone. The Service is routed by rules of the network namespace, as a kube-proxy writes them.
"""

import base64
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from certs.authority import create_authority, issue_serving
from certs.hosts import parse_hosts
from certs.pem import render_certificate, render_key
from e2e.cluster.bring_up import bring_up
from e2e.cluster.errors import ClusterFault, MachineLacks
from e2e.cluster.kubectl import Json, KubectlFailed
from e2e.cluster.namespaces import entering_network
from e2e.cluster.places import SOURCE, places_of
from e2e.cluster.progress import Progress
from e2e.cluster.running import RunningCluster, take_down
from e2e.cluster.waiting import wait_for
from e2e.tests.images import busybox
from e2e.tests.rendered import MANIFESTS, render
from sidemount.model.names import INJECTION_ENABLED, INJECTION_LABEL, OWN_NAMESPACE

SERVICE = "webhook"
HOST = f"{SERVICE}.{OWN_NAMESPACE}.svc"
CONFIGURATIONS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
_PORT = 8443
_PROBES_PORT = 8081
_READY_S, _ENDED_S, _SERVED_S = 120.0, 90.0, 60.0
_ADDRESSES = "10.99.0.{}"
_STEP_S, _LINES = 60.0, 15


@contextmanager
def api_server(name: str) -> Iterator[RunningCluster]:
    """Give a cluster of an API server alone with Sidemount installed, but for what starts pods."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG names a cluster whose network is not ours to touch")
    places = places_of(name)
    try:
        take_down(places)  # what an interrupted run has left
        cluster = bring_up(places, Progress(), api_only=True)
    except MachineLacks as fault:
        pytest.exit(f"e2e: {fault}", returncode=3)
    try:
        install(cluster)
        be_patient(cluster)
        yield cluster
    finally:
        take_down(places)


def install(cluster: RunningCluster) -> None:
    """Create the default overlay, but for what starts pods, and the first class."""
    api = cluster.kubectl()
    objects = [each for each in render(api, MANIFESTS / "overlays/default") if each["kind"] != "Deployment"]
    first = [each for each in objects if each["kind"] in ("Namespace", "CustomResourceDefinition")]
    api.apply(*first)
    api.apply(*(each for each in objects if each not in first))
    classes = render(api, MANIFESTS / "classes")

    def is_served() -> bool:
        try:
            api.apply(*classes)
        except KubectlFailed:
            return False
        return True

    assert wait_for(is_served, _SERVED_S), "our type is not served"


class Replica:
    """One replica: its webhook, and unless it is given its certificate the process that rotates it."""

    def __init__(self, service: "Service", number: int, directory: Path) -> None:
        self.address = _ADDRESSES.format(number)
        self.directory = directory
        self._service = service
        self._within = entering_network(service.cluster.pid)
        self._tls = directory / "tls"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir(parents=True)
        self._tls.mkdir()
        service.within("ip", "address", "add", f"{self.address}/32", "dev", "lo")

    def give(self, serving: bytes, key: bytes) -> None:
        """Give it a certificate of its own."""
        (self._tls / "tls.crt").write_bytes(serving)
        (self._tls / "tls.key").write_bytes(key)

    def start_webhook(self, *arguments: str) -> None:
        """Start the webhook."""
        self._start(
            "webhook", "--listen", f"{self.address}:{_PORT}", "--facts-from", "cluster",
            "--kubeconfig", str(self._service.cluster.places.kubeconfig),
            "--tls-cert", str(self._tls / "tls.crt"), "--tls-key", str(self._tls / "tls.key"), *arguments,
        )  # fmt: skip

    def start_certs(self, *arguments: str) -> None:
        """Start the process that rotates."""
        self._start(
            "certs", "rotate", "--namespace", OWN_NAMESPACE, "--service", SERVICE, "--secret", "webhook-certs",
            "--webhook-config", "sidemount", "--dir", str(self._tls),
            "--kubeconfig", str(self._service.cluster.places.kubeconfig),
            "--probe", f"{self.address}:{_PORT}", "--listen", f"{self.address}:{_PROBES_PORT}", *arguments,
        )  # fmt: skip

    def has_certificate(self) -> bool:
        """Tell whether there is one that a webhook can start with."""
        return self.get(f"http://{self.address}:{_PROBES_PORT}/startz")[0] == 200

    def chain(self) -> list[x509.Certificate]:
        """Return the certificate in place."""
        return x509.load_pem_x509_certificates((self._tls / "tls.crt").read_bytes())

    def is_ready(self) -> bool:
        """Tell whether all that runs of it says so."""
        urls = [f"https://{self.address}:{_PORT}/readyz"]
        if "certs" in self.processes:
            urls.append(f"http://{self.address}:{_PROBES_PORT}/readyz")
        return all(self.get(url)[0] == 200 for url in urls)

    def metrics(self) -> str:
        """Return the webhook's metrics."""
        return self.get(f"https://{self.address}:{_PORT}/metrics")[1]

    def get(self, url: str) -> tuple[int, str]:
        """Return status and text of an answer; status 0 when there is none."""
        argv = [*self._within, "curl", "-sSk", "-m", "10", "-w", "\n%{http_code}", url]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_STEP_S)
        text, _, status = done.stdout.rpartition("\n")
        return int(status or 0), text

    def wait_ready(self) -> None:
        """Return when it is ready."""
        assert wait_for(lambda: self.is_ready() or self.has_ended(), _READY_S), self.told()
        assert not self.has_ended(), self.told()

    def has_ended(self) -> bool:
        """Tell whether any process of it has ended."""
        return any(process.poll() is not None for process in self.processes.values())

    def signal(self, number: int, name: str = "webhook") -> None:
        """Send a signal."""
        self.processes[name].send_signal(number)

    def wait(self, name: str = "webhook") -> int:
        """Return the exit status of a process that was told to end."""
        return self.processes[name].wait(_ENDED_S)

    def kill(self, name: str) -> None:
        """End a process without a word."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def told(self, which: str = "*.log") -> str:
        """Return the ends of its logs."""
        logs = sorted(self.directory.glob(which))
        return "\n".join(f"{log}:\n" + "\n".join(log.read_text().splitlines()[-_LINES:]) for log in logs)

    def close(self) -> None:
        """End all of it."""
        for name in list(self.processes):
            self.kill(name)
        with suppress(ClusterFault):
            self._service.within("ip", "address", "delete", f"{self.address}/32", "dev", "lo")

    def _start(self, module: str, *arguments: str) -> None:
        with (self.directory / f"{module}.log").open("ab") as log:
            self.processes[module] = subprocess.Popen(
                [*self._within, sys.executable, "-m", module, *arguments],
                cwd=SOURCE,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )


class Service:
    """The Service `webhook`: which replicas get its calls."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        found = cluster.kubectl().get("service", SERVICE, OWN_NAMESPACE)
        assert found is not None
        self._address = found["spec"]["clusterIP"]

    def within(self, *argv: str, text: str | None = None) -> str:
        """Run a command on the cluster's network. Raises ClusterFault."""
        whole = [*entering_network(self.cluster.pid), *argv]
        done = subprocess.run(whole, input=text, capture_output=True, text=True, timeout=_STEP_S)
        if done.returncode:
            raise ClusterFault(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def route(self, replicas: Sequence[Replica]) -> None:
        """Let these replicas get its calls from now on; without any, calls are refused at once."""
        addresses = [replica.address for replica in replicas]
        self.within("iptables-restore", text=_rules(self._address, addresses))
        self.cluster.kubectl().apply(_slice(addresses))


def _slice(addresses: Sequence[str]) -> Json:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": SERVICE,
            "namespace": OWN_NAMESPACE,
            "labels": {"kubernetes.io/service-name": SERVICE},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True, "serving": True, "terminating": False}}
            for address in addresses
        ],
        "ports": [{"name": "https", "port": _PORT, "protocol": "TCP"}],
    }


def _rules(service: str, addresses: Sequence[str]) -> str:
    """Return rules that spread new connections evenly: each takes its part of what those before it have left."""
    called = f"-A OUTPUT -d {service}/32 -p tcp --dport 443"
    spread = [
        f"{called} -m statistic --mode random --probability {1 / (len(addresses) - index):.6f} -j DNAT --to-destination {address}:{_PORT}"
        for index, address in enumerate(addresses[:-1])
    ]
    spread += [f"{called} -j DNAT --to-destination {address}:{_PORT}" for address in addresses[-1:]]
    nat = ["*nat", ":PREROUTING ACCEPT", ":INPUT ACCEPT", ":OUTPUT ACCEPT", ":POSTROUTING ACCEPT", *spread]
    refused = f"{called} -j REJECT --reject-with tcp-reset"
    filters = ["*filter", ":INPUT ACCEPT", ":FORWARD ACCEPT", ":OUTPUT ACCEPT", refused]
    return "\n".join((*nat, "COMMIT", *filters, "COMMIT", ""))


class Replicas:
    """All replicas of a test. `static` ones share a certificate that nobody rotates."""

    def __init__(self, cluster: RunningCluster, directory: Path) -> None:
        self.cluster = cluster
        self.service = Service(cluster)
        self._directory = directory
        self._made: list[Replica] = []
        self._pair: tuple[bytes, bytes] | None = None
        self.authority = b""

    def trust_static(self) -> None:
        """Make an authority and a certificate, and let API servers trust it."""
        now = datetime.now(UTC)
        authority = create_authority("sidemount e2e", now=now)
        serving = issue_serving(authority, parse_hosts((HOST,)), now=now)
        self.authority = render_certificate(authority.certificate)
        self._pair = render_certificate(serving.certificate), render_key(serving.key)
        publish(self.cluster, self.authority)

    def make(self) -> Replica:
        """Return one that has no process yet."""
        number = len(self._made) + 1
        replica = Replica(self.service, number, self._directory / f"replica-{number}")
        self._made.append(replica)
        if self._pair is not None:
            replica.give(*self._pair)
        return replica

    def started(self, *arguments: str) -> Replica:
        """Return a static one that is ready."""
        replica = self.make()
        replica.start_webhook(*arguments)
        replica.wait_ready()
        return replica

    def close(self) -> None:
        """End all of them; calls are refused then."""
        for replica in self._made:
            replica.close()
        self.service.route(())


@contextmanager
def replicas_on(cluster: RunningCluster, directory: Path) -> Iterator[Replicas]:
    """Give replicas, and end them."""
    found = Replicas(cluster, directory)
    try:
        yield found
    finally:
        found.close()


def publish(cluster: RunningCluster, authority: bytes) -> None:
    """Make API servers trust an authority."""
    encoded = base64.b64encode(authority).decode()
    _patch_each(cluster, {"op": "add", "path": "/clientConfig/caBundle", "value": encoded})


def be_patient(cluster: RunningCluster) -> None:
    """Let API servers wait for half a minute: what is lost then is lost, and not late on a machine with more to do."""
    _patch_each(cluster, {"op": "replace", "path": "/timeoutSeconds", "value": 30})


def _patch_each(cluster: RunningCluster, operation: Json) -> None:
    for kind in CONFIGURATIONS:
        entries = (cluster.kubectl().get(kind, "sidemount") or {})["webhooks"]
        patch = [
            {**operation, "path": f"/webhooks/{index}{operation['path']}"} for index in range(len(entries))
        ]
        cluster.kubectl().run("patch", kind, "sidemount", "--type=json", f"--patch={json.dumps(patch)}")


def open_namespace(cluster: RunningCluster) -> str:
    """Make a namespace that is open to injection; return its name."""
    name = f"ml-{secrets.token_hex(3)}"
    labels = {INJECTION_LABEL: INJECTION_ENABLED}
    cluster.kubectl().create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )
    return name


def asking(namespace: str, **metadata: str) -> Json:
    """Return a pod that asks for a volume."""
    app = {"name": "app", "image": busybox(), "volumeMounts": [{"name": "books", "mountPath": "/data"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "annotations": {"volume.sidemount.io/books": "dir:///srv/books?readOnly=true"},
            **(metadata or {"name": "reader"}),
        },
        "spec": {"containers": [app], "volumes": [{"name": "books", "emptyDir": {}}]},
    }
