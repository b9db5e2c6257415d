"""What the controller needs of a store of volumes. Every method may wait for the store, and is called in a thread."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from csi.hidden_texts import HiddenTexts
from csi.provision_plan import VolumePlan
from csi.provision_request import CapacityRange, SnapshotRequest
from csi.volume_copy import Progress
from csi.volume_state import Kind, SnapshotState, VolumeState


class VolumeStore(Protocol):
    """One pool. What is made or removed is so as a whole: no crash leaves half of it to be seen.

    Everything raises VolumeError: OperationPending while another controller works on the same thing, NoRoom, NotReady if the
    store does not answer, PoolClosed if nobody can look into it now.
    """

    @property
    def name(self) -> str:
        """Return what names the pool in a volume's source: an absolute path, or the URI of a prefix in a bucket."""
        ...

    @property
    def has_copies(self) -> bool:
        """Tell whether it can cut snapshots, restore and clone."""
        ...

    def bound(self, secrets: HiddenTexts) -> "VolumeStore":
        """Return the same pool, asked with the credentials of a call, if it needs any."""
        ...

    @property
    def progress(self) -> Progress:
        """Return what was copied into it, as it grows. Returns at once."""
        ...

    def volume(self, id_: str) -> VolumeState | None:
        """Return a volume, None if it has none of that id."""
        ...

    def named(self, name_id: str) -> VolumeState | None:
        """Return the volume that was made for a name (`volume_ids.id_of_name`), None if it has none."""
        ...

    def snapshot(self, id_: str) -> SnapshotState | None:
        """Return a snapshot, None if it has none of that id."""
        ...

    def ids(self, kind: Kind) -> Sequence[str]:
        """Return what tells apart what may be there, in no order: ids, or names where an id is known from its record alone."""
        ...

    def states(self, kind: Kind, ids: Sequence[str]) -> "Mapping[str, VolumeState | SnapshotState]":
        """Return what is there of what `ids` has told. What cannot be read is left out, and the log tells."""
        ...

    def make_volume(self, plan: VolumePlan) -> VolumeState:
        """Make a volume, or return the one of that id. NotFound: what it is made from is gone; BeyondRange: it has no room for it."""
        ...

    def make_snapshot(self, request: SnapshotRequest) -> SnapshotState:
        """Cut a volume of this pool, or return the snapshot of that id. NotFound, WrongState."""
        ...

    def remove(self, kind: Kind, id_: str) -> bool:
        """Take away what has that id, and what is unfinished of it; it is invisible then. False if there was nothing.

        WrongState if it is mounted, or something is in it.
        """
        ...

    def expand(self, id_: str, capacity: CapacityRange) -> VolumeState:
        """Raise what a volume may hold, never lower it. NotFound, BeyondRange. Idempotent."""
        ...

    def available_bytes(self) -> int:
        """Return how much room is left."""
        ...

    def size_bytes(self) -> int:
        """Return how much room there is in all."""
        ...

    def unfinished(self) -> Sequence[str]:
        """Return the names of things on their way in or out: what was deleted, what somebody makes or has left half made."""
        ...

    def settle(self, name: str) -> None:
        """Bring an unfinished thing to its end, unless another controller works on it. What cannot be made is removed."""
        ...

    def stop(self) -> None:
        """Have everything that takes long end soon: it goes on where it was when it is asked for again."""
        ...
