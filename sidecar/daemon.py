"""The daemon of one volume: takes a descriptor from the keeper and serves it, unprivileged, until nobody needs it."""

import argparse
import os
import sys

from sidecar import daemon_codes
from sidecar.daemon_runtime import RUNTIMES
from sidecar.daemon_settings import DaemonSettings
from sidecar.daemon_supervisor import Supervisor
from sidemount.host import logs, process_attributes
from sidemount.host.last_words import leave_last_words
from sidemount.host.logs import EventLog
from sidemount.model.errors import VolumeError
from sidemount.model.names import CACHE_PATH, MOUNTS_PATH, RUN_PATH, SECRETS_PATH, SOURCE_PATH

_SPARES_MAX = 16


def main(arguments: list[str]) -> int:
    """Run the daemon and return its exit code."""
    options = _parser().parse_args(arguments)
    log = logs.configure("daemon", level=options.log_level)
    settings = DaemonSettings(
        run_dir=os.path.abspath(options.run_dir),
        source=os.path.abspath(options.source),
        secrets=os.path.abspath(options.secrets),
        cache=os.path.abspath(options.cache),
        mounts_dir=os.path.abspath(options.mounts_dir),
        runtime=options.runtime,
        spares=options.spares,
        resend=options.resend,
        stop_s=options.stop_seconds,
        flush_s=options.flush_seconds,
    )
    try:
        return run_daemon(settings, log)
    except VolumeError as error:
        log.error("start_failed", fault=error.message, hint=error.hint, reason=error.reason.value)
        leave_last_words(error)
        return daemon_codes.NOT_STARTED
    except Exception:
        log.error("daemon_failed", exc_info=True)
        return daemon_codes.DEFECT


def run_daemon(settings: DaemonSettings, log: EventLog) -> int:
    """Serve one volume to its end and return the exit code."""
    process_attributes.forbid_inspection()
    process_attributes.forbid_new_privileges()
    os.chdir("/")
    return Supervisor(settings, log).run()


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= _SPARES_MAX:
        raise ValueError(text)
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sidecar daemon", description="Serve one volume over the descriptor that the keeper gives."
    )
    parser.add_argument("--run-dir", default=RUN_PATH, help="has the keeper's socket (%(default)s)")
    parser.add_argument("--source", default=SOURCE_PATH, help="what `directory` serves (%(default)s)")
    parser.add_argument("--secrets", default=SECRETS_PATH, help="credentials, one file a key (%(default)s)")
    parser.add_argument("--cache", default=CACHE_PATH, help="a directory of the volume's own (%(default)s)")
    parser.add_argument(
        "--mounts-dir", default=MOUNTS_PATH, help="for a client that mounts by itself (%(default)s)"
    )
    parser.add_argument(
        "--runtime", default="poll", choices=RUNTIMES, help="what pyfuse3 runs on (%(default)s)"
    )
    parser.add_argument(
        "--spares", type=_count, default=2, help="processes that wait to take over (%(default)s)"
    )
    parser.add_argument(
        "--no-resend",
        dest="resend",
        action="store_false",
        help="behave as on a kernel without FUSE_NOTIFY_RESEND: a death ends in a new mount",
    )
    parser.add_argument("--stop-seconds", type=_seconds, default=25.0, help="from SIGTERM (%(default)s)")
    parser.add_argument("--flush-seconds", type=_seconds, default=20.0, help="from there on (%(default)s)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
