"""Removing everything beneath a prefix, page by page: whoever is killed is followed by another that begins at what is left."""

from collections.abc import Callable

from csi.volume_tree import Stop, check_going_on
from sidemount.model.errors import HostFailure, NotReady
from sidemount.stores.store import ObjectStore

_UNCHANGED_MAX = 3  # a store may list for a moment what it has just removed
_PASSES_MAX = 50


def empty_prefix(
    store: ObjectStore, prefix: str, stop: Stop, observe: Callable[[str], None] = lambda point: None
) -> None:
    """Remove all objects and unfinished uploads whose keys begin with a prefix.

    Raises StoreFault, NotReady (it shall end, or goes on being written), HostFailure (the store lists what is no part of it).
    """
    _remove_objects(store, prefix, stop, observe)
    if _abort_uploads(store, prefix, stop, observe):
        _remove_objects(store, prefix, stop, observe)  # one of them may just have ended


def _abort_uploads(store: ObjectStore, prefix: str, stop: Stop, observe: Callable[[str], None]) -> int:
    count = 0
    for key, upload, _ in store.uploads(prefix) if store.abilities.uploads else ():
        _check_beneath(key, prefix)
        check_going_on(stop)
        observe("before abort")
        store.abort(key, upload)
        count += 1
    return count


def _remove_objects(store: ObjectStore, prefix: str, stop: Stop, observe: Callable[[str], None]) -> None:
    """Go through the prefix until nothing is found from its beginning to its end."""
    unchanged, before = 0, ""
    for _ in range(_PASSES_MAX):
        first = _remove_pages(store, prefix, stop, observe)
        if not first:
            return
        unchanged = unchanged + 1 if first == before else 0
        if unchanged >= _UNCHANGED_MAX:
            raise NotReady(
                f"the store keeps {first!r}, and says that it was removed",
                hint="see whether something holds it, or writes it again",
            )
        before = first
    raise NotReady(f"{prefix!r} is written to all the time", hint="unmount the volume")


def _remove_pages(store: ObjectStore, prefix: str, stop: Stop, observe: Callable[[str], None]) -> str:
    """Remove what one listing finds, and return the first of it. A page may be empty and not the last."""
    first, token = "", ""
    while True:
        check_going_on(stop)
        page = store.list_page(prefix, delimiter=False, token=token)
        keys = [info.key for info in page.objects]
        for key in keys:
            _check_beneath(key, prefix)
        if keys:
            first = first or keys[0]
            observe("before delete")
            store.delete_many(keys)
            observe("after delete")
        token = page.token
        if not token:
            return first


def _check_beneath(key: str, prefix: str) -> None:
    if not key.startswith(prefix):
        raise HostFailure(f"the store lists {key!r} beneath {prefix!r}: nothing is removed")
