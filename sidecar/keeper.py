"""The keeper's entry: settings from flags and environment, then `sidemount.host.keeper`. Standard library only."""

import argparse
import os
import sys
from dataclasses import fields

from sidemount.host import logs
from sidemount.host.keeper import KeeperSettings, run_keeper
from sidemount.host.limits import Limits
from sidemount.model.errors import InvalidRequest, VolumeError
from sidemount.model.mountspec import decode_keeper_config
from sidemount.model.names import MOUNTS_ENV, MOUNTS_PATH, POD_UID_ENV, RUN_PATH

_CONFIG_MAX = 1 << 20


def main(arguments: list[str]) -> int:
    """Run the keeper. Exit codes: 0 ended and nothing left mounted, 1 could not start or left something, 2 usage."""
    options = _parser().parse_args(arguments)
    log = logs.configure("keeper", level=options.log_level)
    try:
        return run_keeper(_settings(options))
    except VolumeError as error:
        log.error("start_failed", fault=error.message, hint=error.hint, reason=error.reason.value)
    except Exception:
        # The mounts stay: the daemons still serve them, and the next keeper takes them over.
        log.error("keeper_failed", exc_info=True)
    return 1


def _settings(options: argparse.Namespace) -> KeeperSettings:
    limits = {field.name: getattr(options, field.name) for field in fields(Limits)}
    return KeeperSettings(
        config=decode_keeper_config(_config_text(options.config)),
        mounts_dir=options.mounts_dir,
        run_dir=options.run_dir,
        pod_uid=os.environ.get(POD_UID_ENV, ""),
        limits=Limits(**limits),
    )


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
        with open(path, encoding="utf-8") as file:
            return file.read(_CONFIG_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--config {path}: {error}") from error


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise ValueError(text)
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar keeper", description="Mount a pod's volumes and keep them mounted, whatever dies."
    )
    parser.add_argument("--config", default="", metavar="FILE", help=f"default: the text in ${MOUNTS_ENV}")
    parser.add_argument("--mounts-dir", default=MOUNTS_PATH, help="where the volumes are shown (%(default)s)")
    parser.add_argument(
        "--run-dir", default=RUN_PATH, help="one directory a volume, with its socket (%(default)s)"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    for field in fields(Limits):
        name = field.name.removesuffix("_s").replace("_", "-")
        parser.add_argument(
            f"--{name}-seconds", dest=field.name, type=_seconds, default=field.default, help=argparse.SUPPRESS
        )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
