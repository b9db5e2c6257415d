"""The kinds of stores that tests run over: how each is opened, and in what its server is not as the port says."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.servers.azurite import AzurePlace
from e2e.servers.fake_gcs import GcsPlace
from e2e.servers.s3_place import S3Place
from e2e.servers.versity import Versity
from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.opening import open_store
from sidemount.stores.store import ObjectStore

KINDS = ("memory", "local", "seaweedfs", "versity", "gcs", "azure")
_WAIT_S = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind. `open` opens a part of the store that is this test's alone; each call gives another instance of it.

    `prefix_bytes`: what the store puts before keys. `ignores`: conditions that the server does not know, though the real store does.
    """

    name: str
    open: Callable[[], ObjectStore]
    prefix_bytes: int = 0
    ignores: frozenset[str] = frozenset()


def write_secrets(directory: Path, **files: str) -> str:
    """Make a directory with these files and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(content)
    return str(directory)


def s3_secrets(directory: Path, place: S3Place) -> str:
    """Return a directory with the keys of a server."""
    return write_secrets(directory, access_key_id=place.access_key, secret_access_key=place.secret_key)


def settings_of(source: str, endpoint: str, retry_timeout_s: int = _WAIT_S) -> ObjectsSettings:
    """Return settings for a server of tests."""
    return ObjectsSettings(
        source=source, endpoint=endpoint, request_timeout_s=_WAIT_S, retry_timeout_s=retry_timeout_s
    )


def kind_of(name: str, request: pytest.FixtureRequest, directory: Path) -> Kind:
    """Return a kind, its server running. `directory` is the test's own."""
    prefix = f"{secrets.token_hex(6)}/"
    held = directory / "secrets"
    endpoint = ""
    match name:
        case "memory":
            store = MemoryStore()
            return Kind(name=name, open=lambda: store)
        case "local":
            (directory / "store").mkdir()
            return _kind(name, f"file://{directory}/store", "", "", "")
        case "seaweedfs":
            s3: S3Place = request.getfixturevalue("seaweedfs_server")
            return _kind(name, f"s3://{s3.bucket}/", prefix, s3.endpoint, s3_secrets(held, s3))
        case "versity":
            versity: Versity = request.getfixturevalue("versity_server")
            source = f"s3://{versity.place.bucket}/"
            return _kind(name, source, prefix, versity.place.endpoint, s3_secrets(held, versity.place))
        case "gcs":
            gcs: GcsPlace = request.getfixturevalue("gcs_server")
            return _kind(
                name,
                f"gs://{gcs.bucket}/",
                prefix,
                gcs.endpoint,
                "",
                frozenset({"copy", "complete", "delete"}),
            )
        case _:
            azure: AzurePlace = request.getfixturevalue("azure_server")
            endpoint = azure.endpoint
            kept = write_secrets(held, account_name=azure.account, account_key=azure.account_key)
            return _kind(name, f"az://{azure.container}/", prefix, endpoint, kept)


def _kind(
    name: str,
    source: str,
    prefix: str,
    endpoint: str,
    held: str,
    ignores: frozenset[str] = frozenset(),
) -> Kind:
    whole = source + prefix
    settings = settings_of(whole, endpoint)
    return Kind(
        name=name,
        open=lambda: open_store(whole, settings, held),
        prefix_bytes=len(prefix),
        ignores=ignores,
    )
