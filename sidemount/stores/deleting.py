"""Removing many objects of a store that takes them one by one."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from sidemount.stores.faults import RETRIED
from sidemount.stores.store import StoreFault

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
