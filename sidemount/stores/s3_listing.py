"""Listings of S3: pages of keys, of unfinished uploads and of their parts."""

from collections.abc import Callable, Iterator

from sidemount.stores import s3_entries, xml_text
from sidemount.stores.http_message import Answer, ExchangeFailed
from sidemount.stores.s3_values import decoded, etag_of, instant_ns, is_text
from sidemount.stores.store import FaultKind, ObjectInfo, Page, Part

# A token of the port says which of S3's two ways a page was left by.
_CONTINUATION = "c"
_AFTER = "a"
_LAST = "\U0010ffff"


def page_query(prefix: str, delimiter: bool, token: str, most: int) -> list[tuple[str, str]]:
    """Return the query for a page."""
    query = [("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix), ("max-keys", str(most))]
    if delimiter:
        query.append(("delimiter", "/"))
    match token[:1]:
        case "c":
            query.append(("continuation-token", token[1:]))
        case "a":
            query.append(("start-after", token[1:]))
    return query


def page_of(answer: Answer, before: str, unreadable: Callable[[str], None]) -> Page:
    """Return the page in an answer. `before`: the token it was asked with, which must not come again. `unreadable` hears of keys that are no UTF-8."""
    text = xml_text.text_of(answer.body)
    listed = s3_entries.entries_in(text)
    root = xml_text.parse_text(text if listed is None else listed.rest, "ListBucketResult")
    namespace = root.tag[: -len("ListBucketResult")]
    is_encoded = root.findtext(f"{namespace}EncodingType") == "url"
    decode: Callable[[str], str] = decoded if is_encoded else str
    objects: list[ObjectInfo] = []
    try:
        for told, modified, etag, size in _entries(root, namespace) if listed is None else listed.entries:
            key = decode(told)
            if is_text(key):
                objects.append(ObjectInfo(key, int(size), etag, instant_ns(modified)))
            else:
                unreadable(key)
    except ValueError as error:
        raise ExchangeFailed(FaultKind.ANSWER, "a size in the listing is no number", sent=True) from error
    prefixes = []
    for one in root.findall(f"{namespace}CommonPrefixes"):
        shown = decode(one.findtext(f"{namespace}Prefix") or "")
        prefixes.append(shown) if is_text(shown) else unreadable(shown)
    token = ""
    if root.findtext(f"{namespace}IsTruncated") == "true":
        token = _next(root.findtext(f"{namespace}NextContinuationToken"), objects, prefixes)
        if not token or token == before:
            raise ExchangeFailed(FaultKind.ANSWER, "the listing does not say how it goes on", sent=True)
    return Page(objects, prefixes, token)


def _entries(root: xml_text.Element, namespace: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, time, ETag and size of each entry, as they are written."""
    names = [f"{namespace}{name}" for name in ("Key", "LastModified", "ETag", "Size")]
    for one in root.findall(f"{namespace}Contents"):
        key, modified, etag, size = (one.findtext(name) or "" for name in names)
        yield key, modified, etag_of(etag), size or "0"


def _next(told: str | None, objects: list[ObjectInfo], prefixes: list[str]) -> str:
    if told:
        return _CONTINUATION + told
    last = max([*(one.key for one in objects[-1:]), *(one + _LAST for one in prefixes[-1:])], default="")
    return _AFTER + last if last else ""


def uploads_of(answer: Answer) -> tuple[list[tuple[str, str, int]], tuple[str, str] | None]:
    """Return (key, id, begun in ns) of each unfinished upload in an answer, and the markers of the next page if there is one."""
    root = xml_text.parse(answer.body, "ListMultipartUploadsResult")
    head = xml_text.texts(root)
    decode: Callable[[str], str] = decoded if head.get("EncodingType") == "url" else str
    found = [
        (decode(one.get("Key", "")), one.get("UploadId", ""), instant_ns(one.get("Initiated", "")))
        for one in _children(root, "Upload")
    ]
    if head.get("IsTruncated") != "true":
        return found, None
    return found, (decode(head.get("NextKeyMarker", "")), head.get("NextUploadIdMarker", ""))


def parts_of(answer: Answer) -> tuple[list[Part], str]:
    """Return the parts in an answer, and the marker of the next page, "" if there is none."""
    root = xml_text.parse(answer.body, "ListPartsResult")
    head = xml_text.texts(root)
    try:
        found = [
            Part(int(one.get("PartNumber", "")), int(one.get("Size", "")), etag_of(one.get("ETag", "")))
            for one in _children(root, "Part")
        ]
    except ValueError as error:
        raise ExchangeFailed(
            FaultKind.ANSWER, "a part in the answer has no number or size", sent=True
        ) from error
    return found, head.get("NextPartNumberMarker", "") if head.get("IsTruncated") == "true" else ""


def _children(root: xml_text.Element, name: str) -> Iterator[dict[str, str]]:
    return (xml_text.texts(child) for child in root if xml_text.name_of(child) == name)
