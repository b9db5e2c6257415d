"""Removing objects: many of a store that takes them one by one, and one version that may be gone already."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from sidemount.stores.faults import RETRIED
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault

_AT_ONCE = 8


def delete_each(delete: Callable[[str], None], keys: Iterable[str]) -> None:
    """Remove objects, some at a time, and raise the first fault at the end. Goes on after one that cannot be removed.

    Not when the store is away: each of them would take all the time there is for retries.
    """
    is_away = threading.Event()

    def one(key: str) -> None:
        if is_away.is_set():
            return
        try:
            delete(key)
        except StoreFault as fault:
            if fault.kind in RETRIED:
                is_away.set()
            raise

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="delete") as pool:
        faults = [done.exception() for done in [pool.submit(one, key) for key in keys]]
    for fault in faults:
        if fault is not None:
            raise fault


def is_missing(store: ObjectStore, key: str) -> bool:
    """Tell whether there is no such object: a condition on its version fails then, too. Raises StoreFault."""
    try:
        store.head(key)
    except StoreFault as fault:
        if fault.kind is FaultKind.MISSING:
            return True
        raise
    return False
