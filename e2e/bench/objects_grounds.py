"""What is read and written in the object-store benchmark: servers with the same objects in a bucket, and who is measured on each."""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench import objects_subjects as subjects
from e2e.bench.data_subjects import Serve
from e2e.bench.objects_direct import Direct
from e2e.bench.objects_subjects import Bucket
from e2e.servers.fake_gcs import fake_gcs
from e2e.servers.nginx import nginx_s3
from e2e.servers.process import ServerFault
from e2e.servers.s3_place import S3Place
from e2e.servers.seaweedfs import seaweedfs

BIG, AT_RANDOM, SEVERAL, SMALL, LISTED = "big", "random", "several", "small", "listed"
READS, LISTS, WRITES = "reads", "lists", "writes"
_CHUNK = 1 << 20
_FORMAT_S = 60.0
_MAKERS = 8
_MOST_GOOGLE = 10_000
# Of an object without content, as fake-gcs-server writes it beside the file.
_GOOGLE_EMPTY = {
    "StorageClass": "STANDARD",
    "Crc32c": "AAAAAA==",
    "Md5Hash": "1B2M2Y8AsgTpgAmY7PhCfg==",
    "Etag": "1B2M2Y8AsgTpgAmY7PhCfg==",
    "Created": "2026-01-01T00:00:00Z",
    "Updated": "2026-01-01T00:00:00Z",
    "Generation": 1767225600000000,
}


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

    `direct` asks it without a filesystem. `apart` keep what is written in a form of their own. `names` are in directories of so many.
    `aside` are shown, and nobody is judged against them. `without` says who cannot be measured here, and why.
    """

    name: str
    subjects: Mapping[str, Serve]
    kinds: frozenset[str]
    names: tuple[int, ...] = ()
    direct: Direct | None = None
    apart: frozenset[str] = frozenset()
    aside: frozenset[str] = frozenset()
    without: Mapping[str, str] = field(default_factory=dict)


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
        yield Ground(
            name="reads from S3 (nginx)",
            subjects=found,
            kinds=frozenset({READS}),
            direct=Direct(bucket),
            without={
                "juicefs, weed mount": "they read what they have written, on SeaweedFS: see the rows there"
            },
        )


@contextlib.contextmanager
def listing(work: Path, sizes: Sizes) -> Iterator[Ground]:
    """SeaweedFS: it finds a page of names where the page before has ended, however many there are."""
    with seaweedfs(work / "listed") as server:
        for count in sizes.names:
            _make_names(server, directory_of(count), count)
        bucket = _weed_bucket(server)
        found: dict[str, Serve] = {
            subjects.OURS: subjects.ours(bucket, **_BEST),
            "s3fs": subjects.s3fs(bucket),
            "rclone off": subjects.rclone(bucket, "off"),
            "rclone full": subjects.rclone(bucket, "full"),
            "weed mount": subjects.weed(bucket),
        }
        yield Ground(
            name="listings from S3 (SeaweedFS)",
            subjects=found,
            kinds=frozenset({LISTS}),
            names=sizes.names,
            direct=Direct(bucket),
            aside=frozenset({"weed mount"}),
            without={
                "weed mount": "not judged against: it asks the filer, and no bucket in pages of S3",
                "juicefs": "what it lists is its own database on this machine, no bucket",
            },
        )


@contextlib.contextmanager
def google(work: Path, sizes: Sizes, gcsfuse: Path) -> Iterator[Ground]:
    """The same objects on a server that speaks Google's protocol, for gcsfuse."""
    data, names = work / "gcs" / "data" / "bucket", tuple(one for one in sizes.names if one <= _MOST_GOOGLE)
    make_files(data, sizes)
    with fake_gcs(work / "gcs", in_memory=False):
        pass  # it has looked at them now
    for count in names:
        _make_google_names(data, directory_of(count), count)
    with fake_gcs(work / "gcs", in_memory=False, is_ready=True) as server:
        bucket = Bucket(scheme="gs", endpoint=server.endpoint, name=server.bucket)
        found = {
            subjects.OURS: subjects.ours(bucket, **_BEST, **_MEMORY),
            "gcsfuse": subjects.gcsfuse(bucket, gcsfuse),
        }
        yield Ground(
            name="reads and listings from GCS (fake-gcs-server)",
            subjects=found,
            kinds=frozenset({READS, LISTS}),
            names=names,
            without={} if names == sizes.names else {"100,000 names": "it opens every file for every page"},
        )


@contextlib.contextmanager
def writing(work: Path) -> Iterator[Ground]:
    """SeaweedFS: a real server that keeps what is written, and so serves those that have a form of their own for it."""
    place = Path(tempfile.mkdtemp(prefix="written-", dir=work))
    try:
        with seaweedfs(place / "weed") as server:
            bucket = _weed_bucket(server)
            found: dict[str, Serve] = {
                subjects.OURS: subjects.ours(bucket, **_BEST),
                "s3fs": subjects.s3fs(bucket),
                "rclone off": subjects.rclone(bucket, "off"),
                "rclone full": subjects.rclone(bucket, "full"),
                "weed mount": subjects.weed(bucket),
                "juicefs": _formatted(bucket, place / "juicefs.db"),
            }
            yield Ground(
                name="writes to S3, and reads of what was written (SeaweedFS)",
                subjects=found,
                kinds=frozenset({WRITES}),
                direct=Direct(bucket),
                apart=frozenset({"juicefs"}),
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def directory_of(count: int) -> str:
    """Return the name of the directory with so many names."""
    return f"{LISTED}-{count}"


def _weed_bucket(server: S3Place) -> Bucket:
    return Bucket(
        scheme="s3",
        endpoint=server.endpoint,
        name=server.bucket,
        access_key=server.access_key,
        secret_key=server.secret_key,
        filer=server.filer,
    )


def _make_names(server: S3Place, directory: str, count: int) -> None:
    """Make empty objects, by the filer: that takes half the time."""
    host, _, ports = server.filer.partition(":")
    mine = threading.local()

    def make(number: int) -> None:
        connection = mine.__dict__.setdefault("connection", None) or http.client.HTTPConnection(
            host, int(ports.partition(".")[0]), timeout=_FORMAT_S
        )
        mine.connection = connection
        connection.request("PUT", f"/buckets/{server.bucket}/{directory}/name-{number:07d}", body=b"")
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise ServerFault(f"the filer answers {answer.status}")

    with ThreadPoolExecutor(_MAKERS) as pool:
        for _ in pool.map(make, range(count)):
            pass


def _make_google_names(data: Path, directory: str, count: int) -> None:
    """Make empty objects as the server keeps them: file by file it would take minutes."""
    (data / directory).mkdir()
    attributes = json.dumps(_GOOGLE_EMPTY).encode()
    for number in range(count):
        path = data / directory / f"name-{number:07d}"
        path.touch()
        os.setxattr(path, "user.metadata", attributes)


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
