"""What is read and written in the object-store benchmark: servers with the same objects in a bucket, and who is measured on each."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.bench import objects_subjects as subjects
from e2e.bench.data_subjects import Serve
from e2e.bench.objects_direct import Direct
from e2e.bench.objects_subjects import Bucket
from e2e.servers.fake_gcs import fake_gcs
from e2e.servers.nginx import nginx_s3
from e2e.servers.process import ServerFault
from e2e.servers.seaweedfs import seaweedfs

BIG, AT_RANDOM, SEVERAL, SMALL, LISTED = "big", "random", "several", "small", "listed"
_CHUNK = 1 << 20
_FORMAT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much there is: bytes of the big file, files and bytes of each, names in each listed directory."""

    big: int = 1 << 30
    several: int = 16
    several_bytes: int = 64 << 20
    small: int = 1000
    small_bytes: int = 16 << 10
    names: tuple[int, ...] = (10_000, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A server with the objects, and what is measured on it in turns.

    `direct` asks it without a filesystem. `apart` keep what is written in a form of their own.
    """

    name: str
    subjects: Mapping[str, Serve]
    direct: Direct | None = None
    writes: bool = False
    apart: frozenset[str] = frozenset()


@contextlib.contextmanager
def reading(work: Path, sizes: Sizes) -> Iterator[Ground]:
    """nginx in front of `rclone serve s3`: the server costs next to nothing."""
    with nginx_s3(work / "nginx") as server:
        make_files(server.files, sizes)
        bucket = Bucket(scheme="s3", endpoint=server.place.endpoint, name=server.place.bucket)
        found: dict[str, Serve] = {
            subjects.OURS: subjects.ours(bucket, **_BEST, **_MEMORY),
            "s3fs": subjects.s3fs(bucket),
            "rclone off": subjects.rclone(bucket, "off"),
            "rclone full": subjects.rclone(bucket, "full"),
        }
        yield Ground(name="reads from S3 (nginx)", subjects=found, direct=Direct(bucket))


@contextlib.contextmanager
def google(work: Path, sizes: Sizes, gcsfuse: Path) -> Iterator[Ground]:
    """The same objects on a server that speaks Google's protocol, for gcsfuse."""
    make_files(work / "gcs" / "data" / "bucket", sizes)
    with fake_gcs(work / "gcs", in_memory=False) as server:
        bucket = Bucket(scheme="gs", endpoint=server.endpoint, name=server.bucket)
        found = {
            subjects.OURS: subjects.ours(bucket, **_BEST, **_MEMORY),
            "gcsfuse": subjects.gcsfuse(bucket, gcsfuse),
        }
        yield Ground(name="reads from GCS (fake-gcs-server)", subjects=found)


@contextlib.contextmanager
def writing(work: Path) -> Iterator[Ground]:
    """SeaweedFS: a real server that keeps what is written."""
    with seaweedfs(work / "weed") as server:
        bucket = Bucket(
            scheme="s3",
            endpoint=server.endpoint,
            name=server.bucket,
            access_key=server.access_key,
            secret_key=server.secret_key,
            filer=server.filer,
        )
        found: dict[str, Serve] = {
            subjects.OURS: subjects.ours(bucket),
            "s3fs": subjects.s3fs(bucket),
            "rclone full": subjects.rclone(bucket, "full"),
            "weed mount": subjects.weed(bucket),
            "juicefs": _formatted(bucket, work / "juicefs.db"),
        }
        yield Ground(
            name="writes to S3 (SeaweedFS)",
            subjects=found,
            direct=Direct(bucket),
            writes=True,
            apart=frozenset({"juicefs"}),
        )


def make_files(place: Path, sizes: Sizes) -> None:
    """Make the objects as files of a directory."""
    for name in (SEVERAL, SMALL):
        (place / name).mkdir(parents=True)
    content = bytes(range(256)) * (_CHUNK // 256)
    for name in (BIG, AT_RANDOM):
        _write(place / name, content, sizes.big)
    for number in range(sizes.several):
        _write(place / SEVERAL / f"{number:03d}", content, sizes.several_bytes)
    for number in range(sizes.small):
        _write(place / SMALL / f"{number:05d}", content[: sizes.small_bytes], sizes.small_bytes)
    for count in sizes.names:
        for what in ("ls", "long", "find"):
            directory = place / f"{LISTED}-{what}-{count}"
            directory.mkdir()
            for number in range(count):
                (directory / f"name-{number:07d}").touch()


# What an administrator gives to volumes whose files of a GiB are read at random; peers take their disk for it, without a bound.
_MEMORY = {"memoryCacheBytes": 3 << 29}
# The same promises that the peers' flags make: what a listing told is believed for an hour.
_BEST = {"attributeTimeout": 3600, "entryTimeout": 3600, "knownTimeout": 3600, "openTimeout": 3600}


def _formatted(bucket: Bucket, metadata: Path) -> Serve:
    command = subjects.juicefs_format(bucket, metadata)
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=_FORMAT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerFault(f"juicefs cannot be set up: {error}") from error
    return subjects.juicefs(bucket, metadata)


def _write(path: Path, content: bytes, size: int) -> None:
    with path.open("wb") as file:
        for _ in range(0, size, len(content)):
            file.write(content)
