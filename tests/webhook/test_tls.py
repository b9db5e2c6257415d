"""The serving certificate: loaded, followed, and never traded for something worse."""

import json
import os
import shutil
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from certs.authority import Issued, create_authority, issue_serving
from certs.hosts import parse_hosts
from certs.pem import render_certificate, render_key
from sidemount.model.errors import HostFailure, InvalidRequest, VolumeError
from tests.webhook.eventually import eventually
from tests.webhook.fake_apiserver import FakeApiServer, RemoteWebhook, Webhook
from tests.webhook.raw_client import RawClient, get, post
from tests.webhook.reviews import make_pod, make_review
from tests.webhook.running import SERVICE, RunningServer, make_certificates, running_server
from webhook.tls import ServingCertificate

NOW = datetime.now(UTC)
AUTHORITY = create_authority("authority", now=NOW)


def _issue() -> Issued:
    return issue_serving(AUTHORITY, parse_hosts([SERVICE]), now=NOW)


def _issue_ended(days_ago: int) -> Issued:
    then = NOW - timedelta(days=100)
    authority = create_authority("old", now=then)
    return issue_serving(authority, parse_hosts([SERVICE]), now=then, lifetime=timedelta(days=100 - days_ago))


class Pair:
    """Two files."""

    def __init__(self, directory: Path) -> None:
        self.certificate = directory / "tls.crt"
        self.key = directory / "tls.key"
        self.issued = _issue()
        self.write(self.issued)
        self.serving = ServingCertificate(self.certificate, self.key)

    def write(self, issued: Issued) -> None:
        self.certificate.write_bytes(render_certificate(issued.certificate))
        self.key.write_bytes(render_key(issued.key))

    def refresh(self) -> bool:
        return self.serving.refresh(NOW)

    @property
    def serial(self) -> str:
        assert self.serving.loaded is not None
        return self.serving.loaded.serial


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(tmp_path)
    made.serving.load()
    return made


def test_a_good_pair_is_loaded_and_unchanged_files_are_not_read_again(pair: Pair) -> None:
    assert pair.serial == f"{pair.issued.certificate.serial_number:x}"
    before = pair.serving.loaded
    assert pair.refresh() is False
    assert pair.serving.loaded is before


def test_a_new_pair_takes_over(pair: Pair) -> None:
    """linkerd#5551, linkerd#5888: a renewed certificate without a restart."""
    before = pair.serving.loaded
    new = _issue()
    pair.write(new)
    assert pair.refresh() is True
    assert pair.serial == f"{new.certificate.serial_number:x}"
    assert pair.serving.loaded is not before


def _break_certificate(pair: Pair) -> None:
    pair.certificate.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA")


def _break_key(pair: Pair) -> None:
    pair.key.write_bytes(b"\x00\x01")


def _empty(pair: Pair) -> None:
    pair.certificate.write_bytes(b"")


def _swap_certificate_only(pair: Pair) -> None:
    pair.certificate.write_bytes(render_certificate(_issue().certificate))


def _swap_key_only(pair: Pair) -> None:
    pair.key.write_bytes(render_key(_issue().key))


def _remove_certificate(pair: Pair) -> None:
    pair.certificate.unlink()


def _remove_key(pair: Pair) -> None:
    pair.key.unlink()


def _directory(pair: Pair) -> None:
    pair.key.unlink()
    pair.key.mkdir()


def _pipe(pair: Pair) -> None:
    pair.key.unlink()
    os.mkfifo(pair.key)


def _huge(pair: Pair) -> None:
    os.truncate(pair.certificate, 1 << 30)


def _encrypt(pair: Pair) -> None:
    key = pair.issued.key
    pair.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    )


def _key_in_certificate(pair: Pair) -> None:
    pair.certificate.write_bytes(render_key(pair.issued.key))


BROKEN = pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param(_break_certificate, "no certificate in PEM", id="broken-certificate"),
        pytest.param(_break_key, "cannot serve TLS", id="broken-key"),
        pytest.param(_empty, "no certificate in PEM", id="empty"),
        pytest.param(
            _swap_certificate_only, "is not the one of the certificate", id="new-certificate-old-key"
        ),
        pytest.param(_swap_key_only, "is not the one of the certificate", id="old-certificate-new-key"),
        pytest.param(_remove_certificate, "No such file", id="no-certificate"),
        pytest.param(_remove_key, "No such file", id="no-key"),
        pytest.param(_directory, "is a directory", id="directory"),
        pytest.param(_pipe, "is not a regular file", id="pipe"),
        pytest.param(_huge, "at most 1048576 are read", id="huge"),
        pytest.param(_encrypt, "is encrypted", id="encrypted"),
        pytest.param(_key_in_certificate, "no certificate in PEM", id="key-in-certificate"),
    ],
)


@BROKEN
def test_a_broken_pair_at_the_start_is_an_error_that_names_the_file(
    tmp_path: Path, damage: object, said: str
) -> None:
    pair = Pair(tmp_path)
    assert callable(damage)
    damage(pair)
    with pytest.raises((HostFailure, InvalidRequest), match=said) as raised:
        pair.serving.load()
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


