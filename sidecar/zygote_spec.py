"""Whether a connection can go on under another spec than it began with: one of a newer release, or with other options."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace

from sidecar.filesystems import INIT_OPTIONS
from sidemount.host.handover import Serve
from sidemount.host.logs import EventLog
from sidemount.model.errors import BadMessage
from sidemount.model.mountspec import TEXT_MAX, MountSpec, OptionValue, decode_spec, encode_spec

_FILE = "spec"
_NEW = "spec.new"
_FIXED = ("volume", "source", "filesystem", "sub_path", "read_only", "uid")


def settle_spec(order: Serve, directory: str, log: EventLog) -> Serve:
    """Note what a connection begins with, or return the order to go on as it has begun. Raises BadMessage if it cannot."""
    if not order.continued:
        remember_spec(directory, order.spec)
        return order
    spec, refused = continued_spec(remembered_spec(directory), order.spec)
    for option in refused:
        log.warning(
            "option_refused",
            option=option,
            why="it was settled with the kernel when the volume was mounted",
            consequence="it takes effect when the volume is mounted the next time",
        )
    return replace(order, spec=spec)


def remember_spec(directory: str, spec: MountSpec) -> None:
    """Note what a connection begins with. Without it nobody continues the connection, so a failure is none of the volume's."""
    with contextlib.suppress(OSError):
        path = os.path.join(directory, _NEW)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(encode_spec(spec))
        os.replace(path, os.path.join(directory, _FILE))


def remembered_spec(directory: str) -> MountSpec:
    """Return what was noted last. Raises BadMessage."""
    try:
        with open(os.path.join(directory, _FILE), encoding="ascii") as file:
            return decode_spec(file.read(TEXT_MAX + 1))
    except (OSError, UnicodeDecodeError) as error:
        raise BadMessage(f"what the connection began with cannot be read: {error}") from error


def continued_spec(begun: MountSpec, wanted: MountSpec) -> tuple[MountSpec, tuple[str, ...]]:
    """Return the spec to go on with, and which of the wanted options are refused. Raises BadMessage if it cannot go on at all.

    What was settled with the kernel in FUSE_INIT stays as it is until the volume is mounted anew.
    """
    for field in _FIXED:
        before, after = getattr(begun, field), getattr(wanted, field)
        if before != after:
            raise BadMessage(f"{field} was {before!r} when the connection began, and is {after!r} now")
    settled = INIT_OPTIONS.get(wanted.filesystem, {})
    before_options, options = dict(begun.options), dict(wanted.options)
    refused = tuple(sorted(name for name in settled if _differ(before_options, options, name, settled[name])))
    for name in refused:
        options[name] = before_options.get(name, settled[name])
    return replace(wanted, options=tuple(sorted(options.items()))), refused


def _differ(
    before: Mapping[str, OptionValue], after: Mapping[str, OptionValue], name: str, default: OptionValue
) -> bool:
    return before.get(name, default) != after.get(name, default)
