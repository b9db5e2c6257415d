"""Host names and addresses that a serving certificate may carry."""

import ipaddress
import re
from collections.abc import Iterable

from cryptography import x509

from sidemount.model.errors import InvalidRequest

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_MAX_DNS_NAME = 253


def parse_host(text: str) -> x509.GeneralName:
    """Return a host as the subject alternative name it stands for: an IP address or a DNS name.

    Raises: InvalidRequest.
    """
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        pass
    else:
        if "%" in str(address):
            raise InvalidRequest(
                f"host {text[:80]!r} has a zone, which no certificate can hold",
                hint="leave out the % and the rest",
            )
        return x509.IPAddress(address)
    name = text.lower().removesuffix(".")
    if len(name) > _MAX_DNS_NAME or not _DNS_NAME.fullmatch(name) or _looks_like_address(name):
        raise InvalidRequest(
            f"host {text[:80]!r} is neither an IP address nor a DNS name",
            hint="write it without scheme, port and path, in ASCII (xn-- for other scripts)",
        )
    return x509.DNSName(name)


def parse_hosts(texts: Iterable[str]) -> tuple[x509.GeneralName, ...]:
    """Return the names of all hosts, each once, in the order given.

    Raises: InvalidRequest, also if there is none.
    """
    names = tuple(dict.fromkeys(parse_host(text) for text in texts))
    if not names:
        raise InvalidRequest("a serving certificate needs at least one host", hint="give --name HOST")
    return names


def render_host(name: x509.GeneralName) -> str:
    """Return a subject alternative name as text."""
    return str(name.value)


def _looks_like_address(name: str) -> bool:
    """Tell whether the last label is all digits: no host name on any network, but a mistyped address."""
    return name.rpartition(".")[2].isdigit()
