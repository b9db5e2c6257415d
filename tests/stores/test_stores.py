"""What the port promises, of every store that implements it, against real servers. What a store does otherwise is stated here."""

import errno
import hashlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidemount.stores.bodies import LazyBody
from sidemount.stores.store import Buffer, FaultKind, ObjectInfo, ObjectStore, Part, StoreFault
from tests.stores.kinds import KINDS, Kind, kind_of

pytestmark = pytest.mark.timeout(120, func_only=True)

_PART_BYTES = 5 << 20  # the least that S3 takes
_GONE_OTHERWISE = (
    "seaweedfs",
    "versity",
)  # a completed upload is completed again without a fault, as AWS does it


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    """A kind of store."""
    return kind_of(request.param, request, tmp_path)


@pytest.fixture
def store(kind: Kind) -> Iterator[ObjectStore]:
    """An empty store."""
    made = kind.open()
    yield made
    made.close()


def _read(store: ObjectStore, key: str, offset: int = 0, size: int = 1 << 20, **known: str) -> bytes:
    buffer = bytearray(size)
    got = store.get(key, offset, memoryview(buffer), **known)
    return bytes(buffer[: got.size])


def _fault(kind: FaultKind, number: int, call: Callable[[], object]) -> StoreFault:
    with pytest.raises(StoreFault) as raised:
        call()
    assert (raised.value.kind, raised.value.errno) == (kind, number), raised.value
    return raised.value


def _missing(call: Callable[[], object]) -> None:
    _fault(FaultKind.MISSING, errno.ENOENT, call)


def _changed(call: Callable[[], object]) -> None:
    _fault(FaultKind.CHANGED, errno.ESTALE, call)


def _exists(call: Callable[[], object]) -> None:
    _fault(FaultKind.EXISTS, errno.EEXIST, call)


def _keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key for info in _listed(store, prefix, delimiter=False)[0]]


def _listed(
    store: ObjectStore, prefix: str, *, delimiter: bool = True, most: int = 1000
) -> tuple[list[ObjectInfo], list[str]]:
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    token = ""
    while True:
        page = store.list_page(prefix, delimiter=delimiter, token=token, most=most)
        objects += page.objects
        prefixes += page.prefixes
        token = page.token
        if not token:
            return objects, prefixes


def test_what_is_put_is_there_whole_and_in_ranges(store: ObjectStore) -> None:
    content = random.Random(1).randbytes(3_000_001)
    before_ns = time.time_ns()
    info = store.put(
        "a", [content[:1000], bytearray(content[1000:2_000_000]), memoryview(content)[2_000_000:]]
    )
    assert (info.key, info.size) == ("a", len(content))
    head = store.head("a")
    assert head[:3] == info[:3]
    assert abs(head.modified_ns - before_ns) < 60e9
    assert hashlib.sha256(_read(store, "a", 0, 4 << 20)).digest() == hashlib.sha256(content).digest()
    for offset, size in ((0, 1), (1, 4096), (999_999, 1_000_003), (len(content) - 1, 1)):
        assert _read(store, "a", offset, size) == content[offset : offset + size]
    assert _read(store, "a", len(content) - 5, 100) == content[-5:]
    buffer = memoryview(bytearray(10))
    for offset in (len(content), len(content) + 1, len(content) + (1 << 33)):
        assert store.get("a", offset, buffer) == (head, 0)
    assert store.get("a", 0, buffer[:0]) == (head, 0)
    assert _listed(store, "") == ([head], [])


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    info = store.put("e", [])
    assert info.size == 0
    assert store.get("e", 0, memoryview(bytearray(10))) == (store.head("e"), 0)
    assert store.put("e", [b"", b""]).size == 0
    assert _keys(store) == ["e"]


def test_what_is_not_there_is_missing(store: ObjectStore, kind: Kind) -> None:
    store.put("dir/file", [b"x"])
    made_by_itself = ["dir/"] if kind.name == "seaweedfs" else []
    for key in {"none", "dir", "dir/", "dir/file/x", "file"} - set(made_by_itself):
        _missing(lambda key=key: store.head(key))  # type: ignore[misc]
        _missing(lambda key=key: _read(store, key))  # type: ignore[misc]
    _missing(lambda: store.tag_of("none"))
    _missing(lambda: store.copy("none", "b"))
    store.delete("none")
    store.delete_many(["none", "nor this"])
    assert store.list_page("none").objects == []


