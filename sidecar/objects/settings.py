"""Settings of an `objects` volume, from the options of its MountSpec."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.option_values import Options, parse_options
from sidemount.model.mountspec import MountSpec, OptionValue

_LONGEST_TIMEOUT_S = 24 * 3600
_MODE = re.compile(r"0?[0-7]{3}\Z")
_ID_MAX = (1 << 32) - 2
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsSettings:
    """One volume's settings. Times in seconds, sizes in bytes.

    `attribute_timeout_s`, `entry_timeout_s`: how long the kernel may believe attributes and names. `known_timeout_s`: how long we believe what a
    listing or an earlier question told of a key, `open_timeout_s` the same at an open: 0 asks the store at each, which is close-to-open
    consistency. `missing_timeout_s`: how long a name that was not there stays so.
    `memory_cache_bytes`, `disk_cache_bytes`: bounds of the block cache. `staging_bytes`: how much all files that are written at random may take on the cache
    volume, 0: such writes are refused. The modes are an emptyDir's: whoever is in the pod may. `part_bytes`: of uploads, `uploading` how many parts of one volume are on their way at once.
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
    file_mode: int = 0o666
    directory_mode: int = 0o777
    ignore_permissions: bool = True
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

    @property
    def long_timeout_s(self) -> float:
        """How long one request may take that the store works on before it answers: half of the time, so that there can be another."""
        return max(self.request_timeout_s, self.retry_timeout_s / 2)


def parse_settings(spec: MountSpec) -> ObjectsSettings:
    """Return the settings of a spec. Raises InvalidRequest, or Faults for several wrong options."""
    values = parse_options(spec, _OPTIONS)
    if "attribute_timeout_s" in values:
        values.setdefault("entry_timeout_s", values["attribute_timeout_s"])
    return ObjectsSettings(source=spec.source, sub_path=spec.sub_path, read_only=spec.read_only, **values)


def _within(low: int, high: int, what: str) -> Callable[[OptionValue], int]:
    def parse(value: OptionValue) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"not {what} from {low} to {high}")
        return value

    return parse


def _flag(value: OptionValue) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a boolean")
    return value


def _text(value: OptionValue) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _mode(value: OptionValue) -> int:
    if not isinstance(value, str) or not _MODE.match(value):
        raise ValueError("not three octal digits such as 0644")
    return int(value, 8)


def _endpoint(value: OptionValue) -> str:
    if not isinstance(value, str) or not re.match(r"https?://[^/@?#\s]+(/[\w.~-]+)*/?\Z", value, re.ASCII):
        raise ValueError("not a URL of a server such as https://s3.example:9000")
    return value.rstrip("/")


_SECONDS = _within(0, _LONGEST_TIMEOUT_S, "a number of seconds")
_PATIENCE = _within(1, 3600, "a number of seconds")
_ID = _within(0, _ID_MAX, "a user or group id")
_SIZE = _within(0, 1 << 60, "a number of bytes")

_OPTIONS: Options = {
    "attributeTimeout": ("attribute_timeout_s", _SECONDS),
    "entryTimeout": ("entry_timeout_s", _SECONDS),
    "knownTimeout": ("known_timeout_s", _SECONDS),
    "openTimeout": ("open_timeout_s", _SECONDS),
    "missingTimeout": ("missing_timeout_s", _SECONDS),
    "uid": ("uid", _ID),
    "gid": ("gid", _ID),
    "fileMode": ("file_mode", _mode),
    "directoryMode": ("directory_mode", _mode),
    "ignorePermissions": ("ignore_permissions", _flag),
    "blockSize": ("block_bytes", _within(64 * _KIB, 64 * _MIB, "a number of bytes")),
    "readAhead": ("read_ahead_blocks", _within(0, 1024, "a number of blocks")),
    "memoryCacheBytes": ("memory_cache_bytes", _within(_MIB, 1 << 40, "a number of bytes")),
    "cacheBytes": ("disk_cache_bytes", _SIZE),
    "stagingBytes": ("staging_bytes", _SIZE),
    "partSize": ("part_bytes", _within(5 * _MIB, 5 * _GIB, "a number of bytes")),
    "uploads": ("uploading", _within(1, 64, "a number of uploads")),
    "largestRename": ("largest_rename", _within(0, 1_000_000, "a number of keys")),
    "region": ("region", _text),
    "endpoint": ("endpoint", _endpoint),
    "pathStyle": ("path_style", _flag),
    "connections": ("connections", _within(1, 1024, "a number of connections")),
    "requestTimeout": ("request_timeout_s", _PATIENCE),
    "retryTimeout": ("retry_timeout_s", _PATIENCE),
    "prefetch": ("prefetch", _text),
}
