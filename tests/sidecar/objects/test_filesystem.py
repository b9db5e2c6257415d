"""What the filesystem makes of a store: semantics as `docs/objects.md` states them, on a store in memory."""

import errno
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sidecar.directory.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sidecar.objects.keys import Hidden
from sidecar.objects.nodes import Node
from sidecar.protocol_filesystem import ROOT, OperationAbsent
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.store import Abilities, FaultKind, ObjectInfo, Page, StoreFault
from tests.sidecar.directory.core import run
from tests.sidecar.objects.core import SOMEONE, Kernel, make_kernel
from tests.sidecar.objects.draft_places import wait_until


class CountingStore(MemoryStore):
    """Counts what it is asked; with `fail` it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []
        self.fail: Callable[[str, str], None] = lambda what, key: None

    def _ask(self, what: str, key: str) -> None:
        self.asked.append((what, key))
        self.fail(what, key)

    def head(self, key: str) -> ObjectInfo:
        self._ask("head", key)
        return super().head(key)

    def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        self._ask("get", key)
        return super().get(key, *args, **kwargs)

    def list_page(self, prefix: str, **kwargs: Any) -> Page:
        self._ask("list", prefix)
        return super().list_page(prefix, **kwargs)

    def copy(self, source: str, key: str, **kwargs: Any) -> ObjectInfo:
        self._ask("copy", source)
        return super().copy(source, key, **kwargs)

    def delete(self, key: str) -> None:
        self._ask("delete", key)
        super().delete(key)

    def keys(self) -> list[str]:
        return sorted(self._objects)

    def content(self, key: str) -> bytes:
        return self._objects[key][1]


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def kernel(store: CountingStore, tmp_path: Path) -> Kernel:
    return make_kernel(store, tmp_path)


def errno_of(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the name of the errno that an operation fails with, "" if it does not."""
    try:
        operation(*args, **kwargs)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


# Names.


def test_prefixes_are_directories_and_objects_are_files(store: CountingStore, kernel: Kernel) -> None:
    store.put("a/b/c.txt", [b"12345"])
    store.put("a/marked/", [])
    store.put("top", [b"x"])
    assert sorted(kernel.listdir("")) == ["a", "top"]
    assert sorted(kernel.listdir("a")) == ["b", "marked"]
    assert kernel.listdir("a/marked") == []
    found = kernel.stat("a/b/c.txt")
    assert (found.size, stat.S_ISREG(found.mode), found.nlink) == (5, True, 1)
    assert stat.S_ISDIR(kernel.stat("a/b").mode)
    assert errno_of(kernel.stat, "a/absent") == "ENOENT"
    assert errno_of(kernel.stat, "absent/x") == "ENOENT"


def test_odd_keys_are_hidden_counted_and_harmless(store: CountingStore, kernel: Kernel) -> None:
    for key in ("a//b", "/lead", "./x", "../y", "d/../z", "n" * 300, "a\0b", "twin", "twin/in", "ok/a"):
        store.put(key, [b"x"])
    store.put("full/", [b"content"])
    store.put("CASE", [b"1"])
    store.put("case", [b"2"])
    assert sorted(kernel.listdir("")) == ["CASE", "a", "case", "d", "full", "ok", "twin"]
    assert kernel.listdir("a") == kernel.listdir("d") == kernel.listdir("full") == []
    assert kernel.listdir("twin") == ["in"]
    assert stat.S_ISDIR(kernel.stat("twin").mode)
    assert kernel.cat("CASE") + kernel.cat("case") == b"12"
    numbers = kernel.filesystem.metrics.numbers()
    for kind in (Hidden.EMPTY, Hidden.DOT, Hidden.LONG, Hidden.NUL, Hidden.TWIN, Hidden.MARKER):
        assert numbers[f"hidden_{kind.value}"] >= 1, kind
    # What is hidden keeps its directory from being removed: nothing is lost unseen.
    assert errno_of(kernel.rmdir, "a") == errno_of(kernel.rmdir, "d") == "ENOTEMPTY"


