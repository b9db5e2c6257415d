"""Google Cloud Storage: what fake-gcs-server does not look at. Tokens, conditions of copies and completions, rewrites in steps, errors."""

import base64
import errno
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from e2e.servers.fake_gcs import GcsPlace
from sidemount.stores.faults import Counts
from sidemount.stores.gcs_store import GcsStore, open_gcs
from sidemount.stores.gcs_tokens import TokenFiles
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.prefixed_store import PrefixedStore
from sidemount.stores.store import FaultKind, ObjectStore, Part, StoreFault
from tests.stores.http_script import HttpScript, Step, http_script, say
from tests.stores.kinds import settings_of, write_secrets

pytestmark = pytest.mark.timeout(120, func_only=True)

_RESOURCE = {"name": "a", "size": "3", "generation": "7", "updated": "2026-01-02T03:04:05.678Z"}
_UPLOAD = "0123456789abcdef" * 2


def _resource(**changed: object) -> Step:
    return say(200, json.dumps({**_RESOURCE, **changed}).encode())


def _refusal(status: int, reason: str, message: str = "no") -> Step:
    return say(
        status,
        json.dumps({"error": {"code": status, "message": message, "errors": [{"reason": reason}]}}).encode(),
    )


@pytest.fixture
def server() -> Iterator[HttpScript]:
    with http_script() as made:
        yield made


_Open = Callable[..., ObjectStore]


@pytest.fixture
def opened(server: HttpScript) -> Iterator[_Open]:
    """How a store at the server is opened."""
    made: list[ObjectStore] = []

    def open_it(secrets: str = "", prefix: str = "") -> ObjectStore:
        source = f"gs://bucket/{prefix}"
        made.append(open_gcs(source, settings_of(source, server.url, retry_timeout_s=2), secrets))
        return made[-1]

    yield open_it
    for store in made:
        store.close()


def _query(server: HttpScript, number: int = -1) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(server.asked[number].target).query).items()}


def test_a_copy_names_its_version_and_condition(server: HttpScript, opened: _Open) -> None:
    store = opened()
    server.then(
        _resource(metadata={"sidemount-tag": "t"}),
        say(200, json.dumps({"done": True, "resource": _RESOURCE}).encode()),
    )
    store.copy("a/b", "c d", etag="7", if_absent=True)
    asked = server.asked[1]
    assert urlsplit(asked.target).path == "/storage/v1/b/bucket/o/a%2Fb/rewriteTo/b/bucket/o/c%20d"
    assert _query(server) == {
        "ifGenerationMatch": "0",
        "ifSourceGenerationMatch": "7",
        "sourceGeneration": "7",
    }
    assert json.loads(asked.body)["metadata"]["sidemount-tag"] == "t"
    server.then(_resource(), _refusal(412, "conditionNotMet"))
    with pytest.raises(StoreFault) as raised:
        store.copy("a/b", "c d", if_absent=True)
    assert (raised.value.kind, raised.value.errno) == (FaultKind.EXISTS, errno.EEXIST)


def test_a_large_copy_takes_several_steps(server: HttpScript, opened: _Open) -> None:
    step = json.dumps({"done": False, "rewriteToken": "next"}).encode()
    server.then(
        _resource(), say(200, step), say(200, json.dumps({"done": True, "resource": _RESOURCE}).encode())
    )
    assert opened().copy("a", "b").etag == "7"
    assert _query(server)["rewriteToken"] == "next"


def test_completing_names_versions_and_conditions(server: HttpScript, opened: _Open) -> None:
    record = _resource(metadata={"sidemount-key": "p/a", "sidemount-tag": "t"})
    server.then(record, _resource(name="p/a"), say(204), say(200, b"{}"))
    info = opened(prefix="p").complete("a", _UPLOAD, [Part(1, 2, "11"), Part(3, 1, "12")], if_match="5")
    assert (info.key, info.size, info.etag) == ("a", 3, "7")
    composed = server.asked[1]
    assert urlsplit(composed.target).path == "/storage/v1/b/bucket/o/p%2Fa/compose"
    assert _query(server, 1) == {"ifGenerationMatch": "5"}
    told = json.loads(composed.body)
    assert told["sourceObjects"] == [
        {"name": f"p/.sidemount-uploads/{_UPLOAD}/p00001", "generation": "11"},
        {"name": f"p/.sidemount-uploads/{_UPLOAD}/p00003", "generation": "12"},
    ]
    assert told["destination"]["metadata"] == {"sidemount-tag": "t", "sidemount-upload": _UPLOAD}
    assert server.asked[2].method == "DELETE"  # the record, before its parts