@BROKEN
def test_a_broken_pair_later_keeps_the_old_one_and_is_told_once(
    pair: Pair, damage: object, said: str
) -> None:
    before = pair.serving.loaded
    assert callable(damage)
    damage(pair)
    with pytest.raises(VolumeError, match=said):
        pair.refresh()
    assert pair.refresh() is False, "told already"
    assert said in pair.serving.fault
    assert pair.serving.loaded is before
    if pair.key.is_dir():
        pair.key.rmdir()
    elif pair.key.is_fifo():
        pair.key.unlink()
    new = _issue()
    pair.write(new)
    assert pair.refresh() is True
    assert pair.serving.fault == ""


def test_files_that_go_back_to_what_is_in_use_end_the_fault(pair: Pair) -> None:
    away = pair.key.with_name("away")
    pair.key.rename(away)
    with pytest.raises(HostFailure):
        pair.refresh()
    away.rename(pair.key)
    assert pair.refresh() is False
    assert pair.serving.fault == ""


def test_an_expired_pair_does_not_replace_one_that_holds(pair: Pair) -> None:
    before = pair.serving.loaded
    pair.write(_issue_ended(10))
    with pytest.raises(InvalidRequest, match="is kept"):
        pair.refresh()
    assert pair.serving.loaded is before
    assert pair.refresh() is False
    assert "is kept" in pair.serving.fault


def test_of_two_expired_pairs_the_newer_file_counts(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(_issue_ended(20))
    pair.serving.load()
    pair.write(_issue_ended(10))
    assert pair.refresh() is True


def test_a_mounted_secret_swaps_as_a_whole(tmp_path: Path) -> None:
    def publish(version: str, issued: Issued) -> None:
        directory = tmp_path / version
        directory.mkdir()
        (directory / "tls.crt").write_bytes(render_certificate(issued.certificate))
        (directory / "tls.key").write_bytes(render_key(issued.key))
        (tmp_path / "..tmp").symlink_to(version)
        (tmp_path / "..tmp").replace(tmp_path / "..data")

    publish("..1", _issue())
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    serving = ServingCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    serving.load()
    new = _issue()
    publish("..2", new)
    shutil.rmtree(tmp_path / "..1")
    assert serving.refresh(NOW) is True
    assert serving.loaded is not None
    assert serving.loaded.serial == f"{new.certificate.serial_number:x}"


def test_a_chain_is_served_whole(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pair.certificate.open("ab") as file:
        file.write(render_certificate(AUTHORITY.certificate))
    assert pair.serving.load().serial == f"{pair.issued.certificate.serial_number:x}"


def test_no_key_is_left_in_a_file_or_descriptor(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        pair.write(_issue())
        pair.refresh()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("tls")) as started:
        yield started


def _serial(server: RunningServer) -> str:
    with RawClient(server.port, server.files.bundle) as client:
        return str((client.socket.getpeercert() or {})["serialNumber"])


def _served(client: RawClient) -> bool:
    response = client.ask(post(make_review(make_pod())))
    return response is not None and response.status == 200


def test_a_renewal_reaches_the_next_handshake_and_drops_no_connection(server: RunningServer) -> None:
    """linkerd#5551: no restart, no lost call. NotBefore is in the past (istio#32176)."""
    before = _serial(server)
    with RawClient(server.port, server.files.bundle) as old:
        assert _served(old)
        server.files.serving.unlink()
        make_certificates(server.files.directory)
        eventually(lambda: _serial(server) != before, "the new certificate is served")
        assert _served(old), "a connection from before goes on"
    with RawClient(server.port, server.files.bundle) as new:
        certificate = new.socket.getpeercert() or {}
        begins = ssl.cert_time_to_seconds(str(certificate["notBefore"]))
        assert begins <= datetime.now(UTC).timestamp() - 3600
    remote = RemoteWebhook(server.port, "/mutate", server.files.bundle)
    FakeApiServer(mutating=[Webhook(name="m.sidemount.io", call=remote)]).create(make_pod())
    assert remote.serials != [before]
    remote.close()


def test_a_mismatched_pair_is_reported_and_the_old_one_goes_on(server: RunningServer) -> None:
    before = _serial(server)
    key = server.files.serving_key.read_bytes()
    server.files.serving_key.write_bytes(render_key(_issue().key))
    eventually(lambda: "sidemount_webhook_certificate_faulty 1.0" in _metrics(server), "the metric shows it")
    assert _serial(server) == before
    with RawClient(server.port, server.files.bundle) as client:
        response = client.ask(get("/readyz"), "GET")
        assert response is not None
        assert response.status == 200
        assert "is not the one of the certificate" in response.text
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert len([line for line in lines if line["event"] == "certificate_faulty"]) == 1
    server.files.serving_key.write_bytes(key)
    eventually(lambda: "sidemount_webhook_certificate_faulty 0.0" in _metrics(server), "the fault is over")
    assert "PRIVATE KEY" not in server.log.read_text()


def _metrics(server: RunningServer) -> str:
    with RawClient(server.port, server.files.bundle) as client:
        response = client.ask(get("/metrics"), "GET")
    assert response is not None
    return response.text


def test_sessions_are_not_resumed_with_an_old_certificate(server: RunningServer) -> None:
    context = ssl.create_default_context(cafile=str(server.files.bundle))
    sessions: list[ssl.SSLSession | None] = []
    for _ in range(2):
        with (
            socket.create_connection(("127.0.0.1", server.port), 5) as plain,
            context.wrap_socket(
                plain, server_hostname=SERVICE, session=sessions[-1] if sessions else None
            ) as wrapped,
        ):
            wrapped.sendall(get("/healthz"))
            assert wrapped.recv(10)
            assert not wrapped.session_reused
            sessions.append(wrapped.session)
