"""The keeper's entry: settings from flags and environment, then `sidemount.host.keeper`. Standard library only."""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields

from sidecar.flags import UsageError, parse_flags, print_usage
from sidemount.host import logs
from sidemount.host.keeper import KeeperSettings, run_keeper
from sidemount.host.last_words import leave_last_words
from sidemount.host.limits import Limits
from sidemount.host.readiness import wait_readable
from sidemount.model.errors import InvalidRequest, VolumeError
from sidemount.model.mountspec import decode_keeper_config
from sidemount.model.names import MOUNTS_ENV, MOUNTS_PATH, POD_UID_ENV, RUN_PATH

_CONFIG_MAX = 1 << 20
_CONFIG_WITHIN_S = 5.0
_DAY_S = 86400
_LEVELS = ("debug", "info", "warning", "error")
_FLAGS = {
    "config": "",  # default: the text in SIDEMOUNT_MOUNTS
    "mounts-dir": MOUNTS_PATH,  # where the volumes are shown
    "run-dir": RUN_PATH,  # one directory a volume, with its socket
    "log-level": "info",
}
_LIMITS = {f"{field.name.removesuffix('_s').replace('_', '-')}-seconds": field for field in fields(Limits)}
_ALL_FLAGS = {**_FLAGS, **{flag: str(field.default) for flag, field in _LIMITS.items()}}


def main(arguments: list[str]) -> int:
    """Run the keeper. Exit codes: 0 ended and nothing left mounted, 1 could not start or left something, 2 usage."""
    if arguments == ["--help"]:
        print_usage("keeper", _ALL_FLAGS)
        return 0
    try:
        flags = parse_flags(arguments, _ALL_FLAGS)
        limits = Limits(**{field.name: _seconds(flag, flags[flag]) for flag, field in _LIMITS.items()})
        if flags["log-level"] not in _LEVELS:
            raise UsageError(f"--log-level must be one of {', '.join(_LEVELS)}")
    except UsageError as error:
        print_usage("keeper", _ALL_FLAGS, str(error))
        return 2
    return _run(flags, limits)


def _run(flags: Mapping[str, str], limits: Limits) -> int:
    log = logs.configure("keeper", level=flags["log-level"])
    try:
        settings = KeeperSettings(
            config=decode_keeper_config(_config_text(flags["config"])),
            mounts_dir=flags["mounts-dir"],
            run_dir=flags["run-dir"],
            pod_uid=os.environ.get(POD_UID_ENV, ""),
            limits=limits,
        )
        return run_keeper(settings)
    except VolumeError as error:
        log.error("start_failed", fault=error.message, hint=error.hint, reason=error.reason.value)
        leave_last_words(error)
    except Exception:
        # The mounts stay: the daemons still serve them, and the next keeper takes them over.
        log.error("keeper_failed", exc_info=True)
    return 1


def _config_text(path: str) -> str:
    if not path:
        text = os.environ.get(MOUNTS_ENV, "")
        if not text:
            raise InvalidRequest(
                f"environment variable {MOUNTS_ENV} is not set",
                hint=f"set {MOUNTS_ENV} or give --config FILE",
            )
        return text
    try:
        return _read_in_time(path).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"--config {path}: {error}") from error


def _read_in_time(path: str) -> bytes:
    """Return what the file holds, a little more than may be in it at most: a pipe's writer may never write, or end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _CONFIG_WITHIN_S
        content = bytearray()
        while len(content) <= _CONFIG_MAX:
            if not wait_readable(descriptor, until - time.monotonic()):
                raise TimeoutError(f"not read to its end within {_CONFIG_WITHIN_S:g} s")
            chunk = os.read(descriptor, _CONFIG_MAX + 1 - len(content))
            if not chunk:
                break
            content += chunk
        return bytes(content)
    finally:
        os.close(descriptor)


def _seconds(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _DAY_S:
        raise UsageError(f"--{flag} must be a number of seconds above 0 and up to {_DAY_S}, not {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