def test_a_condition_of_completing_that_fails(server: HttpScript, opened: _Open) -> None:
    for name, kind in (("if_absent", FaultKind.EXISTS), ("if_match", FaultKind.CHANGED)):
        server.then(_resource(metadata={}), _refusal(412, "conditionNotMet"), _resource(generation="9"))
        conditions = {"if_absent": True} if name == "if_absent" else {"if_match": "5"}
        with pytest.raises(StoreFault) as raised:
            opened().complete("a", _UPLOAD, [Part(1, 2, "11")], **conditions)
        assert raised.value.kind is kind


def test_parts_that_are_not_there_end_an_upload(server: HttpScript, opened: _Open) -> None:
    server.then(_resource(metadata={}), _refusal(404, "notFound"))
    with pytest.raises(StoreFault) as raised:
        opened().complete("a", _UPLOAD, [Part(1, 2, "11")])
    assert raised.value.kind is FaultKind.MISSING
    for wrong in ("", "../../a", "x" * 32 + "/"):
        with pytest.raises(StoreFault) as raised:
            opened().parts("a", wrong)
        assert raised.value.kind is FaultKind.MISSING


def test_a_version_that_the_server_does_not_insist_on_is_not_taken(server: HttpScript, opened: _Open) -> None:
    store = opened()
    headers = {"Content-Range": "bytes 0-2/3", "X-Goog-Generation": "8"}
    server.then(say(206, b"abc", also=headers))
    with pytest.raises(StoreFault) as raised:
        store.get("a", 0, memoryview(bytearray(3)), etag="7")
    assert raised.value.kind is FaultKind.CHANGED
    server.then(say(206, b"abc", also=headers))
    assert store.get("a", 0, memoryview(bytearray(3)), unless="8") == (None, 0)
    assert _query(server) == {"alt": "media", "ifGenerationNotMatch": "8"}
    assert server.asked[-1].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("step", "kind", "number"),
    [
        pytest.param(_refusal(404, "notFound"), FaultKind.MISSING, errno.ENOENT, id="404"),
        pytest.param(_refusal(403, "forbidden"), FaultKind.DENIED, errno.EACCES, id="403"),
        pytest.param(_refusal(401, "authError"), FaultKind.CREDENTIALS, errno.EACCES, id="401"),
        pytest.param(_refusal(409, "conflict"), FaultKind.CONFLICT, errno.EBUSY, id="409"),
        pytest.param(_refusal(400, "invalid"), FaultKind.REQUEST, errno.EIO, id="400"),
        pytest.param(_refusal(413, "uploadTooLarge"), FaultKind.TOO_LARGE, errno.EFBIG, id="413"),
        pytest.param(say(404, b"<html>"), FaultKind.MISSING, errno.ENOENT, id="no-json"),
        pytest.param(say(403, b'{"error": []}'), FaultKind.DENIED, errno.EACCES, id="odd-json"),
    ],
)
def test_refusals_are_understood(
    server: HttpScript, opened: _Open, step: Step, kind: FaultKind, number: int
) -> None:
    server.then(step)
    with pytest.raises(StoreFault) as raised:
        opened().head("a")
    assert (raised.value.kind, raised.value.errno) == (kind, number)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(_refusal(403, "rateLimitExceeded"), id="403-rate"),
        pytest.param(_refusal(429, "rateLimitExceeded"), id="429"),
        pytest.param(_refusal(503, "backendError"), id="503"),
        pytest.param(_refusal(408, "uploadBrokenConnection"), id="408"),
        pytest.param(say(200, b"{}"), id="empty"),
        pytest.param(say(200, b"[]"), id="no-object"),
        pytest.param(say(200, b'{"name": "a", "size": "x"}'), id="no-number"),
    ],
)
def test_what_passes_is_asked_again(server: HttpScript, opened: _Open, step: Step) -> None:
    server.then(step, _resource())
    assert opened().head("a").size == 3
    assert len(server.asked) == 2


