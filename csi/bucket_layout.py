"""What a pool in a bucket is made of: the keys in it, of which this is the only place. Pure.

    volumes/<id>/…                    a volume's objects: all that an application sees
    .sidemount/volumes/<name>.json    the record of the volume that has a name: whoever makes this object makes the volume
    .sidemount/gone/<id>              from here on a volume does not exist; it goes when nothing is left of the volume
    .sidemount/pool                   the pool's id: without it this is no pool

An id is a name and a mark that no other volume has: what is left of a volume, or is still written by somebody who has it mounted,
is never in the way of a later volume of the same name.
"""

import re

from csi.volume_ids import is_id
from sidemount.model.pool_layout import VOLUMES

OWN = ".sidemount"
MARKER = f"{OWN}/pool"
RECORDS = f"{OWN}/volumes/"
GONE = f"{OWN}/gone/"
MARK_BYTES = 6
_RECORD_END = ".json"
_MARK = re.compile(r"[0-9a-f]{12}\Z")


def id_with(name_id: str, mark: str) -> str:
    """Return the id of a volume from its name's and a mark."""
    return f"{name_id}.{mark}"


def name_of(id_: str) -> str:
    """Return the name's part of an id, "" if no volume in a bucket has such an id."""
    name, dot, mark = id_.rpartition(".")
    return name if dot and _MARK.match(mark) and is_id(id_) else ""


def data_prefix(id_: str) -> str:
    """Return what all keys of a volume begin with, and no other's."""
    return f"{VOLUMES}/{id_}/"


def record_key(name_id: str) -> str:
    """Return the key of the record of a name."""
    return f"{RECORDS}{name_id}{_RECORD_END}"


def name_of_record(key: str) -> str:
    """Return whose record has a key, "" if it is of nobody's."""
    return key[len(RECORDS) : -len(_RECORD_END)] if key.endswith(_RECORD_END) else ""


def gone_key(id_: str) -> str:
    """Return the key that says that a volume is gone."""
    return f"{GONE}{id_}"
