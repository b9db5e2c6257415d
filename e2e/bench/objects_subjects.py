"""What serves a bucket in the object-store benchmark: our daemon as in a pod, and its peers with the flags that serve them best."""

import contextlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.bench.data_subjects import Serve, Served, foreign, serve_spec
from sidemount.model.mountspec import MountSpec, OptionValue

OURS = "sidemount"
_VOLUME = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where the objects are: a bucket on a server that speaks S3 (`scheme` "s3") or GCS ("gs")."""

    scheme: str
    endpoint: str
    name: str
    access_key: str = "anybody"  # some clients insist on one
    secret_key: str = "anything"
    region: str = "us-east-1"
    filer: str = ""  # what `weed mount` asks, as its flag wants it


def ours(bucket: Bucket, **options: OptionValue) -> Serve:
    """Return how our keeper and daemon serve it."""

    @contextlib.contextmanager
    def serve(work: Path, source: Path) -> Iterator[Served]:
        secrets, cache = work / "secrets", work / "cache"
        for place in (secrets, cache):
            place.mkdir()
        if bucket.scheme == "s3":
            (secrets / "access_key_id").write_text(bucket.access_key)
            (secrets / "secret_access_key").write_text(bucket.secret_key)
        given: dict[str, OptionValue] = {"endpoint": bucket.endpoint, **options}
        if bucket.scheme == "s3":
            given["region"] = bucket.region
        spec = MountSpec(
            volume=_VOLUME,
            driver_class="objects",
            source=f"{bucket.scheme}://{bucket.name}",
            filesystem="objects",
            options=tuple(sorted(given.items())),
            takeover=True,
            uid=0,
        )
        flags = ["--secrets", str(secrets), "--cache", str(cache)]
        with serve_spec(spec, work, flags) as served:
            yield served

    return serve


def s3fs(bucket: Bucket) -> Serve:
    """Return how s3fs serves it: names and attributes are kept, uploads and reads in parallel."""
    options = (
        f"url={bucket.endpoint},use_path_request_style,passwd_file=WORK/../credentials,endpoint={bucket.region},"
        "parallel_count=16,multipart_size=16,max_stat_cache_size=200000,stat_cache_expire=900,enable_noobj_cache"
    )
    return _with_file(
        "credentials",
        f"{bucket.access_key}:{bucket.secret_key}\n",
        foreign("s3fs", bucket.name, "TARGET", "-f", "-o", options),
    )


def rclone(bucket: Bucket, mode: str) -> Serve:
    """Return how rclone serves it with a cache mode, the server's times, and names that are kept."""
    config = (
        f"[s]\ntype = s3\nprovider = Other\nendpoint = {bucket.endpoint}\naccess_key_id = {bucket.access_key}\n"
        f"secret_access_key = {bucket.secret_key}\nregion = {bucket.region}\nforce_path_style = true\n"
    )
    flags = (
        "--use-server-modtime --dir-cache-time 1h --attr-timeout 1h --s3-no-check-bucket --s3-no-head --s3-upload-concurrency 8 "
        "--buffer-size 0 --transfers 8 --vfs-write-back 0 --no-checksum"
    )
    if mode == "full":  # quicker for what is read in order; without a cache it only slows down what is not
        flags += " --vfs-read-chunk-streams 8 --vfs-read-chunk-size 4M"
    program = str(Path(sysconfig.get_path("scripts")) / "rclone")
    argv = (
        program,
        "mount",
        f"s:{bucket.name}",
        "TARGET",
        "--config",
        "WORK/../config",
        "--cache-dir",
        "WORK",
    )
    return _with_file("config", config, foreign(*argv, "--vfs-cache-mode", mode, *flags.split()))


def weed(bucket: Bucket) -> Serve:
    """Return how SeaweedFS' own client serves it, from its filer."""
    argv = (
        _script("weed"),
        "mount",
        f"-filer={bucket.filer}",
        f"-filer.path=/buckets/{bucket.name}",
        "-dir=TARGET",
    )
    return foreign(*argv, "-cacheDir=WORK", "-dirAutoCreate=false")


def gcsfuse(bucket: Bucket, program: Path) -> Serve:
    """Return how gcsfuse serves it, with its file cache and parallel downloads."""
    flags = (
        "--foreground --anonymous-access --implicit-dirs --enable-hns=false --file-cache-max-size-mb=-1 --file-cache-enable-parallel-downloads "
        "--metadata-cache-ttl-secs=3600 --stat-cache-max-size-mb=-1 --type-cache-max-size-mb=-1 --cache-dir=WORK"
    )
    return foreign(
        str(program),
        *flags.split(),
        f"--custom-endpoint={bucket.endpoint}/storage/v1/",
        bucket.name,
        "TARGET",
    )


def juicefs(bucket: Bucket, metadata: Path) -> Serve:
    """Return how JuiceFS serves what `juicefs_format` has made in a bucket."""
    argv = (_script("juicefs"), "mount", "--no-usage-report", "--cache-dir=WORK", "--entry-cache=3600", "--attr-cache=3600", "--dir-entry-cache=3600")  # fmt: skip
    return foreign(*argv, f"sqlite3://{metadata}", "TARGET")


def juicefs_format(bucket: Bucket, metadata: Path) -> list[str]:
    """Return the command that makes a JuiceFS filesystem in a bucket, with its metadata in a file of this machine."""
    return [
        *(_script("juicefs"), "format", "--storage", "s3", "--bucket", f"{bucket.endpoint}/{bucket.name}"),
        *("--access-key", bucket.access_key, "--secret-key", bucket.secret_key, "--no-update"),
        *(f"sqlite3://{metadata}", "bench"),
    ]  # fmt: skip


def _script(name: str) -> str:
    """Return a program that pip has installed beside this interpreter."""
    path = Path(sysconfig.get_path("scripts")) / name
    return str(path) if path.exists() else name


def _with_file(name: str, content: str, serve: Serve) -> Serve:
    """Have a file with credentials beside what a program is given."""

    @contextlib.contextmanager
    def serve_with(work: Path, source: Path) -> Iterator[Served]:
        place = work / name
        place.write_text(content)
        place.chmod(0o600)
        with serve(work, source) as served:
            yield served

    return serve_with
