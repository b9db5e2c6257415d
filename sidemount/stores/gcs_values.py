"""Google's JSON and headers as values of the port. A version is a generation: a number that no other content of the key ever has."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.s3_values import instant_ns, moment_ns
from sidemount.stores.store import Buffer, FaultKind, ObjectInfo

TAG = "sidemount-tag"
FIELDS = "name,size,generation,updated,metadata"


def document(answer: Answer) -> dict[str, Any]:
    """Return the JSON object in an answer. Raises ExchangeFailed if there is none."""
    try:
        found = json.loads(answer.body)
    except ValueError as error:
        raise _senseless("no JSON") from error
    if not isinstance(found, dict):
        raise _senseless("no JSON object")
    return found


class Listed(NamedTuple):
    """A page of a listing: objects with their metadata, prefixes, and the token of the next page, "" at the end."""

    items: list[tuple[ObjectInfo, dict[str, str]]]
    prefixes: list[str]
    token: str


def listed(answer: Answer) -> Listed:
    """Return the page in an answer. Raises ExchangeFailed if there is none."""
    told = document(answer)
    items, prefixes = told.get("items", []), told.get("prefixes", [])
    if not isinstance(items, list) or not isinstance(prefixes, list):
        raise _senseless("no listing")
    found = [(info_of(one), metadata_of(one)) for one in items]
    return Listed(found, [str(one) for one in prefixes], str(told.get("nextPageToken") or ""))


def resource_in(answer: Answer) -> tuple[ObjectInfo, dict[str, str]]:
    """Return the object in an answer and its metadata."""
    told = document(answer)
    return info_of(told), metadata_of(told)


def made_in(answer: Answer) -> ObjectInfo:
    """Return the object that an answer says has been made."""
    return info_of(document(answer))


def rewritten_in(answer: Answer) -> tuple[ObjectInfo | None, str]:
    """Return the object that a rewrite has made, or None and the token to go on with."""
    told = document(answer)
    if told.get("done", True):
        return info_of(told.get("resource") or {}), ""
    if not told.get("rewriteToken"):
        raise _senseless("no token to go on with")
    return None, str(told["rewriteToken"])


def info_of(told: Mapping[str, Any]) -> ObjectInfo:
    """Return what a resource tells of an object. Raises ExchangeFailed if it does not."""
    try:
        return ObjectInfo(
            str(told["name"]),
            int(told["size"]),
            str(int(told["generation"])),
            instant_ns(str(told["updated"])),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise _senseless("no name, size, generation or time of an object") from error


def metadata_of(told: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata in a resource."""
    found = told.get("metadata") or {}
    if not isinstance(found, dict):
        raise _senseless("metadata that is none")
    return {str(name): str(value) for name, value in found.items()}


def info_in(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    """Return what the headers of content tell of an object. Raises ExchangeFailed if they do not."""
    size = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    generation = headers.get("x-goog-generation", "")
    if not _is_number(size) or not _is_number(generation):
        raise _senseless("no size or no generation of an object")
    return ObjectInfo(key, int(size), generation, moment_ns(headers.get("last-modified", "")))


def is_whole(headers: Mapping[str, str], content: memoryview) -> bool:
    """Tell whether a whole object is what its headers say. Objects made of others have no MD5, and this says nothing of them."""
    sums = dict(one.strip().partition("=")[::2] for one in headers.get("x-goog-hash", "").split(","))
    return "md5" not in sums or sums["md5"] == md5_of([content])


def md5_of(content: Iterable[Buffer]) -> str:
    """Return the checksum of buffers one after the other as Google writes it."""
    found = hashlib.md5(usedforsecurity=False)
    for one in content:
        found.update(one)
    return base64.b64encode(found.digest()).decode("ascii")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _senseless(what: str) -> ExchangeFailed:
    return ExchangeFailed(FaultKind.ANSWER, f"the answer holds {what}", sent=True)
