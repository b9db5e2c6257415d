"""Part of a store: everything beneath a prefix, with keys that begin behind it."""

from collections.abc import Iterable, Sequence

from sidemount.stores.store import Abilities, Buffer, CopyWatch, Got, ObjectInfo, ObjectStore, Page, Part


class PrefixedStore:
    """Source of the interface: `sidemount.stores.store.ObjectStore`. What is not beneath the prefix does not exist here."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @property
    def abilities(self) -> Abilities:
        """The store's own."""
        return self._store.abilities

    @property
    def counts(self) -> dict[str, int]:
        """The store's own; none if it does not count."""
        found: dict[str, int] = getattr(self._store, "counts", {})
        return found

    def watch_copies(self, watch: CopyWatch) -> None:
        """Have somebody hear of uploads that copies begin, if the store begins any."""
        inner = getattr(self._store, "watch_copies", None)
        if inner is not None:
            inner(_Beneath(watch, len(self._prefix)))

    def head(self, key: str) -> ObjectInfo:
        """Return what is at a key."""
        return self._relative(self._store.head(self._prefix + key))

    def get(self, key: str, offset: int, buffer: memoryview, *, etag: str = "", unless: str = "") -> Got:
        """Read."""
        info, size = self._store.get(self._prefix + key, offset, buffer, etag=etag, unless=unless)
        return Got(None if info is None else self._relative(info), size)

    def list_page(self, prefix: str, *, delimiter: bool = True, token: str = "", most: int = 1000) -> Page:
        """Return a page."""
        page = self._store.list_page(self._prefix + prefix, delimiter=delimiter, token=token, most=most)
        skip = len(self._prefix)
        return Page(
            [self._relative(info) for info in page.objects], [one[skip:] for one in page.prefixes], page.token
        )

    def put(
        self,
        key: str,
        content: Sequence[Buffer],
        *,
        if_absent: bool = False,
        if_match: str = "",
        tag: str = "",
    ) -> ObjectInfo:
        """Make an object."""
        return self._relative(
            self._store.put(self._prefix + key, content, if_absent=if_absent, if_match=if_match, tag=tag)
        )

    def tag_of(self, key: str) -> tuple[ObjectInfo, str]:
        """Return what is at a key and its tag."""
        info, tag = self._store.tag_of(self._prefix + key)
        return self._relative(info), tag

    def copy(self, source: str, key: str, *, etag: str = "", if_absent: bool = False) -> ObjectInfo:
        """Copy an object."""
        return self._relative(
            self._store.copy(self._prefix + source, self._prefix + key, etag=etag, if_absent=if_absent)
        )

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._store.delete(self._prefix + key)

    def delete_version(self, key: str, etag: str) -> None:
        """Remove an object if it is that version still."""
        self._store.delete_version(self._prefix + key, etag)

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        self._store.delete_many(self._prefix + key for key in keys)

    def begin_upload(self, key: str, *, tag: str = "") -> str:
        """Begin an upload."""
        return self._store.begin_upload(self._prefix + key, tag=tag)

    def put_part(self, key: str, upload: str, number: int, content: Sequence[Buffer]) -> Part:
        """Store a part."""
        return self._store.put_part(self._prefix + key, upload, number, content)

    def copy_part(
        self, key: str, upload: str, number: int, source: ObjectInfo, offset: int, size: int
    ) -> Part:
        """Take a part from an object."""
        whole = source._replace(key=self._prefix + source.key)
        return self._store.copy_part(self._prefix + key, upload, number, whole, offset, size)

    def parts(self, key: str, upload: str) -> list[Part]:
        """Return the parts that are there."""
        return self._store.parts(self._prefix + key, upload)

    def complete(
        self, key: str, upload: str, parts: Sequence[Part], *, if_absent: bool = False, if_match: str = ""
    ) -> ObjectInfo:
        """Make the object of its parts."""
        return self._relative(
            self._store.complete(self._prefix + key, upload, parts, if_absent=if_absent, if_match=if_match)
        )

    def abort(self, key: str, upload: str) -> None:
        """Give an upload up."""
        self._store.abort(self._prefix + key, upload)

    def uploads(self, prefix: str) -> list[tuple[str, str, int]]:
        """Return unfinished uploads."""
        skip = len(self._prefix)
        return [
            (key[skip:], upload, begun) for key, upload, begun in self._store.uploads(self._prefix + prefix)
        ]

    def close(self) -> None:
        """Let go of connections."""
        self._store.close()

    def _relative(self, info: ObjectInfo) -> ObjectInfo:
        return info._replace(key=info.key[len(self._prefix) :])


class _Beneath:
    """Tells somebody of uploads by keys that begin behind a prefix."""

    def __init__(self, watch: CopyWatch, skip: int) -> None:
        self._watch = watch
        self._skip = skip

    def begun(self, key: str, upload: str) -> None:
        self._watch.begun(key[self._skip :], upload)

    def ended(self, key: str, upload: str, *, is_over: bool) -> None:
        self._watch.ended(key[self._skip :], upload, is_over=is_over)
