"""The parts around the rotation: the Lease, delivery, the Secret's data, settings, standing and its exposition."""

import argparse
import asyncio
import contextlib
import logging
import os
import stat
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certs.__main__ import main
from certs.api_clock import ApiClock
from certs.authority import create_authority, issue_serving
from certs.delivery import CERTIFICATE, KEY, Delivery, is_better
from certs.exposition import exposition_of
from certs.hosts import parse_hosts
from certs.keyring import Keyring, Retiring, parse_keyring, render_keyring
from certs.live import LiveConfiguration, LiveEntry, bundle_patch, parse_configuration
from certs.pem import render_certificate, render_key
from certs.rotate_settings import add_rotate_arguments, parse_rotate_settings
from certs.secret import Custody, parse_secret
from certs.standing import STUCK_S, Standing
from certs.trust import Trust, Verdict
from sidemount.model.errors import HostFailure, InvalidRequest, Unsupported
from sidemount.model.lease import LeaseRecord, Watched, claim, parse_lease, release, render_lease, watch
from tests.certs.rotation_world import SERVICE, START
from webhook.tls import ServingCertificate

ROOT = Path(__file__).parents[2]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=10), children, max_size=3)
    ),
    max_leaves=8,
)
_AUTHORITY = create_authority("a", now=START)
_LEAF = issue_serving(_AUTHORITY, parse_hosts([SERVICE.host]), now=START)
_PAIR = (render_certificate(_LEAF.certificate), render_key(_LEAF.key))


# The Lease.


def _record(holder: str, *, duration_s: float = 15.0) -> LeaseRecord:
    return LeaseRecord(holder=holder, duration_s=duration_s, acquired="x", renewed="y", transitions=4)


def test_a_lease_is_taken_when_there_is_none_or_it_was_released_or_its_holder_is_silent() -> None:
    assert claim(Watched(None, 0), "me", now=START, now_s=0) is not None
    assert claim(Watched(_record(""), 0), "me", now=START, now_s=0) is not None
    assert claim(Watched(_record("other"), 0), "me", now=START, now_s=14.9) is None
    taken = claim(Watched(_record("other"), 0), "me", now=START, now_s=15)
    assert taken is not None
    assert (taken.holder, taken.transitions) == ("me", 5)
    kept = claim(Watched(_record("me"), 0), "me", now=START, now_s=99)
    assert kept is not None
    assert (kept.acquired, kept.transitions) == ("x", 4)


def test_a_holder_that_renews_is_never_silent_whatever_its_clock_says() -> None:
    watched = watch(None, _record("other"), 0)
    for second in range(10, 100, 10):
        record = LeaseRecord(holder="other", duration_s=15, acquired="", renewed=f"{second}", transitions=0)
        watched = watch(watched, record, second)
        assert claim(watched, "me", now=START, now_s=second + 9) is None


def test_only_the_holder_releases() -> None:
    assert release(_record("other"), "me", now=START) is None
    free = release(_record("me"), "me", now=START)
    assert free is not None
    assert (free.holder, free.transitions) == ("", 4)


@given(
    st.dictionaries(
        st.sampled_from(
            ["holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"]
        ),
        _JSON,
    )
)
@settings(max_examples=50, deadline=None)
def test_a_lease_of_any_content_is_read_and_bounded(spec: dict[str, object]) -> None:
    record = parse_lease(spec)
    assert 0 < record.duration_s <= 120
    assert parse_lease(render_lease(record)) == record


# Delivery.


