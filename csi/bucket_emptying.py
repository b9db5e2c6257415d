"""Removing everything beneath a prefix, page by page: whoever is killed is followed by another that begins at what is left."""

from collections.abc import Callable

from csi.volume_tree import Stop, check_going_on
from sidemount.model.errors import HostFailure, NotReady
from sidemount.stores.store import ObjectStore

_UNCHANGED_MAX = 3  # a store may list for a moment what it has just removed


def empty_prefix(
    store: ObjectStore, prefix: str, stop: Stop, observe: Callable[[str], None] = lambda point: None
) -> int:
    """Remove all objects and unfinished uploads whose keys begin with a prefix; return how many objects there were.

    Raises StoreFault, NotReady (it shall end, or goes on being written), HostFailure (the store lists what is no part of it).
    """
    removed = _remove_objects(store, prefix, stop, observe)
    if _abort_uploads(store, prefix, stop, observe):
        removed += _remove_objects(store, prefix, stop, observe)  # one of them may just have ended
    return removed


def _abort_uploads(store: ObjectStore, prefix: str, stop: Stop, observe: Callable[[str], None]) -> int:
    count = 0
    for key, upload, _ in store.uploads(prefix) if store.abilities.uploads else ():
        _check_beneath(key, prefix)
        check_going_on(stop)
        observe("before abort")
        store.abort(key, upload)
        count += 1
    return count


def _remove_objects(store: ObjectStore, prefix: str, stop: Stop, observe: Callable[[str], None]) -> int:
    removed, unchanged, before = 0, 0, [""]
    while True:
        check_going_on(stop)
        # Always from the beginning: the page before is not there any more.
        keys = [info.key for info in store.list_page(prefix, delimiter=False).objects]
        if not keys:
            return removed
        for key in keys:
            _check_beneath(key, prefix)
        unchanged = unchanged + 1 if keys == before else 0
        if unchanged >= _UNCHANGED_MAX:
            raise NotReady(
                f"the store keeps {keys[0]!r} and says that it was removed",
                hint="see whether something holds it, or writes it again",
            )
        observe("before delete")
        store.delete_many(keys)
        observe("after delete")
        removed += len(keys)
        before = keys


def _check_beneath(key: str, prefix: str) -> None:
    if not key.startswith(prefix):
        raise HostFailure(f"the store lists {key!r} beneath {prefix!r}: nothing is removed")
