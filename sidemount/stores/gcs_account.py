"""A service account of Google: its key file, and the statements that it signs.

Source: https://developers.google.com/identity/protocols/oauth2/service-account
"""

import base64
import json
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sidemount.stores.credentials import Damaged
from sidemount.stores.http_message import parse_endpoint

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_LIFE_S = 3600


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """What is needed of a key file. Source of the interface: `sidemount.stores.gcs_tokens.Account`."""

    email: str
    token_uri: str
    key_id: str
    private_key: str = field(repr=False)

    def assertion(self, now_s: int) -> str:
        """Return a signed statement of who asks, good for an hour."""
        claims = {
            "iss": self.email,
            "scope": _SCOPE,
            "aud": self.token_uri,
            "iat": now_s,
            "exp": now_s + _LIFE_S,
        }
        header = {"alg": "RS256", "typ": "JWT", "kid": self.key_id}
        text = ".".join(_encoded(json.dumps(one).encode("utf-8")) for one in (header, claims))
        signature = _loaded(self.private_key).sign(text.encode("ascii"), padding.PKCS1v15(), SHA256())
        return f"{text}.{_encoded(signature)}"


def parse_account(text: str) -> ServiceAccount:
    """Return the account of a key file. Damaged if it is none; the text says nothing of what is in it."""
    try:
        told = json.loads(text)
        found = ServiceAccount(
            str(told["client_email"]),
            str(told["token_uri"]),
            str(told.get("private_key_id", "")),
            str(told["private_key"]),
        )
        _loaded(found.private_key)
        parse_endpoint(found.token_uri)
    except (ValueError, LookupError, TypeError, AttributeError, UnsupportedAlgorithm):
        raise Damaged("the service account's file is no key file of Google") from None
    return found


def _loaded(private_key: str) -> rsa.RSAPrivateKey:
    key = load_pem_private_key(private_key.encode("utf-8"), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("no RSA key")
    return key


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")