def test_one_version_is_read_or_none(store: ObjectStore) -> None:
    old = store.put("a", [b"old content"])
    assert _read(store, "a", 4, etag=old.etag) == b"content"
    buffer = memoryview(bytearray(20))
    assert store.get("a", 0, buffer, unless=old.etag) == (None, 0)
    new = store.put("a", [b"new"])
    assert new.etag != old.etag
    _changed(lambda: store.get("a", 0, buffer, etag=old.etag))
    _changed(lambda: store.get("a", 100, buffer, etag=old.etag))
    info, size = store.get("a", 0, buffer, unless=old.etag)
    assert info is not None
    assert (info.etag, bytes(buffer[:size])) == (new.etag, b"new")
    assert store.get("a", 50, buffer, unless=new.etag) == (None, 0)


def test_puts_have_conditions(store: ObjectStore) -> None:
    first = store.put("a", [b"1"], if_absent=True)
    _exists(lambda: store.put("a", [b"2"], if_absent=True))
    second = store.put("a", [b"22"], if_match=first.etag)
    _changed(lambda: store.put("a", [b"3"], if_match=first.etag))
    _changed(lambda: store.put("b", [b"3"], if_match=first.etag))
    assert store.head("a").etag == second.etag
    assert _read(store, "a") == b"22"
    _missing(lambda: store.head("b"))


def test_one_of_many_makes_an_object_that_is_not_there(kind: Kind) -> None:
    stores = [kind.open() for _ in range(2)]
    kinds: list[FaultKind] = []

    def make(number: int) -> bool:
        try:
            stores[number % 2].put("one", [str(number).encode()], if_absent=True)
        except StoreFault as fault:
            kinds.append(fault.kind)
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(16)))
    assert made.count(True) == 1
    assert set(kinds) == {FaultKind.EXISTS}
    assert _read(stores[0], "one") == str(made.index(True)).encode()
    for each in stores:
        each.close()


def test_a_tag_goes_with_an_object(store: ObjectStore) -> None:
    for tag in ("plain", "ünï cöde/+%&=", "x" * 200):
        info = store.put("a", [b"1"], tag=tag)
        found, told = store.tag_of("a")
        assert (found.etag, told) == (info.etag, tag)
    store.put("a", [b"1"])
    assert store.tag_of("a")[1] == ""
    store.put("b", [b"1"], if_absent=True)
    assert store.tag_of("b")[1] == ""


def test_objects_are_copied_in_the_store(store: ObjectStore, kind: Kind) -> None:
    info = store.put("from/a b+ü", [b"content"], tag="t")
    made = store.copy("from/a b+ü", "to/ö", etag=info.etag)
    assert (made.key, made.size, made.etag) == ("to/ö", 7, store.head("to/ö").etag)
    assert _read(store, "to/ö") == b"content"
    assert store.tag_of("to/ö")[1] == "t"
    store.copy("from/a b+ü", "new", if_absent=True)
    assert _read(store, "new") == b"content"
    if "copy" not in kind.ignores:
        _exists(lambda: store.copy("from/a b+ü", "new", if_absent=True))
    store.put("from/a b+ü", [b"other"])
    _changed(lambda: store.copy("from/a b+ü", "to/x", etag=info.etag))
    _missing(lambda: store.head("to/x"))
    store.copy("from/a b+ü", "to/ö")
    assert _read(store, "to/ö") == b"other"


def test_deleted_is_gone(store: ObjectStore) -> None:
    keys = [f"k/{number}" for number in range(12)] + ["k/ü &<>+", "k/sub/1"]
    for key in keys:
        store.put(key, [b"x"])
    store.delete(keys[0])
    assert sorted(_keys(store)) == sorted(keys[1:])
    store.delete_many([*keys[:5], "never/there", keys[-1], keys[-2]])
    assert sorted(_keys(store)) == sorted(keys[5:-2])


