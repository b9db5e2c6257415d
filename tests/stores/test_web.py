"""Web sites as stores: the reading part of the port against nginx, and the odd ways of other servers."""

import base64
import errno
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.servers.nginx import NginxPlace
from sidemount.stores.opening import open_store
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault
from tests.stores.http_script import HttpScript, http_script, raw, say
from tests.stores.kinds import settings_of, write_secrets

pytestmark = pytest.mark.timeout(120, func_only=True)

_CONTENT = bytes(range(256)) * 1000
_Open = Callable[..., ObjectStore]


@pytest.fixture
def opened() -> Iterator[_Open]:
    """How a store is opened: source, secrets."""
    made: list[ObjectStore] = []

    def open_it(source: str, secrets: str = "") -> ObjectStore:
        made.append(open_store(source, settings_of(source, "", retry_timeout_s=2), secrets))
        return made[-1]

    yield open_it
    for store in made:
        store.close()


@pytest.fixture
def server() -> Iterator[HttpScript]:
    with http_script() as made:
        yield made


def _read(store: ObjectStore, key: str, offset: int = 0, size: int = 1 << 20, **known: str) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: store.get(key, offset, memoryview(buffer), **known).size])


def test_files_of_a_site_are_read_in_ranges(nginx_server: NginxPlace, opened: _Open) -> None:
    place = nginx_server.files / "web"
    (place / "sub dir").mkdir(parents=True)
    (place / "sub dir" / "ü +%&?.bin").write_bytes(_CONTENT)
    (place / "empty").touch()
    store = opened(f"{nginx_server.place.endpoint}/bucket/web/")
    key = "sub dir/ü +%&?.bin"
    info = store.head(key)
    assert (info.key, info.size) == (key, len(_CONTENT))
    assert info.etag
    assert abs(info.modified_ns - (place / key).stat().st_mtime_ns) < 1_000_000_000
    assert _read(store, key) == _CONTENT
    assert _read(store, key, 1000, 50) == _CONTENT[1000:1050]
    assert _read(store, key, len(_CONTENT) - 7, 50) == _CONTENT[-7:]
    for offset in (len(_CONTENT), len(_CONTENT) + 5):
        assert store.get(key, offset, memoryview(bytearray(5))) == (info, 0)
    assert store.get("empty", 0, memoryview(bytearray(5))) == (store.head("empty"), 0)
    assert store.get(key, 0, memoryview(bytearray(5)), unless=info.etag) == (None, 0)
    assert _read(store, key, 3, 4, etag=info.etag) == _CONTENT[3:7]
    (place / key).write_bytes(b"changed")
    with pytest.raises(StoreFault) as raised:
        _read(store, key, 3, 4, etag=info.etag)
    assert (raised.value.kind, raised.value.errno) == (FaultKind.CHANGED, errno.ESTALE)
    for missing in ("none", "sub dir/none", "../f", "sub dir/../empty", "./empty"):
        with pytest.raises(StoreFault) as raised:
            store.head(missing)
        assert (raised.value.kind, raised.value.errno) == (FaultKind.MISSING, errno.ENOENT)


def test_nothing_is_listed_or_written(server: HttpScript, opened: _Open) -> None:
    store = opened(server.url)
    abilities = store.abilities
    assert not any([abilities.listing, abilities.writing, abilities.copy, abilities.uploads])
    calls: list[Callable[[], object]] = [
        lambda: store.list_page(""),
        lambda: store.put("a", [b""]),
        lambda: store.copy("a", "b"),
        lambda: store.delete("a"),
        lambda: store.delete_many(["a"]),
        lambda: store.begin_upload("a"),
    ]
    for call in calls:
        with pytest.raises(StoreFault) as raised:
            call()
        assert (raised.value.kind, raised.value.errno) == (FaultKind.UNSUPPORTED, errno.EOPNOTSUPP)
    assert store.uploads("") == []
    assert server.asked == []


