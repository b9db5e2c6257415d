"""What a pool is made of: the names in it, of which this is the only place.

    <pool>/volumes/<id>/{volume.json, budget, data/}
    <pool>/snapshots/<id>/{snapshot.json, data/}
    <pool>/.unfinished/<name>        things on their way in or out
    <pool>/.sidemount-pool           the pool's id: without it nothing is mounted here

Whatever is in `volumes` or `snapshots` is whole: it was made in `.unfinished` and renamed.
"""

VOLUMES = "volumes"
SNAPSHOTS = "snapshots"
UNFINISHED = ".unfinished"
MARKER = ".sidemount-pool"
VOLUME_RECORD = "volume.json"
SNAPSHOT_RECORD = "snapshot.json"
BUDGET = "budget"
DATA = "data"


def volume_dir(pool: str, volume_id: str) -> str:
    """Return the directory of a volume."""
    return f"{pool}/{VOLUMES}/{volume_id}"


def snapshot_dir(pool: str, snapshot_id: str) -> str:
    """Return the directory of a snapshot."""
    return f"{pool}/{SNAPSHOTS}/{snapshot_id}"


def unfinished_dir(pool: str, name: str) -> str:
    """Return the directory of something that is being made or removed."""
    return f"{pool}/{UNFINISHED}/{name}"


def data_dir(directory: str) -> str:
    """Return where the files of a volume or snapshot are: the only part of it that applications see."""
    return f"{directory}/{DATA}"


def budget_path(volume: str) -> str:
    """Return the file that says how much a volume may hold, and holds."""
    return f"{volume}/{BUDGET}"
