"""A load on a cluster, beside a test: pods created through the API server, or reviews straight to the webhook's pods."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from e2e.cluster.kubectl import Json
from e2e.cluster.namespaces import entering_network
from e2e.cluster.places import SOURCE
from e2e.cluster.running import RunningCluster
from e2e.cluster.waiting import wait_for
from e2e.tests.load_process import Order
from e2e.tests.load_tally import Outcome, parse_outcome
from sidemount.model.names import OWN_NAMESPACE
from tests.webhook.admission import review

_END_S = 120.0
_SERVICE = "webhook"
_NAME = f"{_SERVICE}.{OWN_NAMESPACE}.svc"
_SLICES = (
    f"/apis/discovery.k8s.io/v1/namespaces/{OWN_NAMESPACE}/endpointslices"
    f"?labelSelector=kubernetes.io/service-name%3D{_SERVICE}"
)


class Load:
    """A load that runs in a process of its own."""

    def __init__(self, cluster: RunningCluster, order: Order, program: str) -> None:
        self._process = subprocess.Popen(
            [*entering_network(cluster.pid), sys.executable, "-m", f"e2e.tests.{program}"],
            cwd=SOURCE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._last: Outcome | None = None
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._process.stdin is not None
        self._process.stdin.write(order.render() + "\n")
        self._process.stdin.flush()

    def so_far(self) -> Outcome | None:
        """Return what has become of the calls until a moment ago; None in the first moment."""
        return self._last

    def wait_good(self, more: int, timeout_s: float = 120.0) -> None:
        """Return when so many more calls were answered well."""
        goal = self._good() + more
        reached = wait_for(lambda: self._good() >= goal or self._process.poll() is not None, timeout_s)
        assert reached, f"not {more} more calls are answered: {self._last}"
        assert self._process.poll() is None, self._complaint()

    def stop(self) -> Outcome:
        """End the load; return what has become of all calls."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.wait()

    def wait(self, timeout_s: float = _END_S) -> Outcome:
        """Return what has become of all calls, when the load has ended."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the load does not end: {self._last}") from None
        self._reader.join()
        assert code == 0, self._complaint()
        assert self._last is not None
        return self._last

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _good(self) -> int:
        return self._last.good if self._last is not None else 0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last = parse_outcome(line)

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        return f"the load ended: {self._process.stderr.read()}"


@contextmanager
def load(cluster: RunningCluster, order: Order, program: str = "load_process") -> Iterator[Load]:
    """Give a load that has begun; it is gone afterwards, whatever happens."""
    running = Load(cluster, order, program)
    try:
        yield running
    finally:
        running.kill()


def creations(cluster: RunningCluster, pod: Json, *, dry_run: bool = True, **fields: Any) -> Order:
    """Return the order to create a pod again and again. Its metadata names its namespace, and generateName if it is to stay."""
    query = "?dryRun=All" if dry_run else ""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods{query}"
    return Order(**_access(cluster), path=path, body=json.dumps(pod), **fields)


def reviews(cluster: RunningCluster, pod: Json, authority: str, **fields: Any) -> Order:
    """Return the order to send reviews of a pod to every ready endpoint. `authority`: whom the callers trust, in base64."""
    namespace = pod["metadata"]["namespace"]
    return Order(
        **_access(cluster),
        path="/mutate?timeout=30s",
        body=review(pod, namespace).decode(),
        slices=_SLICES,
        serving_authority=authority,
        serving_name=_NAME,
        **fields,
    )


def handshakes(cluster: RunningCluster) -> AbstractContextManager[Load]:
    """Give handshakes with every ready endpoint, again and again, by whoever trusts what API servers trust."""
    order = Order(**_access(cluster), path="", body="", slices=_SLICES, serving_name=_NAME)
    return load(cluster, order, "load_handshakes")


def _access(cluster: RunningCluster) -> dict[str, Any]:
    config = json.loads(cluster.places.kubeconfig.read_text())
    server = config["clusters"][0]["cluster"]
    host, _, port = server["server"].removeprefix("https://").rpartition(":")
    return {
        "host": host,
        "port": int(port),
        "authority": server["certificate-authority-data"],
        "token": config["users"][0]["user"]["token"],
    }
