"""Azurite: Azure's Blob service for tests, with an account and a container."""

import base64
import hashlib
import hmac
import http.client
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from e2e.servers.process import LOOPBACK, free_port, start
from e2e.servers.tools import azurite_argv

ACCOUNT = "sidemounttests"
_KEY = base64.b64encode(hashlib.sha512(b"the account key of tests").digest()).decode()
_VERSION = "2021-12-02"
_ASK_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AzurePlace:
    """A container of it. The account is the first part of each path, as in all of Azurite's addresses."""

    endpoint: str
    container: str
    account: str = ACCOUNT
    account_key: str = _KEY

    @property
    def port(self) -> int:
        """The endpoint's."""
        return int(self.endpoint.removesuffix(f"/{self.account}").rpartition(":")[2])


@contextmanager
def azurite(directory: Path, container: str = "container", *, in_memory: bool = True) -> Iterator[AzurePlace]:
    """Run it with a container. Raises ServerFault, MachineLacks, ClusterFault."""
    program = azurite_argv()
    directory.mkdir(parents=True, exist_ok=True)
    ports: list[int] = []

    def plan() -> tuple[Sequence[str], Callable[[], bool]]:
        port = free_port()
        ports[:] = [port]
        argv = [*program, "--blobHost", LOOPBACK, "--blobPort", str(port), "--silent", "--disableTelemetry"]
        argv += ["--disableProductStyleUrl", "--skipApiVersionCheck", "--blobKeepAliveTimeout", "60"]
        argv += ["--inMemoryPersistence"] if in_memory else ["--location", str(directory / "data")]
        return argv, lambda: _is_made(port, container)

    environment = {"PATH": os.defpath, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{_KEY}"}
    server = start(plan, directory / "azurite.log", environment)
    try:
        yield AzurePlace(endpoint=f"http://{LOOPBACK}:{ports[0]}/{ACCOUNT}", container=container)
    finally:
        server.stop()


def _is_made(port: int, container: str) -> bool:
    """Make the container, and tell whether it is there."""
    path = f"/{ACCOUNT}/{container}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
    # Twelve lines for headers that are not sent; the account comes twice, as it is in the path, too.
    signed = "PUT\n" + "\n" * 11 + f"{canonical}/{ACCOUNT}{path}\nrestype:container"
    made = hmac.digest(base64.b64decode(_KEY), signed.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(made).decode()}"
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_ASK_S)
    try:
        connection.request("PUT", f"{path}?restype=container", headers={**headers, "Content-Length": "0"})
        return connection.getresponse().status in (201, 409)
    finally:
        connection.close()