def test_a_pair_is_delivered_whole_private_and_as_the_webhook_reloads_it(tmp_path: Path) -> None:
    delivery = Delivery(tmp_path / "tls")
    assert delivery.present() == b""
    delivery.write(*_PAIR)
    assert delivery.present() == _PAIR[0]
    mode = stat.S_IMODE((tmp_path / "tls" / KEY).stat().st_mode)
    assert mode == 0o600
    served = ServingCertificate(tmp_path / "tls" / CERTIFICATE, tmp_path / "tls" / KEY)
    assert served.load().serial == f"{_LEAF.certificate.serial_number:x}"
    other = issue_serving(_AUTHORITY, parse_hosts([SERVICE.host]), now=START)
    delivery.write(render_certificate(other.certificate), render_key(other.key))
    assert served.refresh(START)
    assert served.loaded is not None
    assert served.loaded.serial == f"{other.certificate.serial_number:x}"
    kept = sorted(name for name in os.listdir(tmp_path / "tls"))
    assert len(kept) == 4, kept
    assert kept[0] == "..current"


@pytest.mark.parametrize("number", range(12))
def test_a_delivery_that_ends_anywhere_leaves_a_whole_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    delivery = Delivery(tmp_path)
    delivery.write(*_PAIR)
    other = issue_serving(_AUTHORITY, parse_hosts([SERVICE.host]), now=START)
    pair = (render_certificate(other.certificate), render_key(other.key))
    left = [number]

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: object, **more: object) -> object:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, call)

    for name in ("mkdir", "symlink", "replace", "rename", "fsync"):
        counted(name)
    with contextlib.suppress(KeyboardInterrupt):
        delivery.write(*pair)
    monkeypatch.undo()
    assert delivery.present() in (_PAIR[0], pair[0])
    delivery.write(*pair)
    assert delivery.present() == pair[0]
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("what", ["missing-key", "other-key", "junk", "directory"])
def test_what_cannot_be_served_is_not_present(tmp_path: Path, what: str) -> None:
    delivery = Delivery(tmp_path)
    delivery.write(*_PAIR)
    (tmp_path / KEY).unlink()
    if what == "other-key":
        (tmp_path / KEY).write_bytes(render_key(_AUTHORITY.key))
    elif what == "junk":
        (tmp_path / KEY).write_bytes(b"\x00")
    elif what == "directory":
        (tmp_path / KEY).mkdir()
    assert delivery.present() == b""


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostFailure, match="file cannot be written"):
        Delivery(tmp_path / "file").write(*_PAIR)


def test_what_every_client_accepts_is_not_given_up_for_what_one_refuses() -> None:
    other = create_authority("b", now=START)
    offered = issue_serving(other, parse_hosts([SERVICE.host]), now=START).certificate
    present = _LEAF.certificate

    def live(*authorities: tuple[bool, bool]) -> list[LiveConfiguration]:
        entries = [
            LiveEntry(
                index,
                "e",
                tuple(
                    a.certificate for a, trusted in zip((_AUTHORITY, other), trusts, strict=True) if trusted
                ),
                True,
            )
            for index, trusts in enumerate(authorities)
        ]
        return [LiveConfiguration(kind="M", name="m", resource_version="1", entries=tuple(entries))]

    def better(live: list[LiveConfiguration]) -> bool:
        return is_better([offered], [present], live, SERVICE.host, now=START)

    assert better(live((True, True), (True, True)))
    assert not better(live((True, True), (True, False)))
    assert better(live((False, True), (False, False)))
    assert better(live((False, False)))
    assert better([])
    assert is_better([offered], [], live((True, False)), SERVICE.host, now=START), "better than nothing"


# The Secret.


def test_what_is_kept_survives_being_written_and_read() -> None:
    keyring = Keyring(
        signer=_AUTHORITY,
        leaf=_LEAF,
        leaf_since=START,
        issued_until=START + timedelta(days=1),
        retiring=(
            Retiring(
                certificate=create_authority("old", now=START).certificate,
                since=START,
                until=START + timedelta(days=3),
            ),
        ),
        generation=7,
    )
    read = parse_keyring(render_keyring(keyring))
    assert read.faults == ()
    assert (read.generation, read.leaf_since, read.issued_until) == (7, START, keyring.issued_until)
    assert read.retiring == keyring.retiring
    assert render_keyring(read) == render_keyring(keyring)


