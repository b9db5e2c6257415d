"""A pool in a bucket for one process: its classes, and a store that a test lets die, wait or refuse at any of its calls."""

import itertools
from collections.abc import Callable
from typing import Any

from csi.bucket_access import BucketAccess
from csi.bucket_identity import BucketIdentity
from csi.bucket_pool import BucketPool
from csi.provision_plan import VolumePlan, plan_volume
from csi.provision_request import CapacityRange, CreateRequest
from csi.volume_ids import id_of_name
from csi.volume_state import Content
from sidemount.model.driver_class import Credentials, DriverClass
from sidemount.model.errors import VolumeError
from sidemount.model.facts import Facts
from sidemount.model.options import OptionRule, OptionType
from sidemount.model.selector import LabelSelector
from sidemount.model.volume_request import Delivery
from sidemount.stores.memory_store import MemoryStore
from sidemount.stores.opening import prefixed, split
from sidemount.stores.settings import StoreSettings
from sidemount.stores.store import ObjectStore
from tests.model.known_facts import KnownFacts

POOL = "memory://bucket/pool"
_TAKING_PARTS = (
    "list_page",
    "get",
    "head",
    "put",
    "delete",
    "delete_version",
    "delete_many",
    "uploads",
    "abort",
)


def bucket_class(name: str = "pooled", source: str = POOL, **given: Any) -> DriverClass:
    """Return a class that provisions from a bucket."""
    values: dict[str, Any] = {
        "deliveries": (Delivery.CSI,),
        "sources": (source,),
        "namespaces": LabelSelector(),
        "filesystem": "objects",
        "provisions": True,
        "options": {
            "endpoint": OptionRule(type=OptionType.STRING, default="http://store"),
            "fileMode": OptionRule(type=OptionType.STRING),
        },
        **given,
    }
    return DriverClass(name=name, **values)


def with_keys(name: str = "pooled", *, required: bool = True, **given: Any) -> DriverClass:
    """Return such a class that reads credentials."""
    keys = ("access_key_id", "secret_access_key")
    return bucket_class(name, credentials=Credentials(secret_keys=keys, required=required), **given)


def facts_of(*classes: DriverClass) -> Facts:
    """Return facts with these classes."""
    return KnownFacts(classes={each.name: each for each in classes or (bucket_class(),)})


class Died(BaseException):
    """The process is no more."""


class Calls:
    """Every call of a store, before and after it is carried out."""

    def __init__(self, store: ObjectStore, hear: Callable[[int, str], None]) -> None:
        self._store = store
        self._hear = hear
        self._numbers = itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _TAKING_PARTS:
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._hear(next(self._numbers), name)
            answer = found(*given, **named)
            self._hear(next(self._numbers), name)
            return answer

        return call


class Bucket:
    """A bucket, and as many controllers on it as are asked for."""

    def __init__(self, *classes: DriverClass, source: str = POOL) -> None:
        self.store = MemoryStore()
        self.source = source
        self.facts = facts_of(*classes)
        self.opened: list[tuple[str, StoreSettings, str]] = []

    def pool(
        self,
        hear: Callable[[int, str], None] = lambda number, name: None,
        secrets_dir: str = "",
        **identity: Any,
    ) -> BucketPool:
        """Return the pool as one controller has it; `hear` may raise at any call of the store."""
        store = prefixed(self.store, split(self.source)[1])
        calls: Any = Calls(store, hear)

        def opening(source: str, settings: StoreSettings, secrets: str) -> ObjectStore:
            self.opened.append((source, settings, secrets))
            opened: ObjectStore = calls
            return opened

        access = BucketAccess(self.source, lambda: self.facts, secrets_dir, opening=opening)
        return BucketPool(self.source, access, BucketIdentity(self.source, **identity))

    def plan(self, name: str, size: int = 0, content: Content | None = None, **parameters: str) -> VolumePlan:
        """Return what a CreateVolume comes to."""
        return plan_volume(request_of(name, size, content, **parameters), self.facts, [self.source])

    def put(self, key: str) -> None:
        """Put an object into the bucket."""
        self.store.put(key, [b"x"])

    def held(self) -> list[str]:
        """Return every key of the bucket but the pool's id."""
        listed = self.store.list_page("", delimiter=False, most=1_000_000).objects
        return sorted(info.key for info in listed if not info.key.endswith("/.sidemount/pool"))


def plan_for(name: str, size: int = 0) -> VolumePlan:
    """Return what a CreateVolume in `POOL` comes to."""
    return plan_volume(request_of(name, size), facts_of(), [POOL])


def request_of(name: str, size: int = 0, content: Content | None = None, **parameters: str) -> CreateRequest:
    """Return a request for a volume."""
    return CreateRequest(
        id=id_of_name(name),
        name=name,
        capacity=CapacityRange(required_bytes=size),
        parameters=parameters,
        flags=(),
        content=content,
    )


def code_of(call: Callable[[], object]) -> str:
    """Return the name of the gRPC code that a call comes to, "" if it succeeds."""
    from csi.boundary import code_of as code

    try:
        call()
    except VolumeError as error:
        return str(code(error).name)
    return ""
