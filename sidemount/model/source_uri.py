"""Source URIs: their syntax, and the query of the short form.

A source is taken literally: nothing in it is ever decoded by us. `dir`, `pvc` and `nfs` sources therefore hold no `%` at all; in any
other an escape is kept for the client, unless it stands for a separator, a dot, a percent sign or a control character, which
would let a client see another path than the one the class's globs allowed. Only the values of a query are percent-decoded, once,
as UTF-8; `+` is a plus. Credentials are never part of a source, and a text that may hold one is never shown.
"""

import re

from sidemount.model.errors import InvalidRequest, VolumeError, shown
from sidemount.model.names import subdomain_fault
from sidemount.model.sub_path import sub_path_fault, unprintable_fault

SOURCE_MAX_BYTES = 2048
QUERY_PAIRS_MAX = 128

_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/]*)(?P<path>/.*)?\Z", re.DOTALL)
_AUTHORITY = re.compile(
    r"(?P<user>[A-Za-z0-9._~-]+@)?(?P<host>[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])?(?P<port>:[0-9]{1,5})?\Z"
)
_ESCAPE = re.compile(r"%(?P<hex>[0-9A-Fa-f]{2})?")
_FORBIDDEN_ESCAPES = frozenset(b"./\\%") | frozenset(range(0x20)) | {0x7F}
_QUERY_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}\Z")
_LITERAL_SCHEMES = ("dir", "pvc", "nfs")


def scheme_of(source: str) -> str:
    """Return the scheme of a source that has passed `source_fault`."""
    return source.partition("://")[0]


def source_parts(source: str) -> dict[str, str]:
    """Return user, host, port and path of a source, each with the mark that goes with it ("me@", "host", ":22", "/path"), or ""."""
    _, _, rest = source.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, address = authority.rpartition("@")
    bracket = address.rfind("]")
    colon = address.find(":", bracket + 1)
    host, port = (address, "") if colon < 0 else (address[:colon], address[colon:])
    return {"user": user + at, "host": host, "port": port, "path": slash + path}


def redacted_source(source: str) -> str:
    """Return a source, everything that could be a credential left out."""
    scheme, separator, rest = source.partition("://")
    if "@" in rest:
        rest = "…@" + rest.rpartition("@")[2]
    return scheme + separator + rest.partition("?")[0].partition("#")[0]


def shown_source(source: str) -> str:
    """Render a source for a message, everything that could be a credential left out."""
    return shown(redacted_source(source))


def source_fault(source: str) -> str:
    """Return why a text is no source, "" if it is one. The reason never repeats the text."""
    if len(source.encode("utf-8", "surrogatepass")) > SOURCE_MAX_BYTES:
        return f"is longer than {SOURCE_MAX_BYTES} bytes"
    why = unprintable_fault(source)
    if why:
        return why
    if source != source.strip():
        return "starts or ends with a space"
    for mark, meaning in (
        ("#", "a fragment"),
        ("\\", "a backslash"),
        ("?", "a query, which goes into options here"),
    ):
        if mark in source:
            return f"has {meaning}"
    if "${" in source or "$(" in source:
        return "holds ${ or $(, which Kubernetes or a command template would expand"
    found = _URI.match(source)
    if found is None:
        return "is not a URI such as s3://bucket/prefix or dir:///path (the scheme is in lower case)"
    authority = _AUTHORITY.match(found["authority"])
    if authority is None:
        return "has a host part that is more than [user@]host[:port]; a password goes into the secret, never into a source"
    return _path_fault(found["scheme"], found["path"] or "") or _scheme_fault(found, authority)


def _path_fault(scheme: str, path: str) -> str:
    for escape in _ESCAPE.finditer(path):
        if scheme in _LITERAL_SCHEMES:
            return "holds a percent sign; a path is taken literally, so write the character itself"
        if escape["hex"] is None:
            return "holds a percent sign that starts no escape"
        if int(escape["hex"], 16) in _FORBIDDEN_ESCAPES:
            return f"holds the escape {escape[0]}, which hides a character that means something in a path"
    # A trailing slash marks a prefix of an object store; a directory's path is written in one way only.
    inner = path[1:] if scheme in _LITERAL_SCHEMES else path[1:].removesuffix("/")
    return "has an empty component" if inner.startswith("/") else sub_path_fault(inner)


def _scheme_fault(uri: re.Match[str], authority: re.Match[str]) -> str:
    """Check what each scheme needs of its host and path."""
    host, path = authority["host"] or "", uri["path"] or ""
    match uri["scheme"]:
        case "dir":
            if uri["authority"] or not path:
                return "must have three slashes and an absolute path: dir:///path"
        case "pvc":
            if authority["user"] or authority["port"] or not host or subdomain_fault(host):
                return "must name a PersistentVolumeClaim: pvc://claim or pvc://claim/sub/path"
        case "nfs":
            if authority["user"] or not host or not path:
                return "must name a server and an absolute path: nfs://server/path"
        case "s3" | "gs" | "az" | "http" | "https":
            if not host:
                return "names nothing after the scheme, where its bucket or server goes"
        case _:
            if not host and (not path or uri["authority"]):
                return "names nothing after the scheme"
    return ""


def parse_query(query: str, where: str, faults: list[VolumeError]) -> tuple[tuple[str, str], ...]:
    """Split `a=1&b=2` and decode the values; the parts at fault are left out and reported."""
    pieces = query.split("&")
    if len(pieces) > QUERY_PAIRS_MAX:
        faults.append(InvalidRequest(f"{where}: the query has more than {QUERY_PAIRS_MAX} parts"))
        return ()
    pairs: dict[str, str] = {}
    for number, piece in enumerate(pieces, 1):
        key, equals, value = piece.partition("=")
        if not _QUERY_KEY.match(key):
            # What is no key may be a piece of a credential: tell its place, not its text.
            faults.append(
                _query_fault(where, f"part {number} has no proper name", "write name=value&name=value")
            )
        elif not equals:
            faults.append(_query_fault(where, f"{shown(key)} has no value", f"write {key}=true or {key}=…"))
        elif key in pairs:
            faults.append(_query_fault(where, f"{shown(key)} is there twice", "keep one of them"))
        else:
            pairs[key] = ""
            try:
                pairs[key] = _decoded(value)
            except ValueError:
                why = f"the value of {shown(key)} is not percent-encoded UTF-8"
                faults.append(_query_fault(where, why, "write %25 for a percent sign"))
    return tuple(pairs.items())


def _query_fault(where: str, why: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"{where}, query: {why}", hint=hint)


def _decoded(value: str) -> str:
    """Undo percent-encoding once, strictly. Raises ValueError."""
    head, *rest = value.split("%")
    octets = [head.encode()]
    for piece in rest:
        if not re.match(r"[0-9A-Fa-f]{2}", piece):
            raise ValueError("not an escape")
        octets += (bytes.fromhex(piece[:2]), piece[2:].encode())
    return b"".join(octets).decode()
