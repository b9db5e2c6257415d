"""The daemon of one volume: takes a descriptor from the keeper and serves it, unprivileged, until nobody needs it.

Exit codes: 0 everything served, flushed and ended; 1 a defect of ours; 2 usage; 3 could not start; 4 ended without having
flushed. An external client's own code is passed on.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.daemon_client import Client, client_argv
from sidecar.daemon_link import KeeperLink, Order, obtain_order
from sidecar.daemon_runtime import RUNTIMES, Runtime, make_runtime
from sidecar.daemon_session import FuseSession, prefault_read_buffers
from sidecar.daemon_work import CountedOperations, Work
from sidecar.filesystems import build_operations
from sidemount.host import logs, process_attributes
from sidemount.host.fuse_mount import is_connection_gone
from sidemount.host.logs import EventLog
from sidemount.model.errors import Unsupported, VolumeError
from sidemount.model.names import CACHE_PATH, MOUNTS_PATH, RUN_PATH, SECRETS_PATH, SOURCE_PATH

EXIT_DEFECT = 1
EXIT_NOT_STARTED = 3
EXIT_NOT_FLUSHED = 4
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BYE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """What a daemon is started with. All paths are absolute.

    `stop_s`: how long after SIGTERM it waits for the keeper to let it go. `flush_s`: how long it may then take to end.
    """

    run_dir: str
    source: str
    secrets: str
    cache: str
    mounts_dir: str
    runtime: str
    stop_s: float
    flush_s: float


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
        stop_s=options.stop_seconds,
        flush_s=options.flush_seconds,
    )
    try:
        return run_daemon(settings, log)
    except VolumeError as error:
        log.error("start_failed", fault=error.message, hint=error.hint, reason=error.reason.value)
        return EXIT_NOT_STARTED
    except Exception:
        log.error("daemon_failed", exc_info=True)
        return EXIT_DEFECT


def run_daemon(settings: DaemonSettings, log: EventLog) -> int:
    """Serve one volume to its end and return the exit code. Raises VolumeError if it cannot be served."""
    process_attributes.forbid_inspection()
    process_attributes.forbid_new_privileges()
    os.chdir("/")
    # Only `_Ending`'s thread takes them: the serving thread may be waiting for a store that never answers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    order = obtain_order(
        settings.run_dir,
        takeover=False,
        log=log,
        pause=lambda delay_s: signal.sigtimedwait(_SIGNALS, delay_s) is not None,
    )
    if order is None:
        log.info("told_to_end", served=False)
        return 0
    spec = order.serve.spec
    log = log.bind(volume=spec.volume)
    log.info("descriptor_received", generation=order.serve.generation, filesystem=spec.filesystem)
    if order.serve.continued:
        raise Unsupported(f"volume {spec.volume}: the keeper asks to continue another daemon's connection")
    serve = _serve_built_in if spec.filesystem else _serve_client
    return serve(settings, order, log)


def _serve_built_in(settings: DaemonSettings, order: Order, log: EventLog) -> int:
    runtime = make_runtime(settings.runtime)
    operations = build_operations(
        order.serve.spec,
        source=settings.source,
        secrets=settings.secrets,
        cache=settings.cache,
        state_dir=settings.run_dir,
        in_thread=runtime.in_thread,
    )
    if order.serve.spec.takeover:
        prefault_read_buffers()
    work = Work()
    session = FuseSession(operations, CountedOperations(operations, work), order.device, order.serve.init)
    ending = _Ending(settings, log, let_end=runtime.terminate)
    link = KeeperLink(
        settings.run_dir,
        order,
        work,
        takeover=False,
        log=log,
        stop=ending.begin,
        is_over=lambda: session.is_gone,
    )
    ending.watch(link)
    link.start(session.descriptor)
    is_clean = _run_session(runtime, session, getattr(operations, "close", None), log)
    ending.has_ended()
    log.info("daemon_ended", handled=work.handled, clean=is_clean)
    link.say_bye(clean=is_clean, timeout_s=_BYE_TIMEOUT_S)
    session.close()
    return 0 if is_clean else EXIT_NOT_FLUSHED


def _run_session(
    runtime: Runtime, session: FuseSession, flush: Callable[[], None] | None, log: EventLog
) -> bool:
    """Serve to the end, flush, and return whether both went well."""
    is_clean = True
    try:
        runtime.run(session.main)
    except Exception:
        log.error("session_failed", exc_info=True)
        is_clean = False
    if session.init_error is not None:
        log.error("init_failed", fault=repr(session.init_error))
        is_clean = False
    try:
        if flush is not None:
            flush()
    except Exception as error:
        log.error("flush_failed", fault=repr(error))
        is_clean = False
    return is_clean


def _serve_client(settings: DaemonSettings, order: Order, log: EventLog) -> int:
    spec, device = order.serve.spec, order.device
    mountpoint = f"/dev/fd/{device}" if device >= 0 else f"{settings.mounts_dir}/{spec.volume}"
    client = Client(client_argv(spec.command, mountpoint), device, settings.secrets, log)
    log.info("client_started", program=spec.command[0], pid=client.pid)
    ending = _Ending(settings, log, let_end=lambda: client.end(settings.flush_s))
    link = KeeperLink(
        settings.run_dir,
        order,
        Work(),
        takeover=False,
        log=log,
        stop=ending.begin,
        is_over=lambda: device >= 0 and is_connection_gone(device),
    )
    ending.watch(link)
    link.start(device)
    code = client.wait()
    ending.has_ended()
    if code == 0:
        log.info("client_ended", code=code)
    else:
        log.error("client_ended", code=code, output=client.tail())
    link.say_bye(clean=code == 0, timeout_s=_BYE_TIMEOUT_S)
    return code


class _Ending:
    """How the daemon comes to its end: the keeper lets it go, the mount is gone, or a signal's deadline passes.

    A signal alone ends nothing: kubelet stops this container before the keeper's, and also when applications still run.
    """

    def __init__(self, settings: DaemonSettings, log: EventLog, *, let_end: Callable[[], None]) -> None:
        self._settings = settings
        self._log = log
        self._let_end = let_end
        self._has_begun = threading.Event()
        self._has_ended = threading.Event()
        self._link: KeeperLink | None = None

    def watch(self, link: KeeperLink) -> None:
        """Take signals from now on."""
        self._link = link
        threading.Thread(target=self._take_signals, name="signals", daemon=True).start()

    def begin(self) -> None:
        """Let the daemon finish what it works on and end; it is ended by force if that takes too long."""
        if not self._has_begun.is_set():
            self._has_begun.set()
            threading.Thread(target=self._enforce, name="ending", daemon=True).start()
            self._let_end()

    def has_ended(self) -> None:
        """Note that it has ended by itself."""
        self._has_ended.set()

    def _take_signals(self) -> None:
        number = signal.sigwait(_SIGNALS)
        self._log.info("told_to_end", signal=signal.Signals(number).name, served=True)
        if self._link is not None:
            self._link.announce_stopping()
        if not self._has_begun.wait(self._settings.stop_s) and not self._has_ended.is_set():
            self._log.warning("keeper_did_not_let_go", waited_s=self._settings.stop_s)
            self.begin()

    def _enforce(self) -> None:
        # An external client is killed by then, and its end goes the regular way.
        if self._has_ended.wait(self._settings.flush_s + _BYE_TIMEOUT_S):
            return
        self._log.error(
            "flush_late", waited_s=self._settings.flush_s, consequence="what was not written yet is lost"
        )
        if self._link is not None:
            self._link.say_bye(clean=False, timeout_s=_BYE_TIMEOUT_S)
        os._exit(EXIT_NOT_FLUSHED)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
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
        "--runtime", default="trio", choices=RUNTIMES, help="what pyfuse3 runs on (%(default)s)"
    )
    parser.add_argument("--stop-seconds", type=_seconds, default=25.0, help="from SIGTERM (%(default)s)")
    parser.add_argument("--flush-seconds", type=_seconds, default=20.0, help="from there on (%(default)s)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
