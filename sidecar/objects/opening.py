"""Opening the store of a source: which implementation, with which settings, at which prefix."""

import os
import ssl
from collections.abc import Callable, Mapping

from sidecar.objects.credentials import KeyFiles
from sidecar.objects.faults import fault
from sidecar.objects.http_pool import HttpPool
from sidecar.objects.memory_store import MemoryStore
from sidecar.objects.prefixed_store import PrefixedStore
from sidecar.objects.retries import Calls
from sidecar.objects.s3_bucket import S3Bucket
from sidecar.objects.s3_client import S3Client
from sidecar.objects.s3_store import S3Store
from sidecar.objects.settings import ObjectsSettings
from sidecar.objects.store import FaultKind, ObjectStore

CA_FILE = "ca.crt"


def open_store(source: str, settings: ObjectsSettings, secrets: str) -> ObjectStore:
    """Return the store that a source names, its keys relative to the source's prefix. Asks the store nothing.

    `secrets` is the directory with credentials and, if the store's certificate needs one, `ca.crt`; "" if there is none.
    Raises StoreFault (REQUEST) for a source that is none.
    """
    scheme, separator, rest = source.partition("://")
    opener = _OPENERS.get(scheme)
    if not separator or opener is None:
        raise fault(
            FaultKind.REQUEST, f"{source!r} is no source of a known scheme: {', '.join(sorted(_OPENERS))}"
        )
    return opener(rest, settings, secrets)


def split(rest: str) -> tuple[str, str]:
    """Return the bucket and the prefix, "" or ending with "/", of what follows a scheme."""
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def tls_context(secrets: str) -> Callable[[], ssl.SSLContext]:
    """Return what makes the trust of a store: the system's, and the CA in the secrets directory if there is one."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context()
        path = os.path.join(secrets, CA_FILE)
        if secrets and os.path.exists(path):
            context.load_verify_locations(path)
        return context

    return make


def open_s3(rest: str, settings: ObjectsSettings, secrets: str) -> ObjectStore:
    """Return the store of `s3://bucket/prefix`."""
    name, prefix = split(rest)
    if not name:
        raise fault(FaultKind.REQUEST, "s3:// names no bucket")
    bucket = S3Bucket(
        name,
        KeyFiles(secrets),
        endpoint=settings.endpoint,
        region=settings.region,
        path_style=settings.path_style,
    )
    pool = HttpPool(settings.connections, tls=tls_context(secrets))
    calls = Calls(
        pool,
        bucket,
        timeout_s=settings.request_timeout_s,
        retry_timeout_s=settings.retry_timeout_s,
    )
    client = S3Client(bucket, calls, root=prefix, long_timeout_s=settings.retry_timeout_s)
    return prefixed(S3Store(client), prefix)


def prefixed(store: ObjectStore, prefix: str) -> ObjectStore:
    """Return the part of a store beneath a prefix."""
    return PrefixedStore(store, prefix) if prefix else store


_memories: dict[str, MemoryStore] = {}


def open_memory(rest: str, settings: ObjectsSettings, secrets: str) -> ObjectStore:
    """Return the store of `memory://name/prefix`: one for each name in this process."""
    name, prefix = split(rest)
    return prefixed(_memories.setdefault(name, MemoryStore()), prefix)


_OPENERS: Mapping[str, Callable[[str, ObjectsSettings, str], ObjectStore]] = {
    "memory": open_memory,
    "s3": open_s3,
}
