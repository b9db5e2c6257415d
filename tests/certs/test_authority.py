"""What is issued: names, times, usages, and that a real TLS stack accepts it."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.authority import Issued, create_authority, issue_serving
from certs.hosts import parse_hosts
from certs.pem import render_certificate, render_key
from certs.usability import authority_fault, serving_fault
from sidemount.model.errors import InvalidRequest

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTS = ("webhook.sidemount-system.svc", "127.0.0.1", "::1")


@pytest.fixture(scope="module")
def authority() -> Issued:
    return create_authority("an authority", now=NOW)


@pytest.fixture(scope="module")
def serving(authority: Issued) -> Issued:
    return issue_serving(authority, parse_hosts(HOSTS), now=NOW)


def test_certificates_begin_an_hour_and_more_ago(authority: Issued, serving: Issued) -> None:
    """istio#32176, skupper#456, k/k#76714: a node whose clock is behind must not see "not yet valid"."""
    for issued in (authority, serving):
        assert issued.certificate.not_valid_before_utc <= NOW - timedelta(hours=1)


def test_a_serving_certificate_never_outlives_its_authority() -> None:
    short = create_authority("short", now=NOW, lifetime=timedelta(days=40))
    issued = issue_serving(short, parse_hosts(["a"]), now=NOW + timedelta(minutes=5))
    assert issued.certificate.not_valid_after_utc == short.certificate.not_valid_after_utc
    assert issued.certificate.not_valid_before_utc >= short.certificate.not_valid_before_utc


def test_keys_are_p256_and_serials_differ(authority: Issued, serving: Issued) -> None:
    for issued in (authority, serving):
        assert isinstance(issued.key.curve, ec.SECP256R1)
    again = issue_serving(authority, parse_hosts(HOSTS), now=NOW)
    assert again.certificate.serial_number != serving.certificate.serial_number
    assert again.key.private_numbers() != serving.key.private_numbers()


def test_extensions_say_exactly_what_each_is_for(authority: Issued, serving: Issued) -> None:
    ca, leaf = authority.certificate.extensions, serving.certificate.extensions
    constraints = ca.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert leaf.get_extension_for_class(x509.BasicConstraints).value.ca is False
    ca_usage, leaf_usage = (e.get_extension_for_class(x509.KeyUsage).value for e in (ca, leaf))
    assert (ca_usage.key_cert_sign, ca_usage.crl_sign, ca_usage.digital_signature) == (True, True, False)
    assert (leaf_usage.key_cert_sign, leaf_usage.crl_sign, leaf_usage.digital_signature) == (
        False,
        False,
        True,
    )
    assert list(leaf.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    names = leaf.get_extension_for_class(x509.SubjectAlternativeName).value
    assert tuple(str(name.value) for name in names) == HOSTS
    signer = ca.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert leaf.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == signer
    assert leaf.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest != signer


@pytest.mark.parametrize("subject", [x509.DNSName(HOSTS[0]), x509.IPAddress(parse_hosts(["::1"])[0].value)])
def test_a_strict_verifier_accepts_the_chain(
    authority: Issued, serving: Issued, subject: x509.DNSName | x509.IPAddress
) -> None:
    store = verification.Store([authority.certificate])
    verifier = verification.PolicyBuilder().store(store).time(NOW).build_server_verifier(subject)
    assert verifier.verify(serving.certificate, []) == [serving.certificate, authority.certificate]
    wrong = (
        verification.PolicyBuilder().store(store).time(NOW).build_server_verifier(x509.DNSName("other.svc"))
    )
    with pytest.raises(verification.VerificationError):
        wrong.verify(serving.certificate, [])


def test_a_real_handshake_verifies_name_and_chain(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = create_authority("an authority", now=now)
    serving = issue_serving(authority, parse_hosts(HOSTS), now=now)
    (tmp_path / "tls.crt").write_bytes(render_certificate(serving.certificate))
    (tmp_path / "tls.key").write_bytes(render_key(serving.key))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cadata=render_certificate(authority.certificate).decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    _shake_hands(server, client, HOSTS[0])
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake_hands(server, client, "other.svc")


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    assert not ends


@pytest.mark.parametrize(
    ("host", "name"),
    [
        pytest.param("LOCALHOST", "localhost", id="case"),
        pytest.param("a.b.svc.", "a.b.svc", id="trailing-dot"),
        pytest.param("*.example.com", "*.example.com", id="wildcard"),
        pytest.param("[::1]", "::1", id="brackets"),
        pytest.param("10.0.0.1", "10.0.0.1", id="ipv4"),
        pytest.param("xn--bcher-kva.example", "xn--bcher-kva.example", id="punycode"),
    ],
)
def test_hosts_are_read_as_names_or_addresses(host: str, name: str) -> None:
    assert str(parse_hosts([host])[0].value) == name


@pytest.mark.parametrize(
    "host",
    ["", " ", "http://a", "a:8443", "a/b", "a b", "a..b", "-a", "a-", "bücher.example", "a\n", "*", "a.*", "1.2.3", "1.2.3.256", "a" * 64, ".a", "a," * 5, "x" * 254],
)  # fmt: skip
def test_what_is_no_host_is_refused_by_name(host: str) -> None:
    with pytest.raises(InvalidRequest, match="neither an IP address nor a DNS name"):
        parse_hosts([host])


def test_no_hosts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one host"):
        parse_hosts([])


def test_the_longest_host_name_still_fits() -> None:
    name = ".".join(["a" * 63] * 3 + ["b" * 60])
    authority = create_authority("a", now=NOW)
    issued = issue_serving(authority, parse_hosts([name]), now=NOW)
    assert serving_fault(issued, authority.certificate, parse_hosts([name]), now=NOW) == ""


def test_an_authority_is_good_until_its_last_month(authority: Issued) -> None:
    ends = authority.certificate.not_valid_after_utc
    assert authority_fault(authority, now=NOW) == ""
    assert authority_fault(authority, now=ends - timedelta(days=31)) == ""
    assert "ends" in authority_fault(authority, now=ends - timedelta(days=29))
    assert "not valid before" in authority_fault(authority, now=NOW - timedelta(days=1))


def test_a_leaf_is_no_authority(authority: Issued, serving: Issued) -> None:
    assert "no authority" in authority_fault(serving, now=NOW)


def test_a_pair_that_does_not_match_is_found_out(authority: Issued, serving: Issued) -> None:
    mixed = Issued(serving.certificate, authority.key)
    assert "belong together" in serving_fault(
        mixed, authority.certificate, parse_hosts(["127.0.0.1"]), now=NOW
    )


def test_another_authority_of_the_same_name_is_found_out(serving: Issued) -> None:
    """cert-controller#13: replicas with authorities that look alike."""
    twin = create_authority("an authority", now=NOW)
    assert "not issued" in serving_fault(serving, twin.certificate, parse_hosts(["127.0.0.1"]), now=NOW)


def test_a_missing_name_is_found_out(authority: Issued, serving: Issued) -> None:
    fault = serving_fault(serving, authority.certificate, parse_hosts(["127.0.0.1", "new.svc"]), now=NOW)
    assert fault == "it is not for new.svc"
