"""Azure's proofs of who asks: a Shared Key signature of a request, and a signature in a URL that lets a source be read.

Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key and …/create-service-sas
"""

import base64
import hmac
import time
from collections.abc import Mapping
from urllib.parse import unquote, urlencode

from sidemount.stores.http_message import Request

VERSION = "2021-12-02"
_SIGNED = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)


def shared_key(request: Request, account: str, key: bytes) -> str:
    """Return the Authorization header of a request. Its headers are in lower case; `content-length` is that of its body."""
    headers: Mapping[str, str] = {**request.headers, "content-length": str(request.size or "")}
    own = sorted((name, value) for name, value in headers.items() if name.startswith("x-ms-"))
    path, _, query = request.target.partition("?")
    resource = f"/{account}{path}"
    for name, value in sorted(_pairs(query)):
        resource += f"\n{name}:{value}"
    lines = [request.method, *(headers.get(name, "") for name in _SIGNED)]
    text = "\n".join(lines) + "\n" + "".join(f"{name}:{value}\n" for name, value in own) + resource
    return f"SharedKey {account}:{_signature(key, text)}"


def readable(account: str, container: str, key: str, secret: bytes, life_s: int) -> str:
    """Return a query that lets one blob be read for a while."""
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + life_s))
    resource = f"/blob/{account}/{container}/{key}"
    # Permissions, start, end, resource, identifier, addresses, protocols, version, kind, snapshot, encryption scope, five headers.
    fields = ["r", "", ends, resource, "", "", "", VERSION, "b", "", "", "", "", "", "", ""]
    signature = _signature(secret, "\n".join(fields))
    return urlencode({"sv": VERSION, "sr": "b", "sp": "r", "se": ends, "sig": signature})


def _pairs(query: str) -> list[tuple[str, str]]:
    """Return names in lower case and values of a query as this package encodes it: each name once, with a "="."""
    if not query:
        return []
    pairs = (one.partition("=") for one in query.split("&"))
    return [(unquote(name).lower(), unquote(value)) for name, _, value in pairs]


def _signature(key: bytes, text: str) -> str:
    return base64.b64encode(hmac.digest(key, text.encode("utf-8"), "sha256")).decode("ascii")
