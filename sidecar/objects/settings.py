"""Settings of an `objects` volume."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsSettings:
    """One volume's settings. Times in seconds, sizes in bytes.

    `attribute_timeout_s`, `entry_timeout_s`: how long the kernel may believe attributes and names. `known_timeout_s`: how long we believe what a
    listing or an earlier question told of a key, `open_timeout_s` the same at an open: 0 asks the store at each, which is close-to-open
    consistency. `missing_timeout_s`: how long a name that was not there stays so.
    `memory_cache_bytes`, `disk_cache_bytes`: bounds of the block cache. `staging_bytes`: how much all files that are written at random may take on the cache
    volume, 0: such writes are refused. `part_bytes`: of uploads, `uploading` how many parts of one volume are on their way at once.
    """

    source: str
    sub_path: str = ""
    read_only: bool = False
    attribute_timeout_s: int = 1
    entry_timeout_s: int = 1
    known_timeout_s: int = 1
    open_timeout_s: int = 0
    missing_timeout_s: int = 1
    uid: int = 0
    gid: int = 0
    file_mode: int = 0o644
    directory_mode: int = 0o755
    ignore_permissions: bool = False
    block_bytes: int = 2 << 20
    read_ahead_blocks: int = 12
    memory_cache_bytes: int = 128 << 20
    disk_cache_bytes: int = 0
    staging_bytes: int = 0
    part_bytes: int = 8 << 20
    uploading: int = 4
    largest_rename: int = 1000
    region: str = ""
    endpoint: str = ""
    path_style: bool = True
    connections: int = 32
    request_timeout_s: int = 20
    retry_timeout_s: int = 60
    prefetch: str = ""
