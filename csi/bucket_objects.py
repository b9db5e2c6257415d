"""Small objects of the controller's own."""

from dataclasses import dataclass

from sidemount.model.errors import BadMessage
from sidemount.stores.store import FaultKind, ObjectStore, StoreFault

_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Small:
    """What an object says, and which version of it."""

    text: str
    etag: str


def read_object(store: ObjectStore, key: str, known: Small | None = None) -> Small | None:
    """Return an object, None if there is none; `known` itself if it is that version still. Raises StoreFault, BadMessage."""
    buffer = memoryview(bytearray(_MAX_BYTES + 1))
    try:
        info, size = store.get(key, 0, buffer, unless="" if known is None else known.etag)
    except StoreFault as fault:
        if fault.kind is FaultKind.MISSING:
            return None
        raise
    if info is None:
        return known
    if size > _MAX_BYTES:
        raise BadMessage(f"{key} is longer than anything of ours")
    try:
        return Small(bytes(buffer[:size]).decode("utf-8"), info.etag)
    except UnicodeDecodeError as error:
        raise BadMessage(f"{key} is no text of ours") from error
