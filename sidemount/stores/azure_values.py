"""Azure's headers and XML as values of the port, and the other way round."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from sidemount.stores import xml_text
from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.s3_values import etag_of, moment_ns
from sidemount.stores.store import Buffer, FaultKind, ObjectInfo

TAG_HEADER = "x-ms-meta-sidemount_tag"
NONCE_HEADER = "x-ms-meta-sidemount_nonce"
_BOM = b"\xef\xbb\xbf"


def root_of(answer: Answer, name: str) -> xml_text.Element:
    """Return the root of an answer, which may begin with a mark of its encoding. Raises ExchangeFailed."""
    return xml_text.parse(answer.body.removeprefix(_BOM), name)


def info_in(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    """Return what the headers of a HEAD or a GET tell of a blob. Raises ExchangeFailed if they do not."""
    size = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    etag = headers.get("etag", "")
    if not (size.isascii() and size.isdigit()) or not etag:
        raise senseless("no size or no ETag")
    return ObjectInfo(key, int(size), etag_of(etag), moment_ns(headers.get("last-modified", "")))


def written(key: str, size: int, answer: Answer) -> ObjectInfo:
    """Return the version that a request has made."""
    etag = answer.headers.get("etag", "")
    if not etag:
        raise senseless("no ETag")
    return ObjectInfo(key, size, etag_of(etag), moment_ns(answer.headers.get("last-modified", "")))


def listed(answer: Answer) -> tuple[list[ObjectInfo], list[str], str]:
    """Return the blobs, the prefixes and the marker of the next page, "" at the end, of a listing."""
    root = root_of(answer, "EnumerationResults")
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    for one in root.find("Blobs") or ():
        name = one.find("Name")
        key = (name.text or "") if name is not None else ""
        if name is not None and name.get("Encoded") == "true":
            key = unquote(key)
        if xml_text.name_of(one) == "BlobPrefix":
            prefixes.append(key)
            continue
        told = xml_text.texts(one.find("Properties") or one)
        size = told.get("Content-Length", "")
        if not key or not (size.isascii() and size.isdigit()):
            raise senseless("no name or no size of a blob")
        # An ETag has quotation marks in headers only.
        etag = etag_of(told.get("Etag", ""))
        objects.append(ObjectInfo(key, int(size), etag, moment_ns(told.get("Last-Modified", ""))))
    return objects, prefixes, root.findtext("NextMarker") or ""


def blocks(answer: Answer) -> list[tuple[str, int]]:
    """Return id and size of each block in an answer that no blob is made of yet."""
    found: list[tuple[str, int]] = []
    for one in root_of(answer, "BlockList").iterfind("UncommittedBlocks/Block"):
        told = xml_text.texts(one)
        try:
            name = base64.b64decode(told.get("Name", ""), validate=True).decode("ascii", "replace")
            found.append((name, int(told.get("Size", ""))))
        except ValueError as error:
            raise senseless("a block without name or size") from error
    return found


def md5_of(content: Iterable[Buffer]) -> str:
    """Return the checksum of buffers one after the other as Azure writes it."""
    found = hashlib.md5(usedforsecurity=False)
    for one in content:
        found.update(one)
    return base64.b64encode(found.digest()).decode("ascii")


def is_whole(headers: Mapping[str, str], content: memoryview) -> bool:
    """Tell whether a whole blob is what its headers say. Those made of blocks have no checksum, and this says nothing of them."""
    told = headers.get("x-ms-blob-content-md5") or headers.get("content-md5", "")
    return not told or told == md5_of([content])


def tag_header(tag: str) -> dict[str, str]:
    """Return the header that a tag goes with."""
    return {TAG_HEADER: quote(tag, safe="")} if tag else {}


def tag_in(headers: Mapping[str, str]) -> str:
    """Return the tag that a blob was written with."""
    return unquote(headers.get(TAG_HEADER, ""))


def senseless(what: str) -> ExchangeFailed:
    """Return the fault of an answer that holds this."""
    return ExchangeFailed(FaultKind.ANSWER, f"the answer holds {what}", sent=True)