def test_a_server_without_ranges_is_told_of(tmp_path: Path, opened: _Open) -> None:
    """Python's own server: no ETags, and the whole file whatever is asked for."""
    (tmp_path / "f").write_bytes(_CONTENT)
    (tmp_path / "dir" / "sub").mkdir(parents=True)

    class _Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object, **named: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path), **named)  # type: ignore[arg-type]

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Quiet) as served:
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        store = opened(f"http://127.0.0.1:{served.server_port}")
        info = store.head("f")
        assert info.size == len(_CONTENT)
        assert _read(store, "f", 0, 100, etag=info.etag) == _CONTENT[:100]
        assert _read(store, "f") == _CONTENT
        with pytest.raises(StoreFault, match="ranges") as raised:
            _read(store, "f", 5, 10)
        assert raised.value.errno == errno.EOPNOTSUPP
        for directory in ("dir", "dir/sub"):
            assert store.head(f"{directory}/").size == 0
            with pytest.raises(StoreFault) as raised:
                store.head(directory)
            assert raised.value.kind is FaultKind.MISSING
        with pytest.raises(StoreFault) as raised:
            store.head("none/")
        assert raised.value.kind is FaultKind.MISSING
        served.shutdown()


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_what_has_no_strong_etag_is_known_by_time_and_size(
    server: HttpScript, opened: _Open, etag: str
) -> None:
    store = opened(f"{server.url}/x")
    dated = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"} | ({"ETag": etag} if etag else {})
    later = {**dated, "Last-Modified": "Thu, 01 Jan 2026 00:00:01 GMT"}
    server.then(say(200, b"abc", also=dated))
    info = store.head("a")
    ranged = {"Content-Range": "bytes 0-2/3"}
    server.then(say(206, b"abc", also={**dated, **ranged}), say(206, b"abd", also={**later, **ranged}))
    assert _read(store, "a", 0, 3, etag=info.etag) == b"abc"
    assert "if-match" not in server.asked[-1].headers
    with pytest.raises(StoreFault) as raised:
        _read(store, "a", 0, 3, etag=info.etag)
    assert raised.value.kind is FaultKind.CHANGED
    server.then(say(206, b"abc", also={**dated, **ranged}))
    assert store.get("a", 0, memoryview(bytearray(3)), unless=info.etag) == (None, 0)


def test_a_redirection_at_the_same_host_is_followed(server: HttpScript, opened: _Open) -> None:
    store = opened(f"{server.url}/x", "")
    server.then(
        say(302, location="/y/a?v=1"), say(307, location=f"{server.url}/z/a"), say(200, b"abc", etag='"e"')
    )
    assert store.head("a").size == 3
    assert [one.target for one in server.asked] == ["/x/a", "/y/a?v=1", "/z/a"]
    server.then(say(200, b"abc", etag='"e"'))
    store.head("a")
    assert server.asked[-1].target == "/z/a"


@pytest.mark.parametrize(
    "place", ["http://127.0.0.2/a", "https://example.com/a", "ftp://127.0.0.1/a", "", "//x/a"]
)
def test_a_redirection_to_another_host_is_not(server: HttpScript, opened: _Open, place: str) -> None:
    server.then(say(302, location=place))
    with pytest.raises(StoreFault, match="another host") as raised:
        opened(server.url).head("a")
    assert raised.value.errno == errno.EIO
    assert len(server.asked) == 1


def test_a_directory_that_nobody_may_list_is_there(server: HttpScript, opened: _Open) -> None:
    store = opened(server.url)
    server.then(say(403), say(401))
    assert store.head("dir/").size == 0
    with pytest.raises(StoreFault) as raised:
        store.head("dir/")
    assert raised.value.errno == errno.EACCES


def test_redirections_in_a_circle_end(server: HttpScript, opened: _Open) -> None:
    server.then(*[say(302, location="/a")] * 20)
    with pytest.raises(StoreFault, match="on and on"):
        opened(server.url).head("a")
    assert len(server.asked) < 10


def test_credentials_are_sent_and_read_again(server: HttpScript, tmp_path: Path, opened: _Open) -> None:
    secrets = write_secrets(tmp_path / "s", username="me", password="pässword\n")
    store = opened(server.url, secrets)
    server.then(say(200, b"", etag='"e"'))
    store.head("a")
    expected = base64.b64encode("me:pässword".encode()).decode()
    assert server.asked[0].headers["authorization"] == f"Basic {expected}"
    write_secrets(tmp_path / "s", access_token="token")
    server.then(say(401), say(200, b"", etag='"e"'))
    store.head("a")
    assert server.asked[-1].headers["authorization"] == "Bearer token"


def test_a_server_that_knows_no_head_is_asked_for_a_byte(server: HttpScript, opened: _Open) -> None:
    server.then(say(405), say(206, b"a", etag='"e"', content_range="bytes 0-0/3"))
    info = opened(server.url).head("a")
    assert (info.size, info.etag) == (3, "e")


def test_a_server_that_tells_no_size_is_none_for_files(server: HttpScript, opened: _Open) -> None:
    server.then(raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"))
    with pytest.raises(StoreFault) as raised:
        opened(server.url).head("a")
    assert raised.value.errno == errno.EOPNOTSUPP


@pytest.mark.parametrize("source", ["http://", "http://user:pw@host/x", "https://host/x?y=z"])
def test_urls_that_are_none_are_refused(opened: _Open, source: str) -> None:
    with pytest.raises(StoreFault) as raised:
        opened(source)
    assert raised.value.kind is FaultKind.REQUEST
    assert "pw" not in str(raised.value)
