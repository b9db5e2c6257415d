"""S3's headers and texts as values of the port, and the other way round."""

import base64
import functools
import hashlib
import time
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote, unquote_to_bytes

from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.store import FaultKind, ObjectInfo

TAG_HEADER = "x-amz-meta-sidemount-tag"


def etag_of(told: str) -> str:
    """Return an ETag without its quotation marks, so that listings and headers say the same."""
    return told[1:-1] if len(told) > 1 and told[0] == '"' == told[-1] else told


def quoted(etag: str) -> str:
    """Return an ETag as conditions name it."""
    return etag if etag.startswith("W/") else f'"{etag}"'


@functools.lru_cache(maxsize=256)
def moment_ns(told: str) -> int:
    """Return the time that a Last-Modified or Date header names, 0 if none."""
    try:
        return int(parsedate_to_datetime(told).timestamp()) * 1_000_000_000
    except ValueError:
        return 0


@functools.lru_cache(maxsize=256)
def instant_ns(told: str) -> int:
    """Return the time that a listing names, 0 if none. In whole seconds, as headers have it: the two must agree."""
    try:
        moment = datetime.fromisoformat(told)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000


def info_of(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    """Return what the headers of a HEAD or a GET tell of an object. Raises ExchangeFailed if they do not."""
    told = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    if not (told.isascii() and told.isdigit()) or not headers.get("etag"):
        raise ExchangeFailed(FaultKind.ANSWER, "the answer tells no size or no ETag", sent=True)
    return ObjectInfo(key, int(told), etag_of(headers["etag"]), moment_ns(headers.get("last-modified", "")))


def written(key: str, size: int, answer: Answer) -> ObjectInfo:
    """Return the version that a PUT has made."""
    etag = answer.headers.get("etag")
    if not etag:
        raise ExchangeFailed(FaultKind.ANSWER, "the answer tells no ETag", sent=True)
    modified_ns = moment_ns(answer.headers.get("date", "")) or time.time_ns()
    return ObjectInfo(key, size, etag_of(etag), modified_ns)


def tag_header(tag: str) -> dict[str, str]:
    """Return the header that a tag goes with."""
    return {TAG_HEADER: quote(tag, safe="")} if tag else {}


def tag_in(headers: Mapping[str, str]) -> str:
    """Return the tag that an object was written with."""
    return unquote(headers.get(TAG_HEADER, ""))


def decoded(text: str) -> str:
    """Return a key that a listing has encoded. What is no UTF-8 comes as surrogate escapes."""
    if "+" in text:
        text = text.replace("+", " ")
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape") if "%" in text else text


def is_text(key: str) -> bool:
    """Tell whether a decoded key is UTF-8. No protocol of ours could name one that is not."""
    return key.isascii() or not any("\ud800" <= char < "\ue000" for char in key)


def check_sums(headers: Mapping[str, str], content: memoryview) -> bool:
    """Tell whether a whole object is what its headers say. Sums of parts ("…-3") and unknown ones say nothing."""
    crc32 = headers.get("x-amz-checksum-crc32", "")
    if crc32 and "-" not in crc32:
        return base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode() == crc32
    sha256 = headers.get("x-amz-checksum-sha256", "")
    if sha256 and "-" not in sha256:
        return base64.b64encode(hashlib.sha256(content).digest()).decode() == sha256
    sha1 = headers.get("x-amz-checksum-sha1", "")
    if sha1 and "-" not in sha1:
        return base64.b64encode(hashlib.sha1(content, usedforsecurity=False).digest()).decode() == sha1
    return True
