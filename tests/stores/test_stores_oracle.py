"""A second opinion: obstore reads what we have written, and we what it has, over one server of each protocol."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from e2e.servers.azurite import AzurePlace
from e2e.servers.fake_gcs import GcsPlace
from e2e.servers.s3_place import S3Place
from sidemount.stores.opening import open_store
from sidemount.stores.store import ObjectStore
from tests.stores.kinds import s3_secrets, settings_of, write_secrets

pytestmark = pytest.mark.timeout(120, func_only=True)

_CONTENT = random.Random(5).randbytes((5 << 20) + 4321)

Oracle = S3Store | GCSStore | AzureStore


def _s3(request: pytest.FixtureRequest, directory: Path) -> tuple[Oracle, str, str, str]:
    place: S3Place = request.getfixturevalue("seaweedfs_server")
    oracle = S3Store(
        place.bucket,
        endpoint=place.endpoint,
        access_key_id=place.access_key,
        secret_access_key=place.secret_key,
        region=place.region,
        client_options={"allow_http": True},
    )
    return oracle, f"s3://{place.bucket}", place.endpoint, s3_secrets(directory, place)


def _gcs(request: pytest.FixtureRequest, directory: Path) -> tuple[Oracle, str, str, str]:
    place: GcsPlace = request.getfixturevalue("gcs_server")
    emulated = {"gcs_base_url": place.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
    key = json.dumps({**emulated, "private_key_id": ""})
    oracle = GCSStore(place.bucket, service_account_key=key, client_options={"allow_http": True})
    return oracle, f"gs://{place.bucket}", place.endpoint, ""


def _azure(request: pytest.FixtureRequest, directory: Path) -> tuple[Oracle, str, str, str]:
    place: AzurePlace = request.getfixturevalue("azure_server")
    oracle = AzureStore(
        place.container,
        account_name=place.account,
        account_key=place.account_key,
        endpoint=place.endpoint,
        client_options={"allow_http": True},
    )
    held = write_secrets(directory, account_name=place.account, account_key=place.account_key)
    return oracle, f"az://{place.container}", place.endpoint, held


Place = Callable[[pytest.FixtureRequest, Path], tuple[Oracle, str, str, str]]


@pytest.mark.parametrize("place", [_s3, _gcs, _azure], ids=["s3", "gcs", "azure"])
def test_both_see_the_same(request: pytest.FixtureRequest, tmp_path: Path, place: Place) -> None:
    oracle, source, endpoint, held = place(request, tmp_path / "secrets")
    store = open_store(f"{source}/oracle", settings_of(source, endpoint), held)
    store.put("put + ü%", [_CONTENT[:1000], _CONTENT[1000:]])
    upload = store.begin_upload("parts")
    parts = [store.put_part("parts", upload, 1, [_CONTENT]), store.put_part("parts", upload, 2, [b"end"])]
    store.complete("parts", upload, parts)
    assert bytes(obstore.get(oracle, "oracle/put + ü%").bytes()) == _CONTENT
    assert bytes(obstore.get(oracle, "oracle/parts").bytes()) == _CONTENT + b"end"
    if not isinstance(oracle, GCSStore):  # fake-gcs-server does not speak what obstore writes and lists with
        _see_theirs(store, oracle)
    store.close()


def _see_theirs(store: ObjectStore, oracle: Oracle) -> None:
    obstore.put(oracle, "oracle/theirs ~&", _CONTENT, use_multipart=False)
    info = store.head("theirs ~&")
    buffer = bytearray(len(_CONTENT))
    assert store.get("theirs ~&", 0, memoryview(buffer), etag=info.etag) == (info, len(_CONTENT))
    assert buffer == _CONTENT
    theirs = {one["path"]: one["size"] for page in obstore.list(oracle, "oracle") for one in page}
    ours = {f"oracle/{one.key}": one.size for one in store.list_page("", delimiter=False).objects}
    assert ours == theirs
    assert set(ours) == {"oracle/put + ü%", "oracle/parts", "oracle/theirs ~&"}
    obstore.delete(oracle, ["oracle/parts"])
    assert {one.key for one in store.list_page("").objects} == {"put + ü%", "theirs ~&"}