def test_names_that_are_no_text_and_keys_that_are_too_long_are_refused(kernel: Kernel) -> None:
    filesystem = kernel.filesystem
    assert errno_of(run, filesystem.mkdir(ROOT, b"\xff", 0o755, SOMEONE)) == "EILSEQ"
    assert errno_of(run, filesystem.lookup(ROOT, b"\xff")) == "EILSEQ"
    assert errno_of(kernel.mkdir, "n" * 256) == "ENAMETOOLONG"
    path = "/".join(["n" * 250] * 4)
    above = ""
    for name in path.split("/"):
        above = f"{above}/{name}".lstrip("/")
        kernel.mkdir(above)
    assert errno_of(kernel.mkdir, path + "/" + "m" * 30) == "ENAMETOOLONG"
    assert errno_of(kernel.create, path + "/" + "m" * 30) == "ENAMETOOLONG"
    kernel.put(path + "/short", b"x")


def test_lookup_is_one_round_trip_for_file_directory_and_nothing(
    store: CountingStore, kernel: Kernel
) -> None:
    store.put("file", [b"x"])
    store.put("implied/x", [b"x"])
    store.put("marked/", [])
    for path in ("file", "implied", "marked"):
        kernel.node(path)
    assert errno_of(kernel.node, "absent") == "ENOENT"
    paths = ("file", "implied", "marked", "absent")
    assert sorted(store.asked) == sorted(
        [*(("head", path) for path in paths), *(("list", f"{path}/") for path in paths)]
    )
    for path in ("file", "implied", "marked"):
        kernel.node(path)
    assert errno_of(kernel.node, "absent") == "ENOENT"
    assert len(store.asked) == 8  # memory has answered


def test_directory_is_found_behind_many_names_that_begin_with_its_own(
    store: CountingStore, kernel: Kernel
) -> None:
    for number in range(50):
        store.put(f"dir-{number}", [b""])
    store.put("dir/x", [b"x"])
    store.put("dir", [b"hidden"])
    assert stat.S_ISDIR(kernel.stat("dir").mode)


def test_listing_tells_what_lookups_would_ask(store: CountingStore, kernel: Kernel) -> None:
    for number in range(30):
        store.put(f"d/f{number}", [b"x" * number])
    kernel.node("d")
    store.asked.clear()
    names = kernel.listdir("d")
    assert len(store.asked) == 1
    assert [kernel.stat(f"d/{name}").size for name in names] == [int(name[1:]) for name in names]
    assert errno_of(kernel.node, "d/absent") == "ENOENT"
    assert len(store.asked) == 1


def test_whoever_goes_through_a_directory_has_it_asked_for_as_a_whole(
    store: CountingStore, tmp_path: Path
) -> None:
    kernel = make_kernel(store, tmp_path, known_timeout_s=1, missing_timeout_s=1)
    for number in range(200):
        store.put(f"d/{number:03}", [b"x"])
    known = kernel.filesystem.volume.tree.known
    now = known.clock()
    known.clock = lambda: now + 1.5
    store.asked.clear()
    for number in range(200):
        assert kernel.stat(f"d/{number:03}").size == 1
    assert errno_of(kernel.stat, "d/new") == "ENOENT"
    assert len(store.asked) <= 12
    store.delete("d/100")
    store.put("d/new", [b"xy"])
    known.clock = lambda: now + 3
    assert errno_of(kernel.stat, "d/100") == "ENOENT"
    assert kernel.stat("d/new").size == 2


def test_directory_that_is_too_large_for_that_is_not_asked_for_again_and_again(
    store: CountingStore, kernel: Kernel
) -> None:
    for number in range(1100):
        store.put(f"d/{number:04}", [b"x"])
    for number in range(100):
        assert kernel.stat(f"d/{number:04}").size == 1
    assert store.asked.count(("list", "d/")) == 2  # for "d" itself, and for all that is in it
    assert len(store.asked) <= 203


def test_what_is_known_is_forgotten_in_time(store: CountingStore, tmp_path: Path) -> None:
    kernel = make_kernel(store, tmp_path, known_timeout_s=0, missing_timeout_s=0)
    store.put("a", [b"x"])
    kernel.node("a")
    store.delete("a")
    assert errno_of(kernel.node, "a") == "ENOENT"
    store.put("a", [b"xy"])
    assert kernel.stat("a").size == 2


