"""What the drafts of a volume share: its bounds."""

import errno
from pathlib import Path

import pytest

from sidecar.objects.draft_workshop import Workshop
from sidecar.objects.settings import ObjectsSettings
from sidemount.stores.retries import Refusal, Refused
from sidemount.stores.store import FaultKind, StoreFault
from tests.sidecar.objects.draft_places import PART, MuchStore, make_drafts


def test_memory_for_parts_is_bounded_whatever_their_size() -> None:
    settings = ObjectsSettings(source="memory://x", part_bytes=1 << 30)
    shop = Workshop(MuchStore(), settings, leftovers=None)  # type: ignore[arg-type]  # nothing is uploaded
    with shop.buffer(2 << 20) as buffer:
        assert len(buffer) == 2 << 20
        assert memoryview(buffer.obj).nbytes == shop.largest_buffer == 32 << 20


@pytest.mark.parametrize("size", [1, 2 * PART])
def test_fault_of_a_store_that_is_asked_over_http_is_told(tmp_path: Path, size: int) -> None:
    store = MuchStore()
    draft = make_drafts(store, tmp_path).create(7, "a", exclusive=False)
    draft.write(0, bytes(size))
    for name in ("put", "put_part"):
        store.faults[name] = [Refused(Refusal(FaultKind.DENIED, ""), "denied", lost=False)] * 9
    with pytest.raises(StoreFault) as raised:
        draft.commit()
    assert raised.value.errno == errno.EACCES
    assert isinstance(draft.fault, StoreFault)
    assert draft.fault.kind is FaultKind.DENIED
