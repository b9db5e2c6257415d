"""A web site as a store: read only, and nothing is listed. What has a strong ETag is known by it, the rest by time and size."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from sidemount.stores.faults import fault
from sidemount.stores.http_message import ExchangeFailed, Request
from sidemount.stores.opening import http_pool
from sidemount.stores.ranged import Dialled, Ranged
from sidemount.stores.retries import Calls, Operation, Refused
from sidemount.stores.s3_values import etag_of, moment_ns, quoted
from sidemount.stores.settings import StoreSettings
from sidemount.stores.store import Abilities, Buffer, FaultKind, Got, ObjectInfo, ObjectStore, Page, Part
from sidemount.stores.throttle import lane_of
from sidemount.stores.web_site import WebSite

_DATED = "@"  # never the beginning of an ETag that we have of a header: those have quotation marks
_NO_HEAD = frozenset({403, 405, 501})


class WebStore:
    """Source of the interface: `sidemount.stores.store.ObjectStore`. For any thread."""

    abilities = Abilities(
        listing=False,
        writing=False,
        put_if_absent=False,
        put_if_match=False,
        copy=False,
        uploads=False,
        copy_part=False,
    )

    def __init__(self, site: WebSite, calls: Calls) -> None:
        self._site = site
        self._calls = calls

    @property
    def counts(self) -> dict[str, int]:
        """Return numbers of requests and faults."""
        return self._calls.counts.numbers()

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key. One that ends with "/" is a directory if the server has anything to say there."""
        if key.endswith("/"):
            return self._directory(key)
        try:
            return self._calls.call(
                self._operation("HEAD", key),
                lambda: self._site.request("HEAD", key),
                lambda answer: _info_in(key, answer.headers),
            )
        except Refused as refused:
            if refused.status not in _NO_HEAD:
                raise
        return self._got(self._ranged(key, 0, memoryview(bytearray(1)), "", ""), key)

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key; nothing here has a tag."""
        return self.head(key), ""

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read."""
        if buffer:
            try:
                ranged = self._ranged(key, offset, buffer, etag, unless)
                return self._calls.call(self._operation("GET", key), ranged.request, ranged.got, sink=ranged)
            except Refused as refused:
                if refused.kind is not FaultKind.RANGE:
                    raise
        info = self.head(key)
        if etag and info.etag != etag:
            raise fault(FaultKind.CHANGED, f"GET {key!r}: another version than the one that was asked for")
        return Got(None if unless and unless == info.etag else info, 0)

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Refuse."""
        raise fault(FaultKind.UNSUPPORTED, "LIST: a web site does not tell what it has")

    def put(
        self,
        key: str,
        content: Sequence[Buffer],
        *,
        if_absent: bool = False,
        if_match: str = "",
        tag: str = "",
    ) -> ObjectInfo:
        """Refuse."""
        _refuse("PUT", key)

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Refuse."""
        _refuse("COPY", key)

    def delete(self, key: str) -> None:
        """Refuse."""
        _refuse("DELETE", key)

    def delete_version(self, key: str, etag: str) -> None:
        """Refuse."""
        _refuse("DELETE", key)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Refuse."""
        _refuse("DELETE", "")

    def begin_upload(self, key: str, *, tag: str = "") -> str:
        """Refuse."""
        _refuse("CREATE UPLOAD", key)

    def put_part(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Refuse."""
        _refuse("PUT PART", key)

    def copy_part(
        self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int
    ) -> Part:
        """Refuse."""
        _refuse("COPY PART", key)

    def parts(self, key: str, upload: str) -> list[Part]:
        """Refuse."""
        _refuse("LIST PARTS", key)

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], *, if_absent: bool = False, if_match: str = ""
    ) -> ObjectInfo:
        """Refuse."""
        _refuse("COMPLETE", key)

    def abort(self, key: str, upload: str) -> None:
        """Refuse."""
        _refuse("ABORT", key)

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return none."""
        return []

    def close(self) -> None:
        """Let go of connections."""
        self._calls.close()

    def _directory(self, key: str) -> ObjectInfo:
        info = ObjectInfo(key, 0, _DATED, 0)
        try:
            return self._calls.call(
                self._operation("HEAD", key), lambda: self._site.request("HEAD", key), lambda answer: info
            )
        except Refused as refused:
            if refused.status != 403:  # it is there, and its listing is nobody's business
                raise
            return info

    def _ranged(self, key: str, offset: int, buffer: memoryview, etag: str, unless: str) -> Ranged:
        def make(wanted: str, version: str, other_than: str) -> Request:
            headers = {"range": wanted}
            if version and not version.startswith(_DATED):
                headers["if-match"] = quoted(version)
            elif other_than and not other_than.startswith(_DATED):
                headers["if-none-match"] = quoted(other_than)
            return self._site.request("GET", key, headers)

        return Ranged(Dialled(make, lambda headers: _info_in(key, headers)), offset, buffer, etag, unless)

    def _got(self, ranged: Ranged, key: str) -> ObjectInfo:
        got = self._calls.call(self._operation("GET", key), ranged.request, ranged.got, sink=ranged)
        if got.info is None:
            raise fault(FaultKind.ANSWER, f"GET {key!r}: not modified, though no version was named")
        return got.info

    def _operation(self, name: str, key: str) -> Operation:
        return Operation(name=name, what=repr(f"{self._site.url}/{key}"), lane=lane_of(key))


def _info_in(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    size = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    if not (size.isascii() and size.isdigit()):
        raise ExchangeFailed(FaultKind.UNSUPPORTED, "the server does not tell the size", sent=True)
    modified_ns = moment_ns(headers.get("last-modified", ""))
    told = headers.get("etag", "")
    etag = etag_of(told) if told[:1] == '"' else f"{_DATED}{modified_ns // 1_000_000_000}-{size}"
    return ObjectInfo(key, int(size), etag, modified_ns)


def _refuse(name: str, key: str) -> NoReturn:
    raise fault(FaultKind.UNSUPPORTED, f"{name} {key!r}: a web site is read only")


def open_web(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
    """Return the store of `https://host/path`: keys are what follows the path."""
    site = WebSite(source, secrets)
    calls = Calls(
        http_pool(settings, secrets),
        site,
        timeout_s=settings.request_timeout_s,
        retry_timeout_s=settings.retry_timeout_s,
    )
    return WebStore(site, calls)
