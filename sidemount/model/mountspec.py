"""MountSpec: what a daemon serves; View: where the keeper shows it. With their versioned JSON codec.

Standard library only: the keeper imports it.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from sidemount.model.errors import BadMessage, shown
from sidemount.model.sub_path import sub_path_fault

VERSION = 1
TEXT_MAX = 1 << 20
SPEC_MAX = 56 << 10  # characters of JSON: a daemon gets its spec in one datagram of 64 KiB
OptionValue = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """One volume, the same for the same request whichever way it is delivered. Holds no secret.

    `source` is the URI of the request. `filesystem` names a built-in one, or is "" for an external
    client, whose `command` is its argv (`${mountpoint}` still in it). `sub_path` is the root of the volume within the
    source. `options` are sorted by name. `hung_after_s` is how long a daemon may be silent.
    """

    volume: str
    driver_class: str
    source: str
    filesystem: str = ""
    command: tuple[str, ...] = ()
    sub_path: str = ""
    read_only: bool = False
    options: tuple[tuple[str, OptionValue], ...] = ()
    descriptor: bool = True
    takeover: bool = False
    uid: int = 65532
    hung_after_s: int = 30
    selinux_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One (sub-path, read-only) pair of a volume. `name` is its directory in the mounts volume."""

    name: str
    sub_path: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperMount:
    """One volume that a keeper mounts, with every view of it that the pod uses (at least one)."""

    spec: MountSpec
    views: tuple[View, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperConfig:
    """Everything one keeper does."""

    mounts: tuple[KeeperMount, ...]


def encode_spec(spec: MountSpec) -> str:
    """Render as versioned JSON: keys in a fixed order, ASCII only, no `$`."""
    return _dump({"version": VERSION, **_spec_to_json(spec)})


def decode_spec(text: str) -> MountSpec:
    """Parse what `encode_spec` wrote. Raises BadMessage on anything else."""
    return _spec_from_json(_versioned(text, "mount spec"), "mount spec")


def encode_keeper_config(config: KeeperConfig) -> str:
    """Render as versioned JSON for the keeper's environment."""
    mounts = [
        {"spec": _spec_to_json(mount.spec), "views": [_plain(view, _VIEW) for view in mount.views]}
        for mount in config.mounts
    ]
    return _dump({"version": VERSION, "mounts": mounts})


def decode_keeper_config(text: str) -> KeeperConfig:
    """Parse what `encode_keeper_config` wrote. Raises BadMessage on anything else."""
    raw = _versioned(text, "keeper config")
    _only(raw, ("mounts",), "keeper config")
    mounts = tuple(_mount(m, f"mounts[{i}]") for i, m in enumerate(_list(raw["mounts"], "mounts")))
    names = [view.name for mount in mounts for view in mount.views]
    volumes = [mount.spec.volume for mount in mounts]
    if len(set(names)) != len(names) or len(set(volumes)) != len(volumes):
        raise BadMessage("keeper config: a volume or a view is there twice")
    return KeeperConfig(mounts=mounts)


# Codec ---------------------------------------------------------------------------------------------------

_Check = Callable[[Any, str], Any]
_Table = tuple[tuple[str, str, _Check], ...]  # JSON key, attribute, check

_VOLUME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_VIEW_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[0-9a-f]{1,64})?\Z")


def _text(raw: Any, where: str) -> str:
    if type(raw) is not str or "\0" in raw:
        raise BadMessage(f"{where}: must be a text without NUL, not {shown(raw)}")
    return raw


def _flag(raw: Any, where: str) -> bool:
    if type(raw) is not bool:
        raise BadMessage(f"{where}: must be true or false, not {shown(raw)}")
    return raw


def _within(low: int, high: int) -> _Check:
    def check(raw: Any, where: str) -> int:
        if type(raw) is not int or not low <= raw <= high:
            raise BadMessage(f"{where}: must be a whole number from {low} to {high}, not {shown(raw)}")
        return raw

    return check


def _matching(pattern: re.Pattern[str]) -> _Check:
    def check(raw: Any, where: str) -> str:
        if not pattern.match(_text(raw, where)):
            raise BadMessage(f"{where}: {shown(raw)} is not a name that could stand here")
        return str(raw)

    return check


def _sub_path(raw: Any, where: str) -> str:
    fault = sub_path_fault(_text(raw, where))
    if fault:
        raise BadMessage(f"{where}: {shown(raw)} {fault}")
    return str(raw)


def _list(raw: Any, where: str) -> list[Any]:
    if type(raw) is not list:
        raise BadMessage(f"{where}: must be a list, not {shown(raw)}")
    return raw


