"""What the drafts of a volume share: its bounds."""

from sidecar.objects.draft_workshop import Workshop
from sidecar.objects.settings import ObjectsSettings
from tests.sidecar.objects.draft_places import MuchStore


def test_memory_for_parts_is_bounded_whatever_their_size() -> None:
    settings = ObjectsSettings(source="memory://x", part_bytes=1 << 30)
    shop = Workshop(MuchStore(), settings, leftovers=None)  # type: ignore[arg-type]  # nothing is uploaded
    with shop.buffer(2 << 20) as buffer:
        assert len(buffer) == 2 << 20
        assert memoryview(buffer.obj).nbytes == shop.largest_buffer == 32 << 20
