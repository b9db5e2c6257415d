"""What the log says about nodes: which file a node is, and where its names are.

A node's first link is part of its own record, so that nearly all files, which have one name, need one record; and a renamed
directory is one record, whatever lies beneath it. The last record of a node, and the last of a further link, is what holds.
"""

import struct

NODE = 1
LINK = 2
UNLINK = 3
_NODE_LAYOUT = struct.Struct("=BQQB")
_LINK_LAYOUT = struct.Struct("=BQQ")


def render_node(node: int, identity: int, parent: int, name: bytes) -> bytes:
    """Return the record of a node, its file's identity (up to 255 bytes) and its first link; parent 0: it has none."""
    size = identity.bit_length() + 7 >> 3
    return _NODE_LAYOUT.pack(NODE, node, parent, size) + identity.to_bytes(size, "little") + name


def render_link(node: int, parent: int, name: bytes, *, is_there: bool) -> bytes:
    """Return the record of a further link of a node, or of its end."""
    return _LINK_LAYOUT.pack(LINK if is_there else UNLINK, node, parent) + name


def parse_record(content: bytes) -> tuple[int, int, int, int, bytes]:
    """Return kind, node, identity (0 unless the kind is NODE), parent and name. Raises ValueError.

    A plain tuple, because a successor may have a million of them to read.
    """
    try:
        if content[0] == NODE:
            kind, node, parent, size = _NODE_LAYOUT.unpack_from(content)
            name_at = 18 + size
            return kind, node, int.from_bytes(content[18:name_at], "little"), parent, content[name_at:]
        kind, node, parent = _LINK_LAYOUT.unpack_from(content)
    except (IndexError, struct.error) as error:
        raise ValueError(f"a record that cannot be read: {content[:32].hex()}") from error
    if kind not in (LINK, UNLINK):
        raise ValueError(f"a record of unknown kind {kind}")
    return kind, node, 0, parent, content[17:]