def test_only_the_version_that_is_named_is_deleted(store: ObjectStore, kind: Kind) -> None:
    store.delete_version("never/there", "0")
    old = store.put("k", [b"old"])
    new = store.put("k", [b"newer"])
    if "delete" not in kind.ignores:
        _changed(lambda: store.delete_version("k", old.etag))
        assert _read(store, "k") == b"newer"
    store.delete_version("k", new.etag)
    _missing(lambda: store.head("k"))


# Where a store does not keep a key as it is: it is refused, or taken for another one, or loses its tag.
_REFUSED, _ANOTHER, _UNTAGGED = "refused", "another", "untagged"
_OF_FILES = {"local": _REFUSED, "versity": _ANOTHER}
_ODD: dict[str, dict[str, str]] = {
    "with space": {},
    "+%20~%2F%": {},
    "ünïcödé-日本-🗻": {},
    "e\u0301 is not \u00e9": {},
    "?x=1&y#z": {},
    "'\"<>&;:|*!()@$,[]{}^`": {},
    " lead and trail ": {},
    "-": {},
    "a.": {},
    "tab\tand\nline": {},
    "back\\slash": {"seaweedfs": _ANOTHER, "azure": _REFUSED},
    "a//b": {**_OF_FILES, "seaweedfs": _ANOTHER},
    "/lead": {**_OF_FILES, "seaweedfs": _ANOTHER},
    "a/./b": {**_OF_FILES, "seaweedfs": _REFUSED},
    "a/../b": {**_OF_FILES, "seaweedfs": _REFUSED},
    "trail/": {"seaweedfs": _UNTAGGED},
    "x" * 255: {},
}


@pytest.mark.parametrize("key", _ODD, ids=lambda key: ascii(key[:20]))
def test_odd_keys_are_kept_or_refused(store: ObjectStore, kind: Kind, key: str) -> None:
    content = b"" if key.endswith("/") else b"content"
    expected = _ODD[key].get(kind.name)
    if expected == _REFUSED:
        with pytest.raises(StoreFault):
            store.put(key, [content])
        assert _keys(store) == []
        return
    info = store.put(key, [content], tag="t")
    found, tag = store.tag_of(key)
    assert (found.key, found.etag, found.size) == (key, info.etag, len(content))
    assert tag == ("" if expected == _UNTAGGED else "t")
    assert _read(store, key) == content
    if expected == _ANOTHER:
        assert key not in _keys(store)
        store.delete(key)
    else:
        assert _keys(store, key) == _keys(store) == [key]
        copied = f"copies/{key}"
        if "/." not in key or kind.name != "azure":  # Azurite does not find such a source
            assert store.copy(key, copied).key == copied
            assert sorted(_keys(store)) == sorted([key, copied])
        store.delete_many([key, copied])
    assert _keys(store) == []
    _missing(lambda: store.head(key))


def test_keys_are_as_long_as_the_stores_allow(store: ObjectStore, kind: Kind) -> None:
    key = ("k" * 99 + "/") * 10 + "k" * 24
    key = key[: 1024 - kind.prefix_bytes]
    store.put(key, [b"long"])
    assert _read(store, key) == b"long"
    assert _keys(store) == [key]


def test_prefixes_are_shown_instead_of_what_is_beneath(store: ObjectStore) -> None:
    for key in ("a", "b/1", "b/2/3", "b/", "c/d/e", "ü/x", "b!"):
        store.put(key, [b""])
    objects, prefixes = _listed(store, "")
    assert sorted(one.key for one in objects) == ["a", "b!"]
    assert sorted(prefixes) == ["b/", "c/", "ü/"]
    objects, prefixes = _listed(store, "b/")
    assert (sorted(one.key for one in objects), prefixes) == (["b/", "b/1"], ["b/2/"])
    objects, prefixes = _listed(store, "b")
    assert (sorted(one.key for one in objects), prefixes) == (["b!"], ["b/"])
    assert sorted(_keys(store, "b/")) == ["b/", "b/1", "b/2/3"]
    assert _listed(store, "c/d") == ([], ["c/d/"])
    assert _listed(store, "nothing/") == ([], [])