def test_a_bucket_that_is_not_there_is_no_missing_object(server: HttpScript, opened: _Open) -> None:
    store = opened()
    server.then(_refusal(404, "notFound", "No such object: bucket/a"))
    store.delete("a")
    server.then(_refusal(404, "notFound", "The specified bucket does not exist."))
    with pytest.raises(StoreFault) as raised:
        store.delete("a")
    assert raised.value.errno == errno.ENOENT


def test_a_listing_never_goes_in_circles(server: HttpScript, opened: _Open) -> None:
    page = json.dumps({"nextPageToken": "t", "items": [_RESOURCE]}).encode()
    server.then(say(200, page), say(200, page))
    store = opened()
    token = store.list_page("").token
    with pytest.raises(StoreFault) as raised:
        store.list_page("", token=token)
    assert raised.value.kind is FaultKind.ANSWER


def test_what_a_death_leaves_of_an_upload_is_swept_away(gcs_server: GcsPlace) -> None:
    source = f"gs://{gcs_server.bucket}/swept"
    store = open_gcs(source, settings_of(source, gcs_server.endpoint), "")
    assert isinstance(store, PrefixedStore)
    inner = store._store
    assert isinstance(inner, GcsStore)
    uploads, client = inner._uploads, inner._client
    lives, dead = store.begin_upload("a"), store.begin_upload("b")
    for upload in (lives, dead):
        store.put_part("a", upload, 1, [b"x"])
    client.delete(uploads.place + dead)
    uploads.sweep()  # it may be ending at this moment
    everything = [info.key for info in uploads._everything(uploads.place)]
    assert len(everything) == 3
    uploads.leftover_s = -60
    uploads.sweep()
    left = [info.key for info in uploads._everything(uploads.place)]
    assert left == [uploads.place + lives, f"{uploads.place}{lives}/p00001"]
    assert store.uploads("") == [("a", lives, store.uploads("")[0][2])]
    store.close()


def test_a_part_that_comes_too_late_does_not_stay(server: HttpScript, opened: _Open) -> None:
    server.then(_resource(), _refusal(404, "notFound"), say(204))
    with pytest.raises(StoreFault) as raised:
        opened().put_part("a", _UPLOAD, 2, [b"x"])
    assert raised.value.kind is FaultKind.MISSING
    assert server.asked[-1].method == "DELETE"
    assert server.asked[-1].target.endswith("p00002")


# Tokens.


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def _account(key: rsa.RSAPrivateKey, url: str) -> str:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    told = {
        "client_email": "me@project",
        "private_key_id": "k1",
        "private_key": pem,
        "token_uri": f"{url}/token",
    }
    return json.dumps({"type": "service_account", **told})


