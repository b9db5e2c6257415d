"""nginx and what it shows of rclone's listing: a file has one ETag, wherever it is told."""

import http.client
import re
from urllib.parse import quote

import pytest

from e2e.servers.fixtures import nginx_server
from e2e.servers.nginx import NginxPlace
from e2e.servers.nginx_listing import with_etags

__all__ = ["nginx_server"]

pytestmark = pytest.mark.timeout(120, func_only=True)


def _ask(
    place: NginxPlace, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", place.place.port, timeout=30)
    try:
        connection.request(method, f"/{place.place.bucket}{target}", body or None, headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_an_etag_is_the_same_in_a_listing_and_with_the_content(nginx_server: NginxPlace) -> None:
    name = "a b+ü%.bin"
    (nginx_server.files / name).write_bytes(b"x" * 5000)
    status, headers, content = _ask(nginx_server, "GET", f"/{quote(name)}", headers={"Range": "bytes=10-19"})
    assert (status, content) == (206, b"x" * 10)
    listed = _ask(nginx_server, "GET", "?list-type=2&prefix=a")[2].decode()
    (etag,) = re.findall("<ETag>(.*?)</ETag>", listed)
    assert etag.replace("&quot;", '"') == headers["etag"]
    assert _ask(nginx_server, "GET", f"/{quote(name)}", headers={"If-Match": headers["etag"]})[0] == 200
    assert _ask(nginx_server, "HEAD", f"/{quote(name)}")[1]["content-length"] == "5000"


def test_what_is_put_is_there_and_what_is_deleted_is_not(nginx_server: NginxPlace) -> None:
    assert _ask(nginx_server, "PUT", "/sub/new", b"content")[0] == 200
    assert _ask(nginx_server, "GET", "/sub/new")[::2] == (200, b"content")
    assert _ask(nginx_server, "GET", "/sub")[0] == 404
    assert _ask(nginx_server, "DELETE", "/sub/new")[0] == 204
    status, _, told = _ask(nginx_server, "GET", "/sub/new")
    assert status == 404
    assert b"NoSuchKey" in told


def test_a_time_before_the_second_is_of_that_second() -> None:
    entry = b"<LastModified>2026-01-01T00:00:00.999Z</LastModified>\n <ETag></ETag> <Size>255</Size>"
    assert b"<ETag>&quot;6955b900-ff&quot;</ETag>" in with_etags(entry)