# Making and removing.


def test_directories_are_markers(store: CountingStore, kernel: Kernel) -> None:
    kernel.mkdir("d")
    kernel.mkdir("d/e")
    assert store.keys() == ["d/", "d/e/"]
    assert errno_of(kernel.mkdir, "d") == "EEXIST"
    assert errno_of(kernel.rmdir, "d") == "ENOTEMPTY"
    kernel.rmdir("d/e")
    kernel.rmdir("d")
    assert store.keys() == []
    assert errno_of(kernel.node, "d") == "ENOENT"


def test_mkdir_sees_what_another_mount_has_made(store: CountingStore, tmp_path: Path) -> None:
    kernel = make_kernel(store, tmp_path, missing_timeout_s=100)
    assert errno_of(kernel.node, "d") == "ENOENT"
    store.put("d/", [])
    assert errno_of(kernel.mkdir, "d") == "EEXIST"
    assert stat.S_ISDIR(kernel.stat("d").mode)


def test_directory_that_was_emptied_stays_until_it_is_removed(store: CountingStore, kernel: Kernel) -> None:
    store.put("a/b/x", [b"x"])
    kernel.unlink("a/b/x")
    assert store.keys() == []
    assert kernel.listdir("a/b") == []
    assert kernel.listdir("") == ["a"]
    assert kernel.listdir("a") == ["b"]
    assert errno_of(kernel.rmdir, "a") == "ENOTEMPTY"
    kernel.rmdir("a/b")
    kernel.rmdir("a")
    assert kernel.listdir("") == []


def test_file_is_in_the_store_when_it_is_closed(store: CountingStore, kernel: Kernel) -> None:
    handle = kernel.create("f")
    assert kernel.listdir("") == ["f"]
    assert kernel.stat("f").size == 0
    assert store.keys() == []
    kernel.write(handle, 0, b"hello")
    assert kernel.stat("f").size == 5
    run(kernel.filesystem.flush(handle))
    assert store.content("f") == b"hello"
    run(kernel.filesystem.release(handle))
    assert kernel.cat("f") == b"hello"
    assert kernel.listdir("") == ["f"]


def test_empty_file_is_not_made_by_the_close_of_a_copy_of_its_descriptor(
    store: CountingStore, kernel: Kernel
) -> None:
    handle = kernel.create("f")
    run(kernel.filesystem.flush(handle))  # a shell's redirection: dup2, then close
    assert store.keys() == []
    kernel.close(handle)
    assert store.content("f") == b""


def test_file_that_the_kernel_forgets_while_it_is_closed_is_stored(
    store: CountingStore, kernel: Kernel
) -> None:
    opened, entry = run(kernel.filesystem.create(ROOT, b"f", 0o644, os.O_WRONLY, SOMEONE))
    run(kernel.filesystem.forget([(entry.node, 1)]))  # a release waits in a thread, a forget does not
    run(kernel.filesystem.release(opened.handle))
    assert store.content("f") == b""
    assert len(kernel.filesystem.nodes) == 1


def test_file_that_two_close_at_once_is_stored(
    store: CountingStore, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [kernel.create("f"), kernel.open("f", os.O_WRONLY)]
    volume = kernel.filesystem.volume
    both = threading.Barrier(2)
    of = volume.files.of

    def late(node: int) -> Any:
        found = of(node)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return found

    monkeypatch.setattr(volume.files, "of", late)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(vars(kernel.filesystem)["_content"].release, handles))
    assert store.content("f") == b""
    assert not volume.drafting()


