"""Stores by their sources, prefixes, and what all stores without a server must have in common."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.opening import open_store
from sidemount.stores.store import FaultKind, Got, ObjectStore, Page, StoreFault

KEYS = ("a", "a-b", "a/", "a/x", "a/y/z", "a0", "b/c", "ü/ x+%")


def opened(source: str, **settings: str) -> ObjectStore:
    return open_store(source, ObjectsSettings(source=source, **settings), "")  # type: ignore[arg-type]


@pytest.fixture(params=["memory", "memory, beneath a prefix", "a directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "memory":
            return opened(f"memory://{tmp_path.name}")
        case "a directory":
            return opened(f"file://{tmp_path}/store")
        case _:
            whole = opened(f"memory://{tmp_path.name}")
            for key in ("p", "p/", "q", "oo/x"):
                whole.put(key, [b"not beneath it"])
            whole.delete("p/")
            return opened(f"memory://{tmp_path.name}/p/")


def refused(call: Callable[[], object]) -> StoreFault:
    with pytest.raises(StoreFault) as caught:
        call()
    return caught.value


def fill(store: ObjectStore) -> list[str]:
    is_directory = "Local" in type(store).__name__
    keys = [key for key in KEYS if not (is_directory and key == "a")]  # "a" is a directory there
    for key in keys:
        store.put(key, [key.encode()])
    return keys


def all_pages(store: ObjectStore, prefix: str, *, delimiter: bool, most: int) -> list[str]:
    token, found = "", []
    while True:
        page: Page = store.list_page(prefix, delimiter=delimiter, token=token, most=most)
        assert len(page.objects) + len(page.prefixes) <= most
        found += [one.key for one in page.objects] + list(page.prefixes)
        token = page.token
        if not token:
            return found


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_listings_of_any_page_size_name_every_key_once(store: ObjectStore, most: int) -> None:
    keys = fill(store)
    assert all_pages(store, "", delimiter=False, most=most) == sorted(keys, key=str.encode)
    tops = {key.partition("/")[0] + ("/" if "/" in key else "") for key in keys}
    assert sorted(all_pages(store, "", delimiter=True, most=most)) == sorted(tops)
    assert sorted(all_pages(store, "a/", delimiter=True, most=most)) == ["a/", "a/x", "a/y/"]
    beneath = [key for key in keys if key.startswith("a")]
    assert all_pages(store, "a", delimiter=False, most=most) == sorted(beneath, key=str.encode)
    assert all_pages(store, "none/", delimiter=True, most=most) == []


def test_what_is_put_is_read_in_any_range(store: ObjectStore) -> None:
    info = store.put("k", [b"01234", memoryview(b"56789")], tag="täg")
    assert (info.key, info.size) == ("k", 10)
    assert store.head("k") == info
    assert store.tag_of("k") == (info, "täg")
    buffer = memoryview(bytearray(4))
    assert (store.get("k", 3, buffer), bytes(buffer)) == (Got(info, 4), b"3456")
    assert store.get("k", 8, buffer).size == 2
    assert store.get("k", 10, buffer) == Got(info, 0)
    assert store.get("k", 99, buffer, etag=info.etag) == Got(info, 0)
    assert store.get("k", 0, buffer, unless=info.etag) == Got(None, 0)


def test_versions_and_conditions_are_kept_apart(store: ObjectStore) -> None:
    first = store.put("k", [b"1"], if_absent=True)
    assert refused(lambda: store.put("k", [b"2"], if_absent=True)).kind is FaultKind.EXISTS
    second = store.put("k", [b"2"], if_match=first.etag)
    assert second.etag != first.etag
    assert refused(lambda: store.put("k", [b"3"], if_match=first.etag)).kind is FaultKind.CHANGED
    assert refused(lambda: store.put("none", [b"3"], if_match=first.etag)).kind is FaultKind.CHANGED
    buffer = memoryview(bytearray(1))
    assert refused(lambda: store.get("k", 0, buffer, etag=first.etag)).kind is FaultKind.CHANGED
    assert refused(lambda: store.copy("k", "n", etag=first.etag)).kind is FaultKind.CHANGED
    store.copy("k", "n", etag=second.etag)
    assert refused(lambda: store.copy("k", "n", if_absent=True)).kind is FaultKind.EXISTS
    assert (store.get("n", 0, buffer).size, bytes(buffer)) == (1, b"2")


def test_what_is_not_there_is_missing_but_may_be_removed(store: ObjectStore) -> None:
    for call in (
        lambda: store.head("k"),
        lambda: store.get("k", 0, memoryview(bytearray(1))),
        lambda: store.tag_of("k"),
        lambda: store.copy("k", "n"),
        lambda: store.parts("k", "0"),
    ):
        assert refused(call).kind is FaultKind.MISSING
        assert refused(call).errno == errno.ENOENT
    store.delete("k")
    store.delete_many(["k", "l"])
    store.abort("k", "0")


def test_uploads_are_found_and_gone_on_with(store: ObjectStore) -> None:
    source = store.put("source", [b"0123456789"])
    upload = store.begin_upload("d/k", tag="t")
    assert [(key, one) for key, one, _ in store.uploads("d/")] == [("d/k", upload)]
    assert store.uploads("e") == []
    parts = [store.put_part("d/k", upload, 1, [b"ab", b"c"]), store.copy_part("d/k", upload, 2, source, 2, 3)]
    assert store.parts("d/k", upload) == parts
    stale = source._replace(etag="other")
    assert refused(lambda: store.copy_part("d/k", upload, 3, stale, 0, 1)).kind is FaultKind.CHANGED
    assert refused(lambda: store.head("d/k")).kind is FaultKind.MISSING
    info = store.complete("d/k", upload, parts)
    assert (info.key, info.size, store.tag_of("d/k")[1]) == ("d/k", 6, "t")
    buffer = memoryview(bytearray(6))
    store.get("d/k", 0, buffer)
    assert bytes(buffer) == b"abc234"
    assert refused(lambda: store.complete("d/k", upload, parts)).kind is FaultKind.MISSING
    other = store.begin_upload("d/k")
    store.abort("d/k", other)
    assert store.uploads("") == []


def test_a_prefix_lets_nothing_else_be_seen(tmp_path: Path) -> None:
    whole = opened(f"memory://{tmp_path.name}")
    part = opened(f"memory://{tmp_path.name}/a/b/")
    part.put("k", [b"1"])
    whole.put("a/bk", [b"2"])
    assert whole.head("a/b/k").size == 1
    assert [one.key for one in part.list_page("").objects] == ["k"]
    assert part.abilities == whole.abilities


def test_a_directory_holds_a_key_in_a_file_of_that_name_and_no_empty_directories(tmp_path: Path) -> None:
    store = opened(f"file://{tmp_path}")
    store.put("d/e/k", [b"1"])
    assert (tmp_path / "d/e/k").read_bytes() == b"1"
    (tmp_path / "foreign").write_bytes(b"22")
    (tmp_path / os.fsdecode(b"no-text-\xff")).write_bytes(b"")
    assert all_pages(store, "", delimiter=True, most=10) == ["foreign", "d/"]
    assert refused(lambda: store.put("d/e/k/l", [b""])).kind is FaultKind.CONFLICT
    store.delete("d/e/k")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/x", "a//b", ".", "a\0b", ".store/lock"])
def test_a_directory_is_never_left(tmp_path: Path, key: str) -> None:
    store = opened(f"file://{tmp_path}/store")
    assert refused(lambda: store.put(key, [b"x"])).errno == errno.EINVAL
    assert refused(lambda: store.head(key)).errno == errno.EINVAL
    assert {one.name for one in tmp_path.iterdir()} <= {"store"}


@pytest.mark.parametrize(
    "source", ["", "bucket", "s3:", "s3://", "s3:///x", "ftp://x", "file://relative", "memory://"]
)
def test_sources_that_are_none_are_refused(source: str) -> None:
    found = refused(lambda: opened(source))
    assert found.kind is FaultKind.REQUEST
    assert repr(source) in str(found)


@pytest.mark.parametrize("endpoint", ["h:9000", "ftp://h", "http://user:pass@h", "http://h:x"])
def test_endpoints_that_are_none_are_refused(endpoint: str) -> None:
    found = refused(lambda: opened("s3://bucket", endpoint=endpoint))
    assert found.kind is FaultKind.REQUEST
    assert "pass" not in str(found)


@pytest.mark.parametrize("source", ["ftp://me:hidden@host/a", "https://me:hidden@host/a"])
def test_a_password_in_a_source_is_not_told(source: str) -> None:
    with pytest.raises(StoreFault) as raised:
        open_store(source, ObjectsSettings(source=source), "")
    assert "host" in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_a_store_is_opened_without_asking_it() -> None:
    opened("s3://bucket/prefix", endpoint="http://no-such-host.invalid").close()
