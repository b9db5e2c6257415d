"""A daemon for tests and benches: mounts an `objects` volume, drops its privileges and serves until it is killed.

    python -m tests.sidecar.objects.daemon --visible --source s3://bucket/prefix --mountpoint /mnt \\
        --secrets DIR --cache DIR --options '{"endpoint": "http://127.0.0.1:9000", "region": "us-east-1"}'

Prints "ready". Without `--visible` it mounts in a mount namespace of its own: nothing outside sees the mount but through
`/proc/<pid>/root`, and it is gone with the process. With it, unmount what is left: `umount -l MOUNTPOINT`.
"""

import argparse
import json
import logging
import os
import signal
import sys
from functools import partial

from sidecar.daemon_runtime import load_pyfuse3

load_pyfuse3("poll")

from sidecar.daemon_session import FuseSession  # noqa: E402
from sidecar.detour import Detour  # noqa: E402
from sidecar.filesystems import build_operations, preload  # noqa: E402
from sidecar.poll_runtime import PollRuntime  # noqa: E402
from sidemount.host.fuse_mount import MountPlan, open_connection  # noqa: E402
from sidemount.model.mountspec import MountSpec  # noqa: E402
from tests.sidecar.directory.daemon import (  # noqa: E402
    _CLONE_NEWNS,
    _MS_PRIVATE,
    _MS_REC,
    _PR_SET_PDEATHSIG,
    JsonLines,
    _check,
    _libc,
    drop_to,
)


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
    preload("objects")
    runtime = PollRuntime()
    connection = open_connection(MountPlan(source="sidemount-test"), read_init=True, staging="/tmp")
    connection.attach(arguments.mountpoint)
    connection.release_mount()
    drop_to(arguments.uid, "production")
    spec = MountSpec(
        volume="test",
        driver_class="objects",
        source=arguments.source,
        filesystem="objects",
        sub_path=arguments.sub_path,
        read_only=arguments.read_only,
        options=tuple(sorted(json.loads(arguments.options).items())),
    )
    operations = build_operations(
        spec,
        source="",
        secrets=arguments.secrets,
        cache=arguments.cache,
        state_dir="",
        in_thread=runtime.in_thread,
    )
    runtime.errands = operations.errands
    operations.detour = Detour(partial(setattr, runtime, "once_answered"))
    session = FuseSession(
        operations,
        operations,
        connection.device,
        connection.init,
        served=_say_ready,
        detour=operations.detour,
    )
    runtime.run(session.main)  # type: ignore[arg-type]  # an awaitable of pyfuse3's
    operations.close()


def _say_ready() -> None:
    os.write(sys.stdout.fileno(), b"ready\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mountpoint", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--secrets", default="")
    parser.add_argument("--cache", default="")
    parser.add_argument("--sub-path", default="")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--options", default="{}")
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument("--visible", action="store_true", help="mount where others see it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
