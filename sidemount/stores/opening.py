"""Opening the store of a source: which implementation, with which settings, at which prefix."""

import importlib
import os
import re
import ssl
from collections.abc import Callable, Mapping

from sidemount.stores.credentials_web_identity import RoleKeys
from sidemount.stores.faults import Counts, fault
from sidemount.stores.http_pool import HttpPool
from sidemount.stores.http_proxies import proxy_of
from sidemount.stores.local_store import LocalStore
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.prefixed_store import PrefixedStore
from sidemount.stores.retries import Calls
from sidemount.stores.s3_bucket import DEFAULT_REGION, S3Bucket, aws_endpoint
from sidemount.stores.s3_client import S3Client
from sidemount.stores.s3_store import S3Store
from sidemount.stores.settings import StoreSettings
from sidemount.stores.store import FaultKind, ObjectStore

CA_FILE = "ca.crt"
_PASSWORD = re.compile(r"//[^/]*@")


Opener = Callable[[str, StoreSettings, str], ObjectStore]


def open_store(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
    """Return the store that a source names, its keys relative to the source's prefix. Asks the store nothing.

    `secrets` is the directory with credentials and, if the store's certificate needs one, `ca.crt`; "" if there is none.
    Raises StoreFault (REQUEST) for a source or an endpoint that is none.
    """
    scheme, separator, _ = source.partition("://")
    # Whoever writes a password into a URL does not find it again in a log.
    shown = _PASSWORD.sub("//***@", source)
    place = _OPENERS.get(scheme)
    if not separator or place is None:
        raise fault(FaultKind.REQUEST, f"{shown!r} has no scheme of {', '.join(sorted(_OPENERS))}")
    opener = place if callable(place) else _imported(place)
    try:
        return opener(source, settings, secrets)
    except ValueError as error:
        raise fault(FaultKind.REQUEST, f"{shown!r}: {error}") from error


def split(source: str) -> tuple[str, str]:
    """Return the bucket of a source and the prefix, "" or ending with "/". ValueError if there is no bucket."""
    bucket, _, prefix = source.partition("://")[2].partition("/")
    if not bucket:
        raise ValueError("it names no bucket")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def prefixed(store: ObjectStore, prefix: str) -> ObjectStore:
    """Return the part of a store beneath a prefix."""
    return PrefixedStore(store, prefix) if prefix else store


def http_pool(settings: StoreSettings, secrets: str) -> HttpPool:
    """Return connections as the settings bound them, with the trust and the proxies of this process."""
    return HttpPool(
        settings.connections,
        tls=tls_context(secrets),
        proxy_of=lambda endpoint: proxy_of(endpoint, os.environ),
    )


def tls_context(secrets: str) -> Callable[[], ssl.SSLContext]:
    """Return what makes the trust of a store: the system's, and the CA in the secrets directory if there is one."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context()
        path = os.path.join(secrets, CA_FILE)
        if secrets and os.path.exists(path):
            context.load_verify_locations(path)
        return context

    return make


def _open_s3(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
    name, prefix = split(source)
    pool = http_pool(settings, secrets)
    counts = Counts()
    keys = RoleKeys(
        secrets,
        pool,
        settings.endpoint or aws_endpoint("sts", settings.region or DEFAULT_REGION),
        counts,
        timeout_s=settings.request_timeout_s,
        retry_timeout_s=settings.retry_timeout_s,
    )
    bucket = S3Bucket(
        name,
        keys,
        endpoint=settings.endpoint,
        region=settings.region,
        path_style=settings.path_style,
    )
    calls = Calls(
        pool,
        bucket,
        timeout_s=settings.request_timeout_s,
        retry_timeout_s=settings.retry_timeout_s,
        counts=counts,
    )
    client = S3Client(
        bucket,
        calls,
        root=prefix,
        long_timeout_s=settings.long_timeout_s,
    )
    return prefixed(S3Store(client), prefix)


_memories: dict[str, MemoryStore] = {}


def _open_memory(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
    """One for each name in this process."""
    name, prefix = split(source)
    return prefixed(_memories.setdefault(name, MemoryStore()), prefix)


def _open_local(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
    path = source.partition("://")[2]
    if not path.startswith("/"):
        raise ValueError("file:// is followed by an absolute path")
    return LocalStore(path)


def _imported(place: str) -> Opener:
    module, _, name = place.partition(":")
    opener: Opener = getattr(importlib.import_module(module), name)
    return opener


# What a process does not use is not imported: a mount costs its memory.
_OPENERS: Mapping[str, Opener | str] = {
    "az": "sidemount.stores.azure_store:open_azure",
    "file": _open_local,
    "gs": "sidemount.stores.gcs_store:open_gcs",
    "http": "sidemount.stores.web_store:open_web",
    "https": "sidemount.stores.web_store:open_web",
    "memory": _open_memory,
    "s3": _open_s3,
}
