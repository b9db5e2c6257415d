"""The cluster's authority, the certificates that it signs, and the tokens of those who talk to the API server."""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.topology import API_SERVICE, DOMAIN, Node, Topology

_BACK_DATED = timedelta(hours=1)
_LIFETIME = timedelta(days=30)
_MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class Account:
    """Who a token stands for: `name` names its files, `user` and `group` are the API server's words."""

    name: str
    user: str
    group: str = ""


def accounts_of(topology: Topology) -> tuple[Account, ...]:
    """Return everyone who gets a token and a kubeconfig."""
    return (
        Account("admin", "admin", _MASTERS),
        Account("kube-controller-manager", "system:kube-controller-manager"),
        Account("kube-scheduler", "system:kube-scheduler"),
        Account("kube-proxy", "system:kube-proxy"),
        *(
            Account(f"kubelet-{node.name}", f"system:node:{node.name}", "system:nodes")
            for node in topology.nodes
        ),
    )


def render_tokens(accounts: Sequence[Account], tokens: Mapping[str, str]) -> str:
    """Return a token file: one line an account. Source: kubernetes.io, Static token file."""
    lines = (
        f'{tokens[account.name]},{account.user},{account.user},"{account.group}"' for account in accounts
    )
    return "".join(f"{line}\n" for line in lines)


def make_tokens(accounts: Sequence[Account], random_text: Callable[[], str]) -> dict[str, str]:
    """Return a token for each account, by its name."""
    return {account.name: random_text() for account in accounts}


def make_certificates(topology: Topology, now: datetime) -> dict[str, bytes]:
    """Return the PEM files of a cluster by their names. `now` is aware."""
    signer = _Signer(now)
    api_names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        f"kubernetes.default.svc.{DOMAIN}",
        "localhost",
        topology.nodes[0].name,
        API_SERVICE,
        topology.api_address,
        "127.0.0.1",
    ]
    files = {
        **_pair("ca", signer.certificate, signer.key),
        **_pair("apiserver", *signer.issue("kube-apiserver", names=api_names)),
        **_pair("apiserver-kubelet", *signer.issue("kube-apiserver", group=_MASTERS)),
    }
    for node in topology.nodes:
        files |= _pair(
            f"kubelet-{node.name}", *signer.issue(f"system:node:{node.name}", names=_names_of(node))
        )
    accounts_key = ec.generate_private_key(ec.SECP256R1())
    files["service-accounts.key"] = _render_key(accounts_key)
    files["service-accounts.pub"] = accounts_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return files


def _names_of(node: Node) -> list[str]:
    return [node.name, node.address, "127.0.0.1"]


class _Signer:
    """An authority with its key."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _subject("sidemount test cluster")
        self.certificate = (
            self._builder(self._subject, self.key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def issue(
        self, common_name: str, *, group: str = "", names: Sequence[str] = ()
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Return a certificate for serving under `names`, or for a client of `group` where there are none."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            self._builder(_subject(common_name, group), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
        return builder.sign(self.key, hashes.SHA256()), key

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _BACK_DATED)
            .not_valid_after(self._now + _LIFETIME)
        )


def _subject(common_name: str, group: str = "") -> x509.Name:
    names = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if group:
        names.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(names)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pair(name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> dict[str, bytes]:
    return {
        f"{name}.crt": certificate.public_bytes(serialization.Encoding.PEM),
        f"{name}.key": _render_key(key),
    }


def _render_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