def _texts(raw: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(item, f"{where}[{i}]") for i, item in enumerate(_list(raw, where)))


def _options(raw: Any, where: str) -> tuple[tuple[str, OptionValue], ...]:
    options = _mapping(raw, where)
    for name, value in options.items():
        if type(value) not in (str, int, bool):
            raise BadMessage(
                f"{where}.{name}: must be a text, a whole number or a boolean, not {shown(value)}"
            )
    return tuple(sorted(options.items()))


_SPEC: _Table = (
    ("volume", "volume", _matching(_VOLUME)),
    ("driverClass", "driver_class", _text),
    ("source", "source", _text),
    ("filesystem", "filesystem", _text),
    ("command", "command", _texts),
    ("subPath", "sub_path", _sub_path),
    ("readOnly", "read_only", _flag),
    ("options", "options", _options),
    ("descriptor", "descriptor", _flag),
    ("takeover", "takeover", _flag),
    ("uid", "uid", _within(0, 2**32 - 2)),
    ("hungAfterSeconds", "hung_after_s", _within(1, 2**31 - 1)),
    ("selinuxContext", "selinux_context", _text),
)
_VIEW: _Table = (
    ("name", "name", _matching(_VIEW_NAME)),
    ("subPath", "sub_path", _sub_path),
    ("readOnly", "read_only", _flag),
)


def _plain(value: MountSpec | View, table: _Table) -> dict[str, Any]:
    return {key: getattr(value, attribute) for key, attribute, _ in table}


def _spec_to_json(spec: MountSpec) -> dict[str, Any]:
    return {**_plain(spec, _SPEC), "options": dict(sorted(spec.options))}


def _parsed(raw: Any, table: _Table, where: str) -> dict[str, Any]:
    fields = _mapping(raw, where)
    _only(fields, tuple(key for key, _, _ in table), where)
    return {attribute: check(fields[key], f"{where}.{key}") for key, attribute, check in table}


def _spec_from_json(raw: Any, where: str) -> MountSpec:
    spec = MountSpec(**_parsed(raw, _SPEC, where))
    if bool(spec.filesystem) == bool(spec.command):
        raise BadMessage(f"{where}: exactly one of filesystem and command must be given")
    return spec


def _mount(raw: Any, where: str) -> KeeperMount:
    fields = _mapping(raw, where)
    _only(fields, ("spec", "views"), where)
    spec = _spec_from_json(fields["spec"], f"{where}.spec")
    size = len(json.dumps(encode_spec(spec)))
    if size > SPEC_MAX:
        raise BadMessage(
            f"{where}.spec: {size} characters, at most {SPEC_MAX} can be given to a daemon",
            hint="shorten the class's command or the options",
        )
    views = tuple(
        View(**_parsed(view, _VIEW, f"{where}.views[{i}]"))
        for i, view in enumerate(_list(fields["views"], f"{where}.views"))
    )
    if not views:
        raise BadMessage(f"{where}.views: must name at least one view")
    return KeeperMount(spec=spec, views=views)


def _mapping(raw: Any, where: str) -> dict[str, Any]:
    if type(raw) is not dict:
        raise BadMessage(f"{where}: must be a mapping, not {shown(raw)}")
    return raw


def _only(fields: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    """Raise on a key that we do not know, or that is missing: another version wrote it."""
    wrong = sorted(set(fields) ^ set(keys))
    if wrong:
        what = "is unknown" if wrong[0] in fields else "is missing"
        raise BadMessage(
            f"{where}: field {shown(wrong[0])} {what}", hint="run webhook, keeper and daemon of one release"
        )


def _versioned(text: str, where: str) -> dict[str, Any]:
    """Decode, check the version and take it off."""
    raw = _mapping(_load(text, where), where)
    version = raw.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise BadMessage(
            f"{where}: version is {shown(version)}, this program reads {VERSION}",
            hint="run webhook, keeper and daemon of one release",
        )
    return raw


def _dump(value: dict[str, Any]) -> str:
    # Kubernetes expands $(NAME) in env values. A `$` in JSON stands only within strings, never after a lone backslash.
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("$", "\\u0024")


def _load(text: str, where: str) -> Any:
    if len(text) > TEXT_MAX:
        raise BadMessage(f"{where}: longer than {TEXT_MAX} characters")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_float=_no_number, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{where}: not the JSON we write: {type(error).__name__}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is there twice")
    return fields


def _no_number(text: str) -> NoReturn:
    raise ValueError("a number that is not whole")
