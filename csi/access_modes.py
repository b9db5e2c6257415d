"""Access modes, and which further target a volume may have on a node.

Source: https://github.com/container-storage-interface/spec/blob/v1.12.0/spec.md#nodepublishvolume
"""

from enum import Enum


class AccessMode(Enum):
    """A volume capability's access mode, by its number on the wire."""

    SINGLE_NODE_WRITER = 1
    SINGLE_NODE_READER_ONLY = 2
    MULTI_NODE_READER_ONLY = 3
    MULTI_NODE_SINGLE_WRITER = 4
    MULTI_NODE_MULTI_WRITER = 5
    SINGLE_NODE_SINGLE_WRITER = 6
    SINGLE_NODE_MULTI_WRITER = 7

    @property
    def is_read_only(self) -> bool:
        """Tell whether nobody may write, whatever else the call says."""
        return self in (AccessMode.SINGLE_NODE_READER_ONLY, AccessMode.MULTI_NODE_READER_ONLY)

    @property
    def is_exclusive(self) -> bool:
        """Tell whether a node may show the volume at one target only."""
        return self in _EXCLUSIVE


_EXCLUSIVE = frozenset(
    {
        AccessMode.SINGLE_NODE_WRITER,
        AccessMode.SINGLE_NODE_SINGLE_WRITER,
        AccessMode.SINGLE_NODE_READER_ONLY,
    }
)
