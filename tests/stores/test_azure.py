"""Azure's Blob service: the ways to prove who asks, against Azurite where it knows them, and what Azurite does not do."""

import base64
import errno
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from e2e.servers.azurite import AzurePlace
from sidemount.stores.azure_container import AzureContainer
from sidemount.stores.azure_credentials import AzureCredentials, AzureFiles, parse
from sidemount.stores.azure_signing import shared_key
from sidemount.stores.azure_store import open_azure
from sidemount.stores.credentials import Damaged
from sidemount.stores.http_message import Endpoint, Request
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault
from tests.stores.http_script import HttpScript, http_script, say
from tests.stores.kinds import settings_of, write_secrets

pytestmark = pytest.mark.timeout(120, func_only=True)

_Open = Callable[..., ObjectStore]


@pytest.fixture
def opened() -> Iterator[_Open]:
    """How a store is opened: endpoint, secrets."""
    made: list[ObjectStore] = []

    def open_it(endpoint: str, secrets: str = "", container: str = "container") -> ObjectStore:
        source = f"az://{container}/"
        made.append(open_azure(source, settings_of(source, endpoint, retry_timeout_s=2), secrets))
        return made[-1]

    yield open_it
    for store in made:
        store.close()


@pytest.fixture
def server() -> Iterator[HttpScript]:
    with http_script() as made:
        yield made


