"""The cluster's certificates and tokens."""

import base64
import csv
import ipaddress
import json
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from e2e.cluster.kubeconfig import render_kubeconfig
from e2e.cluster.pki import accounts_of, make_certificates, make_tokens, render_tokens
from e2e.cluster.topology import Node, Topology

_NOW = datetime(2026, 5, 4, 3, 2, tzinfo=UTC)
_TOPOLOGY = Topology("one", (Node(0), Node(1)))


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The files of a cluster of two nodes."""
    return make_certificates(_TOPOLOGY, _NOW)


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        pytest.param("apiserver", x509.DNSName("kubernetes.default.svc"), id="service"),
        pytest.param("apiserver", x509.IPAddress(ipaddress.ip_address("10.0.0.1")), id="service-address"),
        pytest.param("apiserver", x509.IPAddress(ipaddress.ip_address("10.88.0.1")), id="node-address"),
        pytest.param("kubelet-node-1", x509.IPAddress(ipaddress.ip_address("10.88.1.1")), id="kubelet"),
    ],
)
def test_a_server_is_believed_under_its_names(
    files: dict[str, bytes], name: str, subject: x509.DNSName | x509.IPAddress
) -> None:
    authority = x509.load_pem_x509_certificate(files["ca.crt"])
    leaf = x509.load_pem_x509_certificate(files[f"{name}.crt"])
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert subject in names
    assert leaf.not_valid_before_utc < _NOW < leaf.not_valid_after_utc


def test_every_certificate_has_its_key(files: dict[str, bytes]) -> None:
    pairs = [name.removesuffix(".crt") for name in files if name.endswith(".crt")]
    assert len(pairs) == 5
    for name in pairs:
        key = load_pem_private_key(files[f"{name}.key"], None)
        assert key.public_key() == x509.load_pem_x509_certificate(files[f"{name}.crt"]).public_key()


def test_the_api_server_is_a_master_to_kubelets(files: dict[str, bytes]) -> None:
    """Logs and exec go from the API server to kubelet, which asks who calls."""
    subject = x509.load_pem_x509_certificate(files["apiserver-kubelet.crt"]).subject
    assert subject.rfc4514_string() == "CN=kube-apiserver,O=system:masters"


def test_a_token_file_says_who_holds_a_token() -> None:
    accounts = accounts_of(_TOPOLOGY)
    made = iter(range(100))
    tokens = make_tokens(accounts, lambda: f"t{next(made)}")
    rows = list(csv.reader(render_tokens(accounts, tokens).splitlines()))
    assert ["t0", "admin", "admin", "system:masters"] in rows
    assert [row[1:] for row in rows if "node-1" in row[1]] == [
        ["system:node:node-1", "system:node:node-1", "system:nodes"]
    ]
    assert len({row[0] for row in rows}) == len(accounts)


def test_a_kubeconfig_holds_all_that_a_client_needs(files: dict[str, bytes]) -> None:
    config = json.loads(render_kubeconfig("https://10.88.0.1:6443", files["ca.crt"], "admin", "secret"))
    cluster = config["clusters"][0]["cluster"]
    assert base64.b64decode(cluster["certificate-authority-data"]) == files["ca.crt"]
    assert config["users"] == [{"name": "admin", "user": {"token": "secret"}}]
    assert config["current-context"] == config["contexts"][0]["name"]
