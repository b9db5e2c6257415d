"""The rotating process and the real webhook beside it, as in a pod: a rotation under handshakes, and the way out."""

import base64
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from certs.pem import render_bundle
from certs.secret import parse_secret
from certs.trust import fingerprint
from sidemount.host.readiness import wait_readable
from tests.certs.fake_cluster import (
    LEASE,
    MUTATING,
    SECRET,
    SLICES,
    FakeCluster,
    serving,
    with_configurations,
)
from tests.certs.rotating import live_bundles
from tests.certs.rotation_world import SERVICE, webhook_configuration
from tests.webhook.eventually import eventually

ROOT = Path(__file__).parents[2]
# An address of loopback that nobody else on this machine listens on: its ports are free.
HOST, PORT = f"127.71.{os.getpid() >> 8 & 255}.{os.getpid() % 254 + 1}", 8443
WITHIN_S = 60.0


@contextmanager
def _process(arguments: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=output
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def _first_line(process: "subprocess.Popen[bytes]", log: Path) -> str:
    assert process.stdout is not None
    readable = wait_readable(process.stdout.fileno(), WITHIN_S)
    line = process.stdout.readline().decode() if readable else ""
    assert line, log.read_text()
    return line


def _kubeconfig(directory: Path, url: str) -> Path:
    path = directory / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
    }
    path.write_text(json.dumps(document))
    return path


class _Caller(threading.Thread):
    """Shakes hands again and again, each time with a bundle that is live, as API servers do."""

    def __init__(self, server: FakeCluster) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.stopped = threading.Event()
        self.count = 0
        self.failures: list[str] = []
        self.serials: set[str] = set()

    def run(self) -> None:
        while not self.stopped.wait(0.02):
            for bundle in live_bundles(self.server):
                try:
                    self.serials.add(_serial(bundle_pem=render_bundle(bundle).decode()))
                except OSError as error:
                    self.failures.append(str(error))
                self.count += 1


def _serial(bundle_pem: str) -> str:
    context = ssl.create_default_context(cadata=bundle_pem)
    with (
        socket.create_connection((HOST, PORT), 20) as plain,
        context.wrap_socket(plain, server_hostname=SERVICE.host) as wrapped,
    ):
        return str((wrapped.getpeercert() or {})["serialNumber"])


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def _signer(server: FakeCluster) -> str:
    signer = parse_secret(server.get(SECRET)).keyring.signer
    return fingerprint(signer.certificate) if signer is not None else ""


def test_a_rotation_beside_the_real_webhook_loses_no_handshake(tmp_path: Path) -> None:
    cluster = FakeCluster(now=lambda: datetime.now(UTC))
    log, tls, facts = tmp_path / "log", tmp_path / "tls", tmp_path / "facts"
    shutil.copytree(ROOT / "sidemount" / "samples", facts)
    with serving(with_configurations(cluster)) as server:
        slices = {"metadata": {"labels": {"kubernetes.io/service-name": SERVICE.name}}}
        server.put(
            f"{SLICES}/a", {**slices, "endpoints": [{"addresses": [HOST], "conditions": {"ready": True}}]}
        )
        rotate = [
            "certs", "rotate", "--namespace", SERVICE.namespace, "--service", SERVICE.name, "--secret", "webhook-certs",
            "--webhook-config", "sidemount", "--dir", str(tls), "--kubeconfig", str(_kubeconfig(tmp_path, server.url)),
            "--listen", "127.0.0.1:0", "--probe", f"{HOST}:{PORT}", "--period", "1s", "--settle", "2s", "--grace", "3s",
        ]  # fmt: skip
        webhook = [
            "webhook", "--listen", f"{HOST}:{PORT}", "--tls-cert", str(tls / "tls.crt"), "--tls-key", str(tls / "tls.key"),
            "--facts", str(facts),
        ]  # fmt: skip
        with _process(rotate, log) as rotating:
            match = re.search(r"on port (\d+)", _first_line(rotating, log))
            assert match is not None
            probes = f"http://127.0.0.1:{match[1]}"
            eventually(lambda: _status(f"{probes}/startz") == 200, "a certificate in place", WITHIN_S)
            assert _status(f"{probes}/readyz") == 503, "no handshake was possible yet"
            with _process(webhook, log) as served:
                _first_line(served, log)
                eventually(lambda: _status(f"{probes}/readyz") == 200, "ready", WITHIN_S)
                caller = _Caller(server)
                caller.start()
                _rotate_by_deleting(server)
                caller.stopped.set()
                caller.join(WITHIN_S)
                assert caller.failures == []
                assert len(caller.serials) == 2
                assert caller.count > 20
                server.put(MUTATING, webhook_configuration("MutatingWebhookConfiguration", 2))
                eventually(lambda: all(live_bundles(server)), "the bundle is repaired", WITHIN_S)
                assert _status(f"{probes}/livez") == 200
                rotating.send_signal(signal.SIGTERM)
                assert rotating.wait(WITHIN_S) == 0
        lease = server.get(LEASE)
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == ""
        _assert_no_secrets(server, log.read_text())
    assert os.path.exists(tls / "tls.crt"), "what is in place stays"


def _rotate_by_deleting(server: FakeCluster) -> None:
    before = _signer(server)
    server.delete(SECRET)
    eventually(lambda: _signer(server) not in ("", before), "a new authority signs", WITHIN_S)
    eventually(
        lambda: all(
            [fingerprint(certificate) for certificate in bundle] == [_signer(server)]
            for bundle in live_bundles(server)
        ),
        "the old authority is trusted no more",
        WITHIN_S,
    )


def _assert_no_secrets(server: FakeCluster, text: str) -> None:
    document = server.get(SECRET)
    assert document is not None
    assert '"event": "secret_changed"' in text
    assert "PRIVATE KEY" not in text
    assert "secret-token" not in text
    for key in ("tls.key", "ca.key"):
        value = document["data"][key]
        assert value[40:100] not in text
        assert base64.b64decode(value).decode().splitlines()[1] not in text
