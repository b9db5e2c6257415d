"""Settings of a `directory` volume, from the options of its MountSpec."""

from dataclasses import dataclass
from enum import Enum

from sidecar.option_values import Options, parse_options
from sidemount.model.mountspec import MountSpec, OptionValue

_LONGEST_TIMEOUT_S = 24 * 3600


class PageCache(Enum):
    """What the kernel may do with file content.

    `auto`: keep pages, and drop them at an open if the file has changed since the last one (close-to-open). `keep`: never drop
    them at an open; for a source that nobody else writes to. `direct`: keep none; shared writable mmap is refused then.
    """

    AUTO = "auto"
    KEEP = "keep"
    DIRECT = "direct"


class Storage(Enum):
    """How quick the source answers. `local`: operations run at once, only what waits for the disk goes into a thread.
    `remote`: every operation goes into a thread, so that a server that hangs holds up only those who ask it.
    `auto`: by the type of the filesystem.
    """

    AUTO = "auto"
    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorySettings:
    """One volume's settings. Each default is the safe one for a source that others change at the same time.

    Timeouts are how long the kernel may believe attributes and names; opening a file never believes them.
    """

    source: str
    sub_path: str = ""
    read_only: bool = False
    attribute_timeout_s: int = 1
    entry_timeout_s: int = 1
    page_cache: PageCache = PageCache.AUTO
    storage: Storage = Storage.AUTO
    extended_attributes: bool = True
    writeback: bool = False


def parse_settings(spec: MountSpec, source: str) -> DirectorySettings:
    """Return the settings of a spec. Raises InvalidRequest, or Faults for several wrong options."""
    values = parse_options(spec, _OPTIONS)
    if "attribute_timeout_s" in values:
        values.setdefault("entry_timeout_s", values["attribute_timeout_s"])
    return DirectorySettings(source=source, sub_path=spec.sub_path, read_only=spec.read_only, **values)


def _seconds(value: OptionValue) -> int:
    if type(value) is not int or not 0 <= value <= _LONGEST_TIMEOUT_S:
        raise ValueError(f"not a number of seconds from 0 to {_LONGEST_TIMEOUT_S}")
    return value


def _flag(value: OptionValue) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a boolean")
    return value


def _page_cache(value: OptionValue) -> PageCache:
    if value not in [choice.value for choice in PageCache]:
        raise ValueError(f"not one of {', '.join(choice.value for choice in PageCache)}")
    return PageCache(value)


def _storage(value: OptionValue) -> Storage:
    if value not in [choice.value for choice in Storage]:
        raise ValueError(f"not one of {', '.join(choice.value for choice in Storage)}")
    return Storage(value)


_OPTIONS: Options = {
    "attributeTimeout": ("attribute_timeout_s", _seconds),
    "entryTimeout": ("entry_timeout_s", _seconds),
    "pageCache": ("page_cache", _page_cache),
    "storage": ("storage", _storage),
    "extendedAttributes": ("extended_attributes", _flag),
    "writeback": ("writeback", _flag),
}
