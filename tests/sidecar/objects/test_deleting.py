"""Removing many objects one by one: each is tried, unless the store is away."""

import pytest

from sidemount.stores.deleting import delete_each
from sidemount.stores.faults import fault
from sidemount.stores.store import FaultKind, StoreFault


@pytest.mark.parametrize(("kind", "least", "most"), [(FaultKind.DENIED, 100, 100), (FaultKind.TIMEOUT, 1, 8)])
def test_a_store_that_is_away_is_not_asked_for_every_object(kind: FaultKind, least: int, most: int) -> None:
    asked: list[str] = []

    def delete(key: str) -> None:
        asked.append(key)
        raise fault(kind, key)

    with pytest.raises(StoreFault):
        delete_each(delete, map(str, range(100)))
    assert least <= len(asked) <= most