@given(_JSON)
@settings(max_examples=60, deadline=None)
def test_a_secret_of_any_shape_is_read_without_an_error(document: object) -> None:
    read = parse_secret({"data": document, "metadata": document})
    assert isinstance(read.custody, Custody)
    parse_configuration({"webhooks": document, "metadata": document}, "M", SERVICE)
    parse_configuration({"webhooks": [document, {"clientConfig": document}]}, "M", SERVICE)


@given(
    st.dictionaries(
        st.sampled_from(["rotation.json", "ca.crt", "tls.key", "old-ca.crt"]), st.binary(max_size=60)
    )
)
@settings(max_examples=60, deadline=None)
def test_data_of_any_content_is_read_and_told_without_its_content(content: dict[str, bytes]) -> None:
    try:
        keyring = parse_keyring(content)
    except Unsupported:
        return
    assert all(len(fault) < 200 for fault in keyring.faults)


def test_a_patch_tests_what_it_was_made_for() -> None:
    live = LiveConfiguration(
        kind="M", name="m", resource_version="41", entries=(LiveEntry(2, "e.x", (), has_bundle=False),)
    )
    operations = bundle_patch(live, {2: (_AUTHORITY.certificate,)})
    assert operations[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "41"}
    assert operations[1] == {"op": "test", "path": "/webhooks/2/name", "value": "e.x"}
    assert (operations[2]["op"], operations[2]["path"]) == ("add", "/webhooks/2/clientConfig/caBundle")


# Settings.

_REQUIRED = [
    "--namespace", "sidemount-system", "--service", "webhook", "--secret", "certs", "--webhook-config", "sidemount", "--dir", "/tls",
]  # fmt: skip


def _parse(*more: str) -> object:
    parser = argparse.ArgumentParser()
    add_rotate_arguments(parser)
    return parse_rotate_settings(parser.parse_args([*_REQUIRED, *more]), identity="pod_1")


def test_settings_have_defaults_that_go_together() -> None:
    parsed = _parse()
    assert "lease='certs'" in repr(parsed)
    assert "identity='pod_1'" in repr(parsed)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--namespace", "A"], "--namespace"),
        (["--service", "a.b"], "--service"),
        (["--secret", "../x"], "--secret"),
        (["--webhook-config", "a b"], "--webhook-config"),
        (["--dir", ""], "--dir"),
        (["--grace", "1w"], "--grace"),
        (["--grace", "-1s"], None),
        (["--serving-lifetime", "10s"], "--serving-lifetime"),
        (["--authority-lifetime", "100d"], "--authority-lifetime"),
        (["--authority-lifetime", "99999d"], "--authority-lifetime"),
        (["--period", "0s"], "--period"),
        (["--listen", "8080"], "--listen"),
        (["--probe", "::1:8443"], "--probe"),
        (["--host", "http://x"], "neither an IP address nor a DNS name"),
        (["--identity", "a b"], "--identity"),
        (["--lease", "X"], "--lease"),
    ],
)
def test_a_wrong_setting_is_named_with_its_way_out(more: list[str], said: str | None) -> None:
    if said is None:
        with pytest.raises(SystemExit):
            _parse(*more)
        return
    with pytest.raises(InvalidRequest, match=said):
        _parse(*more)