def test_thousands_of_keys_come_in_pages(store: ObjectStore, kind: Kind) -> None:
    few = kind.name in ("azure", "gcs")  # whose servers take their time
    files = [f"p/f {number:04}+ü" for number in range(250 if few else 1000)]
    inner = [f"p/d{number // 3:03}&/x{number % 3}" for number in range(450 if few else 1500)]
    most = 250 if few else 1000
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: store.put(key, [b"x"]), [*files, *inner]))
    objects, prefixes = _listed(store, "p/", most=most)
    assert [one.key for one in objects] == files
    assert prefixes == [f"p/d{number:03}&/" for number in range(len(inner) // 3)]
    assert {(one.size, one.etag) for one in objects[:3]} == {
        (1, store.head(one.key).etag) for one in objects[:3]
    }
    objects, _ = _listed(store, "p/", delimiter=False, most=most)
    assert [one.key for one in objects] == sorted(inner) + files
    objects, prefixes = _listed(store, "p/d00", most=3)
    assert (objects, prefixes) == ([], [f"p/d{number:03}&/" for number in range(10)])
    objects, _ = _listed(store, "p/f 01", most=7)
    assert [one.key for one in objects] == files[100:200]


def test_an_upload_is_gone_on_with_by_another(store: ObjectStore, kind: Kind) -> None:
    store.put("big/x ü", [b"before"])
    upload = store.begin_upload("big/x ü", tag="tag ü")
    first = store.put_part("big/x ü", upload, 1, [b"a" * (_PART_BYTES - 5), b"bcdef"])
    store.put_part("big/x ü", upload, 2, [b"wrong" * (1 << 20)])
    third = store.put_part("big/x ü", upload, 3, [b"end"])
    other = kind.open()
    second = other.put_part("big/x ü", upload, 2, [b"right" * (1 << 20)])
    told = other.parts("big/x ü", upload)
    if kind.name == "seaweedfs":  # which tells of what was replaced, too
        told = [one for one in told if one in (first, second, third)]
    assert told == [first, second, third]
    assert _keys(other) == ["big/x ü"]
    assert _read(other, "big/x ü") == b"before"
    if kind.name != "azure":  # which does not tell
        ((key, name, begun_ns),) = other.uploads("big/")
        assert (key, name) == ("big/x ü", upload)
        assert abs(begun_ns - time.time_ns()) < 60e9
        assert other.uploads("small/") == []
    info = other.complete("big/x ü", upload, [first, second, third])
    assert info[:3] == store.head("big/x ü")[:3]
    assert info.size == 2 * _PART_BYTES + 3
    assert store.tag_of("big/x ü")[1] == "tag ü"
    assert _read(store, "big/x ü", _PART_BYTES - 2, 5) == b"efrig"
    assert _read(store, "big/x ü", 2 * _PART_BYTES - 2) == b"htend"
    assert _keys(store) == ["big/x ü"]
    assert store.uploads("") == []
    other.close()


def test_an_upload_ends_once(store: ObjectStore, kind: Kind) -> None:
    upload = store.begin_upload("a")
    part = store.put_part("a", upload, 1, [b"content"])
    info = store.complete("a", upload, [part])
    if kind.name in _GONE_OTHERWISE:
        assert store.complete("a", upload, [part]).etag == info.etag
    else:
        _missing(lambda: store.complete("a", upload, [part]))
    _missing(lambda: store.parts("a", upload))
    store.abort("a", upload)
    assert _read(store, "a") == b"content"
    assert store.head("a").etag == info.etag


def test_an_aborted_upload_leaves_nothing(store: ObjectStore, kind: Kind) -> None:
    upload = store.begin_upload("a")
    part = store.put_part("a", upload, 1, [b"content"])
    store.abort("a", upload)
    store.abort("a", upload)
    _missing(lambda: store.parts("a", upload))
    if kind.name != "azure":  # where blocks go by themselves, after a week
        _missing(lambda: store.complete("a", upload, [part]))
    assert store.uploads("") == []
    assert _keys(store) == []


def test_completing_has_conditions(store: ObjectStore, kind: Kind) -> None:
    def upload(key: str, content: bytes) -> tuple[str, list[Part]]:
        name = store.begin_upload(key)
        return name, [store.put_part(key, name, 1, [content])]

    name, parts = upload("a", b"1")
    first = store.complete("a", name, parts, if_absent=True)
    if "complete" not in kind.ignores:
        name, parts = upload("a", b"2")
        _exists(lambda: store.complete("a", name, parts, if_absent=True))
        other = store.put("b", [b"b"])
        _changed(lambda: store.complete("a", name, parts, if_match=other.etag))
        assert store.head("a").etag == first.etag
    name, parts = upload("a", b"3")
    store.complete("a", name, parts, if_match=store.head("a").etag)
    assert _read(store, "a") == b"3"


def test_parts_come_in_any_order_and_many(store: ObjectStore, kind: Kind) -> None:
    if store.abilities.part_bytes[0] > 1:
        pytest.skip("its parts are too large for that")
    upload = store.begin_upload("a")
    numbers = list(range(1, 71))
    random.Random(2).shuffle(numbers)
    with ThreadPoolExecutor(4) as pool:
        parts = list(
            pool.map(lambda number: store.put_part("a", upload, number, [b"%03d" % number]), numbers)
        )
    assert store.parts("a", upload) == sorted(parts)
    store.complete("a", upload, sorted(parts))
    assert _read(store, "a") == b"".join(b"%03d" % number for number in range(1, 71))
    assert _keys(store) == ["a"]


def test_parts_are_taken_from_objects(store: ObjectStore) -> None:
    source = store.put("from ü", [b"x" * 10, b"y" * _PART_BYTES, b"z" * 10])
    upload = store.begin_upload("a")
    if not store.abilities.copy_part:
        call = lambda: store.copy_part("a", upload, 1, source, 10, _PART_BYTES)  # noqa: E731
        _fault(FaultKind.UNSUPPORTED, errno.EOPNOTSUPP, call)
        store.abort("a", upload)
        return
    first = store.copy_part("a", upload, 1, source, 10, _PART_BYTES)
    last = store.put_part("a", upload, 2, [b"end"])
    store.put("from ü", [b"another content"])
    _changed(lambda: store.copy_part("a", upload, 3, source, 0, 10))
    assert store.parts("a", upload) == [first, last]
    store.complete("a", upload, [first, last])
    content = _read(store, "a", 0, 6 << 20)
    assert content == b"y" * _PART_BYTES + b"end"


def test_what_another_has_completed_is_known_to_be_ours(store: ObjectStore, kind: Kind) -> None:
    """A successor repeats the end of an upload that its predecessor had asked for on a condition."""
    upload = store.begin_upload("a", tag="t")
    part = store.put_part("a", upload, 1, [b"content"])
    info = store.complete("a", upload, [part], if_absent=True)
    try:
        again = store.complete("a", upload, [part], if_absent=True)
    except StoreFault as fault:
        assert fault.kind in (FaultKind.MISSING, FaultKind.EXISTS)  # noqa: PT017
    else:
        assert again.etag == info.etag
    assert store.tag_of("a") == (store.head("a"), "t")
    assert store.head("a").etag == info.etag


class _Counted(LazyBody):
    """Content that is too large for the memory, or would be. Notes which pieces were read."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.read: list[int] = []

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._pieces))

    def __len__(self) -> int:
        return len(self._pieces)

    def piece(self, index: int) -> Buffer:
        self.read.append(index)
        return self._pieces[index]


def test_content_that_is_read_as_it_is_sent_is_read_for_its_checksum_and_for_the_wire(
    store: ObjectStore,
) -> None:
    """Each time more would fetch what is the store's own from there once more."""
    pieces = [bytes([number]) * (100 << 10) for number in range(3)]
    content = _Counted(pieces)
    assert store.put("lazy", content).size == 300 << 10
    assert _read(store, "lazy") == b"".join(pieces)
    once = list(range(len(pieces)))
    assert content.read in (once, once * 2)
