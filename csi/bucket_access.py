"""Opening a pool's bucket: where it is by the classes that provision from it, with whose credentials by the call, else by the node's files."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from csi.call_secrets import secrets_directory
from csi.faults import PoolClosed
from csi.hidden_texts import HiddenTexts
from csi.pool_sources import source_in
from csi.provision_plan import PLACE_OPTIONS
from sidemount.model.driver_class import DriverClass
from sidemount.model.facts import Facts
from sidemount.stores.opening import open_store
from sidemount.stores.settings import StoreSettings
from sidemount.stores.store import ObjectStore

_CONNECTIONS = 16
_REQUEST_S = 10
_LONG_S = 30.0
_SHARE_FOR_RETRIES = 0.5  # of the time a pool has to answer, so that the caller hears why it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """Source of the interface: `sidemount.stores.settings.StoreSettings`."""

    region: str = ""
    endpoint: str = ""
    path_style: bool = True
    connections: int = _CONNECTIONS
    request_timeout_s: int = _REQUEST_S
    retry_timeout_s: int = 1
    long_timeout_s: float = _LONG_S


class BucketAccess:
    """Of one pool. Safe in several threads."""

    def __init__(
        self,
        pool: str,
        facts: Callable[[], Facts],
        secrets_dir: str = "",
        answer_s: float = 5.0,
        opening: Callable[[str, StoreSettings, str], ObjectStore] = open_store,
    ) -> None:
        """`secrets_dir` has a directory for each class. `answer_s`: how long the bucket may take to answer."""
        self._opening = opening
        self._pool = pool
        self._facts = facts
        self._secrets_dir = secrets_dir
        self._retry_s = max(1, int(answer_s * _SHARE_FOR_RETRIES))
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, BucketSettings], ObjectStore] = {}
        self._open: set[ObjectStore] = set()

    @contextlib.contextmanager
    def opened(self, secrets: HiddenTexts) -> Iterator[ObjectStore]:
        """Give the store of the pool, its keys relative to the pool's prefix. Raises PoolClosed, StoreFault."""
        classes = self._classes()
        settings = self._settings(classes)
        keys = {key for each in classes for key in each.credentials.secret_keys}
        own = HiddenTexts({key: value for key, value in secrets.items() if key in keys})
        if not own:
            yield self._keep(self._directory(classes), settings)
            return
        with secrets_directory(own) as directory:
            store = self._opening(self._pool, settings, directory)
            with self._lock:
                self._open.add(store)
            try:
                yield store
            finally:
                with self._lock:
                    self._open.discard(store)
                store.close()

    def close(self) -> None:
        """End what is under way soon."""
        with self._lock:
            stores = [*self._kept.values(), *self._open]
        for store in stores:
            store.close()

    def _keep(self, directory: str, settings: BucketSettings) -> ObjectStore:
        """Return the store that is kept for all calls. Another one takes its place when its class changes."""
        with self._lock:
            store = self._kept.get((directory, settings))
            if store is None:
                for old in self._kept.values():
                    old.close()
                self._kept = {(directory, settings): self._opening(self._pool, settings, directory)}
                store = self._kept[directory, settings]
            return store

    def _classes(self) -> list[DriverClass]:
        found = [
            each
            for _, each in sorted(self._facts().driver_classes().items())
            if each.provisions and source_in(each, self._pool)
        ]
        if not found:
            raise PoolClosed(
                f"pool {self._pool}: no driver class provisions from it",
                hint="have an admin make a FuseDriverClass with provisions: true whose sources hold the pool",
            )
        return found

    def _settings(self, classes: list[DriverClass]) -> BucketSettings:
        region, endpoint, path_style = self._place(classes[0])
        for other in classes[1:]:
            if self._place(other) != (region, endpoint, path_style):
                raise PoolClosed(
                    f"pool {self._pool}: classes {classes[0].name} and {other.name} say that it is in different places",
                    hint=f"give both the same defaults of {', '.join(PLACE_OPTIONS)}",
                )
        return BucketSettings(
            region=region, endpoint=endpoint, path_style=path_style, retry_timeout_s=self._retry_s
        )

    @staticmethod
    def _place(driver_class: DriverClass) -> tuple[str, str, bool]:
        defaults = {
            name: driver_class.options[name].default for name in PLACE_OPTIONS if name in driver_class.options
        }
        path_style = defaults.get("pathStyle")
        return (
            str(defaults.get("region") or ""),
            str(defaults.get("endpoint") or "").rstrip("/"),
            True if path_style is None else bool(path_style),
        )

    def _directory(self, classes: list[DriverClass]) -> str:
        """Return where credentials lie for calls that bring none, "" to ask anonymously. Raises PoolClosed."""
        reading = [each for each in classes if each.credentials.secret_keys]
        for each in reading if self._secrets_dir else ():
            directory = f"{self._secrets_dir}/{each.name}"
            if os.path.isdir(directory):
                return directory
        if len(reading) < len(classes) or not all(each.credentials.required for each in reading):
            return ""
        names = ", ".join(each.name for each in reading)
        raise PoolClosed(
            f"pool {self._pool}: there are no credentials for it, neither in the call nor on the controller",
            hint="name a Secret in the StorageClass (csi.storage.k8s.io/provisioner-secret-name), or put a directory "
            f"{names} into --secrets-dir",
        )