@pytest.mark.parametrize("content", ["", "junk: [", "a: b", "\x00", "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfig_of_any_content_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    assert main(["rotate", *_REQUIRED, "--kubeconfig", str(path)]) == 2
    error = capsys.readouterr().err
    assert "kubeconfig" in error
    assert error.count("\n") == 1


def test_outside_of_a_pod_it_is_said_what_to_give(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["rotate", *_REQUIRED]) == 2
    assert "--kubeconfig FILE" in capsys.readouterr().err


# The clock.


def test_the_api_servers_time_counts_and_ours_only_measures() -> None:
    wall, passed = [datetime(2020, 1, 1, tzinfo=UTC)], [0.0]
    clock = ApiClock(lambda: wall[0], lambda: passed[0])
    assert clock.now() == wall[0]
    assert clock.is_plausible()
    clock.heard(START)
    passed[0] = 60.0
    assert clock.now() == START + timedelta(seconds=60)
    assert not clock.is_plausible()
    clock.heard(datetime(2026, 1, 1))
    assert clock.now() == START + timedelta(seconds=60)


# Standing.


def _standing(**more: object) -> Standing:
    values: dict[str, object] = {
        "looked_at_s": 0.0,
        "serving_not_after": START,
        "has_been_ready": True,
        **more,
    }
    return Standing(lambda: 10.0, **values)  # type: ignore[arg-type]  # a table of any fields


_BAD = Verdict(Trust.UNKNOWN_AUTHORITY, "x")


@pytest.mark.parametrize(
    ("standing", "is_ready"),
    [
        pytest.param(_standing(own=Verdict(Trust.VERIFIED)), True, id="good"),
        pytest.param(_standing(own=None), True, id="no-probe"),
        pytest.param(_standing(own=_BAD), True, id="bundle-broken-for-all"),
        pytest.param(_standing(own=_BAD, is_behind=True), False, id="behind-the-others"),
        pytest.param(_standing(own=_BAD, has_been_ready=False), False, id="never-verified"),
        pytest.param(_standing(own=Verdict(Trust.UNREACHABLE, "x")), False, id="server-gone"),
        pytest.param(_standing(own=Verdict(Trust.TIMED_OUT, "x")), False, id="server-hangs"),
        pytest.param(_standing(serving_not_after=None), False, id="no-certificate"),
        pytest.param(_standing(looked_at_s=None, has_been_ready=False), False, id="never-read"),
    ],
)
def test_a_pod_gets_calls_unless_the_fault_is_its_own(standing: Standing, is_ready: bool) -> None:
    assert (standing.missing() == "") is is_ready


def test_probes_and_metrics_say_how_it_stands() -> None:
    async def work() -> None:
        standing = _standing(own=_BAD, has_been_ready=False, notes=("a note",), authorities={"signer": 1})
        exposition = exposition_of(standing)
        port = await exposition.start("127.0.0.1", 0)

        async def get(path: str) -> tuple[int, str]:
            return await asyncio.to_thread(_get, f"http://127.0.0.1:{port}{path}")

        assert await get("/startz") == (200, "ok\n")
        assert await get("/readyz") == (503, "not ok: UnknownAuthority: x\nnote: a note\n")
        assert (await get("/livez"))[0] == 200
        standing.monotonic_s = lambda: STUCK_S + 1
        assert (await get("/livez"))[0] == 503
        _, text = await get("/metrics")
        assert 'sidemount_certs_handshake{trust="UnknownAuthority"} 1.0' in text
        assert 'sidemount_certs_authorities{state="signer"} 1.0' in text
        assert "sidemount_certs_serving_not_after_seconds 1.7723664e+09" in text
        assert "sidemount_certs_last_success_age_seconds 121.0" in text
        second = exposition_of(standing)
        with pytest.raises(HostFailure, match="cannot listen"):
            await second.start("127.0.0.1", port)
        for each in (second, exposition):
            await each.stop()

    asyncio.run(work())


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_every_trust_code_is_explained() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text()
    for trust in Trust:
        if trust is not Trust.VERIFIED:
            assert f"| `{trust.value}` |" in text, f"{trust.value} is not in docs/troubleshooting.md"
    for custody in Custody:
        assert f"`{custody.value}`" in (ROOT / "docs/certificates.md").read_text()


def test_what_keeps_it_from_starting_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n"
    )
    arguments = ["rotate", *_REQUIRED, "--kubeconfig", str(kubeconfig), "--listen", "192.0.2.1:1"]
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    try:
        assert main(arguments) == 1
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    assert "certs: cannot listen on 192.0.2.1:1" in capsys.readouterr().err