def test_a_request_is_signed_as_the_documentation_does_it() -> None:
    """The string to sign of Microsoft's example "Authorize with Shared Key", put together by hand."""
    key = b"0123456789abcdef"
    headers = {"x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "x-ms-version": "2015-02-21"}
    target = "/mycontainer?comp=metadata&restype=container&timeout=20"
    request = Request(Endpoint(True, "myaccount.blob.core.windows.net", 443), "GET", target, headers)
    text = (
        "GET\n\n\n\n\n\n\n\n\n\n\n\n"
        "x-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2015-02-21\n"
        "/myaccount/mycontainer\ncomp:metadata\nrestype:container\ntimeout:20"
    )
    signature = base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()
    assert shared_key(request, "myaccount", key) == f"SharedKey myaccount:{signature}"


def _sas(place: AzurePlace, permissions: str) -> str:
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
    version = "2021-12-02"
    text = "\n".join(
        [
            permissions,
            "",
            ends,
            f"/blob/{place.account}/{place.container}",
            "",
            "",
            "",
            version,
            "c",
            *[""] * 7,
        ]
    )
    signature = hmac.digest(base64.b64decode(place.account_key), text.encode(), hashlib.sha256)
    told = {
        "sv": version,
        "sr": "c",
        "sp": permissions,
        "se": ends,
        "sig": base64.b64encode(signature).decode(),
    }
    return urlencode(told)


def test_a_shared_access_signature_is_enough(azure_server: AzurePlace, tmp_path: Path, opened: _Open) -> None:
    secrets = write_secrets(tmp_path / "s", sas_token=f"?{_sas(azure_server, 'racwdl')}\n")
    store = opened(azure_server.endpoint, secrets)
    info = store.put("sas/a b", [b"content"])
    buffer = memoryview(bytearray(10))
    assert store.get("sas/a b", 0, buffer, etag=info.etag).size == 7
    assert [one.key for one in store.list_page("sas/").objects] == ["sas/a b"]
    upload = store.begin_upload("sas/b")
    parts = [store.copy_part("sas/b", upload, 1, info, 0, 7)]
    assert store.complete("sas/b", upload, parts).size == 7
    assert store.copy("sas/a b", "sas/c").size == 7
    store.delete_many(["sas/a b", "sas/b", "sas/c"])


def test_a_signature_that_lets_read_only_is_refused_for_more(
    azure_server: AzurePlace, tmp_path: Path, opened: _Open
) -> None:
    store = opened(azure_server.endpoint, write_secrets(tmp_path / "s", sas_token=_sas(azure_server, "rl")))
    assert store.list_page("none/").objects == []
    with pytest.raises(StoreFault) as raised:
        store.put("a", [b"x"])
    assert raised.value.errno == errno.EACCES
    assert "sig=" not in str(raised.value)


def test_a_wrong_key_is_refused_without_what_was_signed(
    azure_server: AzurePlace, tmp_path: Path, opened: _Open
) -> None:
    wrong = base64.b64encode(b"another key of an account").decode()
    secrets = write_secrets(tmp_path / "s", account_name=azure_server.account, account_key=wrong)
    with pytest.raises(StoreFault) as raised:
        opened(azure_server.endpoint, secrets).list_page("")
    assert raised.value.errno == errno.EACCES
    assert raised.value.kind in (FaultKind.CREDENTIALS, FaultKind.DENIED)
    assert wrong not in str(raised.value)


def test_a_token_is_sent_as_it_is(server: HttpScript, tmp_path: Path, opened: _Open) -> None:
    store = opened(server.url, write_secrets(tmp_path / "s", access_token="t1"))
    server.then(say(200, also={"ETag": '"0x1"', "Content-Length": "0"}))
    store.head("a")
    assert server.asked[0].headers["authorization"] == "Bearer t1"
    write_secrets(tmp_path / "s", access_token="token-2")
    server.then(
        say(401, also={"x-ms-error-code": "InvalidAuthenticationInfo"}), say(200, also={"ETag": '"0x1"'})
    )
    store.head("a")
    assert server.asked[-1].headers["authorization"] == "Bearer token-2"


def test_the_account_names_the_host() -> None:
    class _Fixed:
        def current(self) -> AzureCredentials | None:
            return AzureCredentials(account="mine", key=b"k")

        def renew(self) -> bool:
            return False

    request = AzureContainer("box", _Fixed()).request("GET", "a//b ü", [("comp", "x")])
    assert (request.endpoint, request.target) == (
        Endpoint(True, "mine.blob.core.windows.net", 443),
        "/box/a//b%20%C3%BC?comp=x",
    )


def test_without_account_or_endpoint_there_is_nobody_to_ask(tmp_path: Path, opened: _Open) -> None:
    for secrets in ("", write_secrets(tmp_path / "s", access_token="t")):
        with pytest.raises(StoreFault, match="account_name") as raised:
            opened("", secrets).head("a")
        assert raised.value.kind is FaultKind.CREDENTIALS


@pytest.mark.parametrize(
    "files",
    [
        {"account_key": "a2V5"},
        {"account_name": "a", "account_key": "no base64!"},
        {"account_name": "a", "account_key": ""},
        {"account_name": "a.evil.example/", "account_key": "a2V5"},
        {"sas_token": "two lines\nof it"},
    ],
    ids=str,
)
def test_files_that_are_not_whole_are_damaged(files: dict[str, str]) -> None:
    with pytest.raises(Damaged) as raised:
        parse(files)
    assert not any(value and len(value) > 3 and value in str(raised.value) for value in files.values())


def test_files_may_have_the_names_of_others(tmp_path: Path) -> None:
    secrets = write_secrets(tmp_path / "s", azurestorageaccountname="mine", azurestorageaccountkey="a2V5")
    assert AzureFiles(secrets).current() == AzureCredentials(account="mine", key=b"key")
    assert "key" not in repr(AzureFiles(secrets).current())


def test_a_copy_that_takes_its_time_is_waited_for(server: HttpScript, opened: _Open) -> None:
    store = opened(server.url)
    there = say(200, b"1234567", also={"ETag": '"0x1"'})
    pending = {"ETag": '"0x2"', "x-ms-copy-status": "pending"}
    server.then(
        there,
        say(202, also=pending),
        say(200, b"", also=pending),
        say(200, b"1234567", also={"ETag": '"0x3"', "x-ms-copy-status": "success"}),
    )
    assert store.copy("a", "b")[1:3] == (7, "0x3")
    server.then(there, say(202, also=pending), say(200, b"", also={**pending, "x-ms-copy-status": "failed"}))
    with pytest.raises(StoreFault) as raised:
        store.copy("a", "b")
    assert raised.value.kind is FaultKind.SERVER


@pytest.mark.parametrize(
    ("code", "status", "kind", "number"),
    [
        ("ServerBusy", 503, FaultKind.THROTTLED, 0),
        ("InternalError", 500, FaultKind.SERVER, 0),
        ("OperationTimedOut", 500, FaultKind.TIMEOUT, 0),
        ("ContainerNotFound", 404, FaultKind.MISSING, errno.ENOENT),
        ("LeaseIdMissing", 412, FaultKind.CHANGED, errno.ESTALE),
        ("InsufficientAccountPermissions", 403, FaultKind.DENIED, errno.EACCES),
        ("BlobArchived", 409, FaultKind.DENIED, errno.EACCES),
        ("PendingCopyOperation", 409, FaultKind.CONFLICT, errno.EBUSY),
        ("OutOfRangeInput", 400, FaultKind.REQUEST, errno.ENAMETOOLONG),
    ],
)
def test_codes_are_understood(
    server: HttpScript, opened: _Open, code: str, status: int, kind: FaultKind, number: int
) -> None:
    store = opened(server.url)
    server.then(say(status, also={"x-ms-error-code": code}))
    if not number:
        server.then(say(200, also={"ETag": '"0x1"'}))
        store.head("a")
        assert store.counts[f"faults_{kind.value}"] == 1  # type: ignore[attr-defined]
        return
    with pytest.raises(StoreFault) as raised:
        store.head("a")
    assert (raised.value.kind, raised.value.errno) == (kind, number)


def test_a_name_that_xml_cannot_say_is_listed(server: HttpScript, opened: _Open) -> None:
    properties = "<Properties><Etag>0x1</Etag><Content-Length>3</Content-Length></Properties>"
    blob = f'<Blob><Name Encoded="true">a%01%2Fb</Name>{properties}</Blob>'
    body = f'<?xml version="1.0"?><EnumerationResults><Blobs>{blob}</Blobs><NextMarker/></EnumerationResults>'
    server.then(say(200, b"\xef\xbb\xbf" + body.encode()))
    page = opened(server.url).list_page("")
    assert ([one.key for one in page.objects], page.token) == (["a\x01/b"], "")


def test_a_query_names_what_is_listed(server: HttpScript, opened: _Open) -> None:
    server.then(say(200, b"<EnumerationResults><Blobs/><NextMarker>m</NextMarker></EnumerationResults>"))
    assert opened(server.url).list_page("p ü/", token="before", most=7).token == "m"
    query = {name: one[0] for name, one in parse_qs(urlsplit(server.asked[0].target).query).items()}
    assert query == {
        "restype": "container",
        "comp": "list",
        "prefix": "p ü/",
        "maxresults": "7",
        "delimiter": "/",
        "marker": "before",
    }