def _token(text: str, life_s: int = 3600) -> Step:
    return say(200, json.dumps({"access_token": text, "expires_in": life_s}).encode())


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_service_account_s_key_gets_a_token_once(
    server: HttpScript, opened: _Open, tmp_path: Path, key: rsa.RSAPrivateKey
) -> None:
    secrets = write_secrets(tmp_path / "s", **{"service_account.json": _account(key, server.url)})
    store = opened(secrets)
    server.then(_token("t1"), _resource(), _resource())
    store.head("a")
    store.head("a")
    assert [one.target.partition("?")[0] for one in server.asked] == [
        "/token",
        *["/storage/v1/b/bucket/o/a"] * 2,
    ]
    assert [one.headers.get("authorization") for one in server.asked[1:]] == ["Bearer t1"] * 2
    grant = parse_qs(server.asked[0].body.decode())
    assert grant["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    header, claims, signature = grant["assertion"][0].split(".")
    assert json.loads(_decoded(header)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    told = json.loads(_decoded(claims))
    assert (told["iss"], told["aud"], told["exp"] - told["iat"]) == (
        "me@project",
        f"{server.url}/token",
        3600,
    )
    key.public_key().verify(_decoded(signature), f"{header}.{claims}".encode(), padding.PKCS1v15(), SHA256())


def test_a_token_that_is_refused_is_exchanged(
    server: HttpScript, tmp_path: Path, key: rsa.RSAPrivateKey
) -> None:
    now = [1000.0]
    secrets = write_secrets(tmp_path / "s", **{"key.json": _account(key, server.url)})
    pool = HttpPool(2)
    files = TokenFiles(
        secrets,
        pool,
        Counts(),
        timeout_s=2,
        retry_timeout_s=2,
        also_at=server.url,
        clock=lambda: now[0],
    )
    server.then(_token("t1"), _token("t2"))
    assert files.current() == "t1"
    assert not files.renew()  # it has come just now: another one is no better
    now[0] += 60
    assert files.renew()
    assert files.current() == "t2"
    pool.close()


def test_the_next_token_is_fetched_before_the_old_one_ends(
    server: HttpScript, tmp_path: Path, key: rsa.RSAPrivateKey
) -> None:
    now = [1000.0]
    secrets = write_secrets(tmp_path / "s", **{"key.json": _account(key, server.url)})
    pool = HttpPool(2)
    files = TokenFiles(
        secrets,
        pool,
        Counts(),
        timeout_s=2,
        retry_timeout_s=2,
        also_at=server.url,
        clock=lambda: now[0],
    )
    server.then(_token("t1"), _token("t2"))
    assert files.current() == "t1"
    now[0] += 3500
    assert files.current() == "t1"  # nobody waits for the other one
    for thread in threading.enumerate():
        if thread.name == "token":
            thread.join(20)
    assert files.current() == "t2"
    assert len(server.asked) == 2
    pool.close()


def test_a_token_in_a_file_is_read_again_when_it_is_refused(
    server: HttpScript, opened: _Open, tmp_path: Path
) -> None:
    secrets = write_secrets(tmp_path / "s", access_token="old\n")
    store = opened(secrets)
    server.then(_resource())
    store.head("a")
    write_secrets(tmp_path / "s", access_token="newer\n")
    server.then(_refusal(401, "authError"), _resource())
    store.head("a")
    assert [one.headers["authorization"] for one in server.asked] == [
        "Bearer old",
        "Bearer old",
        "Bearer newer",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"client_email": "a", "token_uri": "https://x", "private_key": "no key"}',
        "\xff",
    ],
    ids=ascii,
)
def test_a_file_that_is_no_key_is_told_without_its_content(
    server: HttpScript, opened: _Open, tmp_path: Path, text: str
) -> None:
    secrets = write_secrets(tmp_path / "s", **{"service_account.json": text})
    with pytest.raises(StoreFault, match="no key file") as raised:
        opened(secrets).head("a")
    assert (raised.value.kind, raised.value.errno) == (FaultKind.CREDENTIALS, errno.EACCES)
    assert server.asked == []


def test_a_key_does_not_choose_whom_it_is_shown_to(
    server: HttpScript, opened: _Open, tmp_path: Path, key: rsa.RSAPrivateKey
) -> None:
    for url in ("http://127.0.0.2", "https://googleapis.com.example", "http://oauth2.googleapis.com"):
        secrets = write_secrets(tmp_path / "s", **{"key.json": _account(key, url)})
        with pytest.raises(StoreFault, match="token_uri") as raised:
            opened(secrets).head("a")
        assert raised.value.kind is FaultKind.CREDENTIALS


def test_a_token_that_is_not_given_is_told_without_the_answer(
    server: HttpScript, opened: _Open, tmp_path: Path, key: rsa.RSAPrivateKey
) -> None:
    secrets = write_secrets(tmp_path / "s", **{"key.json": _account(key, server.url)})
    server.then(say(400, b'{"error": "invalid_grant", "assertion": "secret"}'))
    with pytest.raises(StoreFault) as raised:
        opened(secrets).head("a")
    assert raised.value.kind is FaultKind.CREDENTIALS
    assert "secret" not in str(raised.value)


def test_the_store_can_be_had_without_the_library_for_keys() -> None:
    text = "import sys; sys.modules['cryptography'] = None; import sidemount.stores.gcs_store"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
    assert GcsStore.abilities.copy_part is False
