"""A daemon for tests: mounts in a mount namespace of its own, drops to the production capabilities and serves.

Nothing outside sees the mount but through `/proc/<pid>/root`, and it is gone with the process, whatever kills it.
"""

import argparse
import ctypes
import importlib
import json
import logging
import os
import signal
import struct
import sys
from collections.abc import Callable

import trio

from sidecar.daemon_session import FuseSession
from sidecar.directory.root import open_root
from sidecar.directory.settings import parse_settings
from sidecar.directory.store import Store
from sidecar.filesystems import build_operations, directory_operations, in_trio_thread
from sidecar.poll_runtime import PollRuntime
from sidecar.protocol import FilesystemOperations
from sidemount.host.fuse_mount import MountPlan, open_connection
from sidemount.model.mountspec import MountSpec

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522
_CHOWN_DAC_OVERRIDE_FOWNER_FSETID = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4


class JsonLines(logging.Formatter):
    """One JSON object a line, with the trace as text."""

    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        extra = {name: str(value) for name, value in vars(record).items() if name not in _PLAIN}
        fields = {"level": record.levelname, "event": record.getMessage(), "trace": trace, **extra}
        return json.dumps(fields)


_PLAIN = frozenset(vars(logging.makeLogRecord({})))


def main() -> None:
    """Serve until the process is told to end."""
    arguments = _arguments()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(capture=True)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not arguments.visible:
        _check(_libc.unshare(_CLONE_NEWNS))
        _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    runtime = PollRuntime() if arguments.runtime == "poll" else None
    operations = _operations(arguments, runtime)
    # The source as a keeper has it: read-only is the daemon's own business here.
    connection = open_connection(MountPlan(source="sidemount-test"), read_init=True, staging=arguments.source)
    session = FuseSession(operations, operations, connection.device, connection.init, served=_say_ready)
    connection.attach(arguments.mountpoint)
    connection.release_mount()
    drop_to(arguments.uid, arguments.capabilities)
    if runtime is not None:
        runtime.run(session.main)  # type: ignore[arg-type]  # an awaitable of pyfuse3's
    else:
        trio.run(session.main)


def _operations(arguments: argparse.Namespace, runtime: PollRuntime | None) -> FilesystemOperations:
    spec = MountSpec(
        volume="test",
        driver_class="directory",
        source=f"dir://{arguments.source}",
        filesystem=arguments.filesystem,
        sub_path=arguments.sub_path,
        read_only=arguments.read_only,
        options=tuple(json.loads(arguments.options).items()),
    )
    in_thread = in_trio_thread if runtime is None else runtime.in_thread
    if not arguments.store:
        return build_operations(
            spec, source=arguments.source, secrets="", cache="", state_dir="", in_thread=in_thread
        )
    os.umask(0)
    module, _, name = arguments.store.partition(":")
    wrap: Callable[[Store], Store] = getattr(importlib.import_module(module), name)
    settings = parse_settings(spec, arguments.source)
    store = wrap(Store(open_root(arguments.source, arguments.sub_path)))
    return directory_operations(store, settings, in_thread)


def drop_to(uid: int, capabilities: str) -> None:
    """Be somebody else, or root with the few capabilities that the daemon has in a pod."""
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    elif capabilities == "production":
        header = struct.pack("=II", _CAPABILITY_VERSION_3, 0)
        few = _CHOWN_DAC_OVERRIDE_FOWNER_FSETID
        content = struct.pack("=6I", few, few, 0, 0, 0, 0)
        _check(_libc.capset(header, content))
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of credentials has cleared it


def _say_ready() -> None:
    os.write(sys.stdout.fileno(), b"ready\n")


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mountpoint", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--sub-path", default="")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--filesystem", default="directory")
    parser.add_argument("--options", default="{}")
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument("--capabilities", choices=["production", "all"], default="production")
    parser.add_argument("--store", default="")
    parser.add_argument("--runtime", choices=["trio", "poll"], default="trio")
    parser.add_argument("--visible", action="store_true", help="mount where others see it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