def test_file_is_cut_off_while_it_is_closed(
    store: CountingStore, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = kernel.create("f")
    kernel.write(handle, 0, b"0123456789")
    volume, content = kernel.filesystem.volume, vars(kernel.filesystem)["_content"]
    node = volume.nodes[kernel.node("f")]
    find = volume.draft
    closing: list[Future[None]] = []

    def late(node: Node) -> Any:
        found = find(node)
        if not closing:
            closing.append(pool.submit(content.release, handle))
            wait(closing, 0.3)
        return found

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(volume, "draft", late)
        assert content.set_size(node, 5, None).size == 5
    closing[0].result()
    assert store.content("f") == b"01234"


def test_file_is_read_while_its_writer_closes_it(
    store: CountingStore, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = kernel.create("f")
    kernel.write(writer, 0, b"0123456789")
    reader = kernel.open("f")
    draft = kernel.filesystem.volume.drafting()[0]
    found = kernel.filesystem.volume.draft(draft)
    assert found is not None
    read = found.read

    def late(offset: int, size: int) -> Any:
        kernel.close(writer)
        wait_until(lambda: vars(found.body.spool)["_file"] == -1)
        return read(offset, size)

    monkeypatch.setattr(found, "read", late)
    assert kernel.read(reader) == b"0123456789"


@pytest.mark.parametrize("flags", [os.O_CREAT, os.O_TRUNC])
def test_file_that_is_made_or_emptied_without_being_written_to_is_stored(
    store: CountingStore, kernel: Kernel, flags: int
) -> None:
    if flags == os.O_TRUNC:
        store.put("f", [b"content"])
        handle = kernel.open("f", os.O_RDONLY | flags)
    else:  # as `flock` makes its file
        opened, _ = run(kernel.filesystem.create(ROOT, b"f", 0o644, os.O_RDONLY | flags, SOMEONE))
        handle = opened.handle
    assert kernel.read(handle) == b""
    kernel.close(handle)
    assert store.content("f") == b""
    assert not kernel.filesystem.volume.drafting()


def test_create_is_exclusive_if_it_is_asked_to_be(store: CountingStore, tmp_path: Path) -> None:
    kernel = make_kernel(store, tmp_path, missing_timeout_s=100)
    store.put("f", [b"x"])
    assert errno_of(kernel.create, "f", os.O_EXCL) == "EEXIST"
    assert errno_of(kernel.create, "f") == "ESTALE"  # the kernel looks again, and opens it
    assert errno_of(kernel.create, "g", os.O_EXCL) == ""
    assert errno_of(kernel.create, "g", os.O_EXCL) == "EEXIST"


def test_node_of_a_regular_file_can_be_made_and_no_other(store: CountingStore, kernel: Kernel) -> None:
    filesystem = kernel.filesystem
    run(filesystem.mknod(ROOT, b"f", stat.S_IFREG | 0o644, 0, SOMEONE))
    assert store.keys() == ["f"]
    for kind in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR):
        assert errno_of(run, filesystem.mknod(ROOT, b"p", kind | 0o644, 0, SOMEONE)) == "EPERM"
    assert errno_of(run, filesystem.symlink(ROOT, b"l", b"f", SOMEONE)) == "EPERM"
    assert errno_of(run, filesystem.link(kernel.node("f"), ROOT, b"l")) == "EPERM"
    with pytest.raises(OperationAbsent):
        run(filesystem.getxattr(ROOT, b"user.a"))


def test_owners_modes_and_times_are_the_stores(store: CountingStore, tmp_path: Path) -> None:
    kernel = make_kernel(store, tmp_path, uid=7, gid=8, file_mode=0o640, directory_mode=0o750)
    store.put("d/f", [b"x"])
    found = kernel.stat("d/f")
    assert (found.uid, found.gid, stat.S_IMODE(found.mode)) == (7, 8, 0o640)
    assert found.mtime_ns == found.ctime_ns == found.atime_ns == store.head("d/f").modified_ns
    kernel.change("d/f", mode=stat.S_IFREG | 0o640, uid=7, gid=8)
    kernel.change("d/f", atime_ns=1, mtime_ns=2)
    assert stat.S_IMODE(kernel.change("d/f", mode=0o600).mode) == 0o640
    strict = make_kernel(store, tmp_path, ignore_permissions=False)
    strict.change("d/f", mode=stat.S_IFREG | 0o666, uid=0, gid=0)
    assert errno_of(strict.change, "d/f", mode=0o600) == errno_of(strict.change, "d", uid=9) == "EPERM"


# Content.


def test_reader_keeps_its_version_and_a_new_open_sees_the_new_one(
    store: CountingStore, tmp_path: Path
) -> None:
    kernel = make_kernel(store, tmp_path, known_timeout_s=0)
    store.put("f", [b"old"])
    node = kernel.node("f")
    handle = kernel.open("f")
    assert kernel.read(handle) == b"old"
    store.put("f", [b"newer"])
    assert kernel.read(handle) == b"old"
    assert run(kernel.filesystem.getattr(node)).size == 3
    assert errno_of(run, kernel.filesystem.open(node, os.O_RDONLY, SOMEONE)) == "ESTALE"
    other = kernel.node("f")
    assert other != node  # another file for the kernel, with pages of its own
    assert kernel.cat("f") == b"newer"
    assert kernel.read(handle) == b"old"
    kernel.close(handle)


def test_pages_stay_only_if_the_version_is_that_of_the_last_open(
    store: CountingStore, tmp_path: Path
) -> None:
    kernel = make_kernel(store, tmp_path, known_timeout_s=0)
    store.put("f", [b"old"])
    node = kernel.node("f")

    def opened() -> bool:
        answer = run(kernel.filesystem.open(node, os.O_RDONLY, SOMEONE))
        run(kernel.filesystem.release(answer.handle))
        return answer.keep_cache

    assert [opened(), opened()] == [False, True]
    store.put("f", [b"new"])
    assert [opened(), opened()] == [False, True]


def test_what_one_writes_the_others_on_the_mount_read_at_once(store: CountingStore, kernel: Kernel) -> None:
    store.put("f", [b"0123456789"])
    reader = kernel.open("f")
    assert kernel.read(reader) == b"0123456789"
    writer = kernel.open("f", os.O_RDWR)
    kernel.write(writer, 2, b"XX")
    assert kernel.read(reader) == b"01XX456789"
    assert store.content("f") == b"0123456789"
    kernel.close(writer)
    assert store.content("f") == b"01XX456789"
    assert kernel.read(reader) == b"01XX456789"


def test_overwriting_is_atomic(store: CountingStore, kernel: Kernel) -> None:
    store.put("f", [b"old"])
    handle = kernel.open("f", os.O_WRONLY | os.O_TRUNC)
    assert kernel.stat("f").size == 0
    kernel.write(handle, 0, b"new")
    assert store.content("f") == b"old"
    kernel.close(handle)
    assert store.content("f") == b"new"


def test_appending_and_cutting_need_staging(store: CountingStore, tmp_path: Path) -> None:
    kernel = make_kernel(store, tmp_path)
    store.put("f", [b"12345"])
    handle = kernel.open("f", os.O_WRONLY | os.O_APPEND)
    kernel.write(handle, 5, b"678")
    kernel.close(handle)
    assert store.content("f") == b"12345678"
    assert kernel.truncate("f", 3).size == 3
    assert store.content("f") == b"123"
    assert kernel.truncate("f", 0).size == 0
    assert store.content("f") == b""
    strict = make_kernel(store, tmp_path, staging_bytes=0)
    store.put("g", [b"12345"])
    handle = strict.open("g", os.O_WRONLY)
    assert errno_of(strict.write, handle, 5, b"6") == "ENOTSUP"
    assert errno_of(strict.truncate, "g", 3) == "ENOTSUP"
    strict.close(handle)
    assert strict.truncate("g", 5).size == 5
    assert strict.truncate("g", 0).size == 0
    assert store.content("g") == b""


def test_unlinked_file_lives_on_for_who_has_it_open(store: CountingStore, kernel: Kernel) -> None:
    store.put("f", [b"content"])
    reader, node = kernel.open("f"), kernel.node("f")
    assert kernel.read(reader) == b"content"
    kernel.unlink("f")
    assert kernel.read(reader) == b"content"
    assert run(kernel.filesystem.getattr(node)).nlink == 0
    kernel.close(reader)
    writer, node = kernel.create("g"), kernel.node("g")
    kernel.write(writer, 0, b"nobody")
    assert run(kernel.filesystem.getattr(node)).nlink == 1
    kernel.unlink("g")
    assert kernel.read(writer) == b"nobody"
    assert run(kernel.filesystem.getattr(node)).nlink == 0
    kernel.close(writer)
    assert store.keys() == []
    assert errno_of(kernel.unlink, "g") == "ENOENT"


def test_failed_commit_is_told_by_close_and_tried_again_by_the_next(
    store: CountingStore, kernel: Kernel
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise StoreFault(errno.EACCES, FaultKind.DENIED, "no")

    handle = kernel.create("f")
    kernel.write(handle, 0, b"x")
    store.put = fail  # type: ignore[method-assign]
    assert errno_of(run, kernel.filesystem.flush(handle)) == "EACCES"
    assert errno_of(run, kernel.filesystem.fsync(handle, False)) == "EACCES"
    del store.put
    run(kernel.filesystem.flush(handle))
    assert store.content("f") == b"x"
    run(kernel.filesystem.release(handle))
    assert kernel.filesystem.metrics.numbers()["fault_denied"] == 2


# Renaming.


def test_rename_copies_and_removes(store: CountingStore, kernel: Kernel) -> None:
    store.put("a", [b"a"])
    store.put("b", [b"b"])
    kernel.rename("a", "b")
    assert (store.keys(), store.content("b")) == (["b"], b"a")
    store.put("d/x", [b"x"])
    kernel.rename("b", "d/c")
    assert store.keys() == ["d/c", "d/x"]
    assert kernel.cat("d/c") == b"a"
    assert errno_of(kernel.rename, "absent", "d/y") == "ENOENT"
    assert errno_of(kernel.rename, "d/c", "d/x", RENAME_NOREPLACE) == "EEXIST"
    assert errno_of(kernel.rename, "d/c", "d/x", RENAME_EXCHANGE) == "EINVAL"
    kernel.rename("d/c", "d/z", RENAME_NOREPLACE)
    assert store.keys() == ["d/x", "d/z"]


def test_open_files_follow_a_rename(store: CountingStore, kernel: Kernel) -> None:
    store.put("f", [b"content"])
    reader = kernel.open("f")
    writer = kernel.create("new")
    kernel.write(writer, 0, b"part one, ")
    kernel.rename("f", "g")
    kernel.rename("new", "newer")
    assert store.content("newer") == b"part one, "
    assert kernel.read(reader) == b"content"
    kernel.write(writer, 10, b"part two")
    kernel.close(writer)
    assert store.content("newer") == b"part one, part two"
    assert store.keys() == ["g", "newer"]


def test_directories_are_renamed_key_by_key_up_to_a_bound(store: CountingStore, tmp_path: Path) -> None:
    kernel = make_kernel(store, tmp_path, largest_rename=5)
    for key in ("d/", "d/a", "d/e/b", "d//odd", "dd/x"):
        store.put(key, [key.encode()])
    handle = kernel.open("d/a")
    kernel.rename("d", "n")
    assert store.keys() == ["dd/x", "n/", "n//odd", "n/a", "n/e/b"]
    assert kernel.read(handle) == b"d/a"
    assert kernel.cat("n/e/b") == b"d/e/b"
    assert errno_of(kernel.node, "d") == "ENOENT"
    store.put("n/one", [b""])
    store.put("n/two", [b""])
    assert errno_of(kernel.rename, "n", "m") == "EXDEV"
    assert errno_of(kernel.rename, "dd", "n") == "ENOTEMPTY"
    assert errno_of(kernel.rename, "dd", "dd/x") == "EINVAL"
    kernel.mkdir("empty")
    kernel.rename("dd", "empty")
    assert kernel.listdir("empty") == ["x"]


def test_failed_rename_of_a_directory_leaves_it_whole(store: CountingStore, kernel: Kernel) -> None:
    keys = [f"d/{number}" for number in range(9)]
    for key in keys:
        store.put(key, [b"x"])

    def fail(what: str, key: str) -> None:
        if (what, key) == ("copy", "d/5"):
            raise StoreFault(errno.EIO, FaultKind.SERVER, "no")

    store.fail = fail
    assert errno_of(kernel.rename, "d", "n") == "EIO"
    assert store.keys() == keys
    store.fail = lambda what, key: None
    kernel.rename("d", "n")
    assert store.keys() == ["n/", *(f"n/{number}" for number in range(9))]


def test_store_that_is_away_is_not_asked_to_copy_every_file(store: CountingStore, kernel: Kernel) -> None:
    for number in range(50):
        store.put(f"d/{number}", [b"x"])

    def away(what: str, key: str) -> None:
        if what == "copy":
            raise StoreFault(errno.ETIMEDOUT, FaultKind.TIMEOUT, key)

    store.fail = away
    assert errno_of(kernel.rename, "d", "e") == "ETIMEDOUT"
    assert len([key for what, key in store.asked if what == "copy"]) <= 6  # of as many threads
    assert store.keys() == sorted(f"d/{number}" for number in range(50))


def test_directory_with_a_file_that_is_being_written_moves_and_is_not_removed(
    store: CountingStore, kernel: Kernel
) -> None:
    kernel.mkdir("d")
    handle = kernel.create("d/f")
    kernel.write(handle, 0, b"one")
    assert errno_of(kernel.rmdir, "d") == "ENOTEMPTY"
    kernel.rename("d", "e")
    kernel.write(handle, 3, b" two")
    kernel.close(handle)
    assert store.keys() == ["e/", "e/f"]
    assert store.content("e/f") == b"one two"


# Listing.


def test_listing_in_small_bits_tells_every_name_once(store: CountingStore, kernel: Kernel) -> None:
    names = {f"n{number}" for number in range(2500)}
    for name in names:
        store.put(f"d/{name}", [b""])
    for room in (7, 1000, 10**9):
        listed = kernel.listdir("d", room)
        assert len(listed) == len(names) == len(set(listed))
    assert set(kernel.listdir("d", 50, takes_names=False)) == names


def test_what_is_removed_while_it_is_listed_is_not_told(store: CountingStore, kernel: Kernel) -> None:
    for number in range(100):
        store.put(f"d/{number:03}", [b""])
    from tests.sidecar.directory.core import Shelf

    handle = run(kernel.filesystem.opendir(kernel.node("d")))
    first = Shelf(10)
    run(kernel.filesystem.readdir(handle, 0, first))
    kernel.unlink("d/050")
    rest = Shelf()
    run(kernel.filesystem.readdir(handle, first.entries[-1][3], rest))
    assert b"050" not in [name for name, *_ in rest.entries]
    assert len(first.entries) + len(rest.entries) == 2 + 99


def test_store_without_listing_is_read_only_and_shows_what_was_found(
    store: CountingStore, tmp_path: Path
) -> None:
    store.put("page", [b"content"])
    store.put("dir/", [])
    store.put("dir/file", [b"x"])
    store.abilities = Abilities(listing=False, writing=False, copy=False, uploads=False)
    kernel = make_kernel(store, tmp_path)
    assert kernel.listdir("") == []
    assert kernel.cat("page") == b"content"
    assert kernel.cat("dir/file") == b"x"
    assert sorted(kernel.listdir("")) == ["dir", "page"]
    assert errno_of(kernel.node, "absent") == "ENOENT"
    for change in (kernel.mkdir, kernel.create, kernel.unlink, kernel.rmdir):
        assert errno_of(change, "new") == "EROFS"
    assert errno_of(kernel.rename, "page", "new") == "EROFS"
    assert errno_of(kernel.open, "page", os.O_WRONLY) == errno_of(kernel.truncate, "page", 0) == "EROFS"
    assert ("list", "") not in store.asked


def test_sub_path_is_a_prefix(store: CountingStore, tmp_path: Path) -> None:
    store.put("outside", [b""])
    store.put("team/a/in", [b"x"])
    kernel = make_kernel(store, tmp_path, sub_path="team/a")
    assert kernel.listdir("") == ["in"]
    kernel.put("new", b"y")
    kernel.rename("new", "newer")
    assert store.keys() == ["outside", "team/a/in", "team/a/newer"]
