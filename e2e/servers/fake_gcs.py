"""fake-gcs-server: Google Cloud Storage for tests, without credentials."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.servers.process import LOOPBACK, answers, free_port, start
from e2e.servers.tools import FAKE_GCS, go_program


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsPlace:
    """A bucket of it."""

    endpoint: str
    bucket: str

    @property
    def port(self) -> int:
        """The endpoint's."""
        return int(self.endpoint.rpartition(":")[2])


@contextmanager
def fake_gcs(
    directory: Path, bucket: str = "bucket", *, in_memory: bool = True, is_ready: bool = False
) -> Iterator[GcsPlace]:
    """Run it with a bucket: what the directory's `data` has, or in memory, where any key can be. Raises as `versity` does.

    `is_ready`: an earlier run has looked at the files that there are; it would do that again, file by file.
    """
    program = go_program(FAKE_GCS)
    (directory / "data" / bucket).mkdir(parents=True, exist_ok=True)
    ports: list[int] = []

    def plan() -> tuple[Sequence[str], Callable[[], bool]]:
        port = free_port()
        ports[:] = [port]
        named = {
            "scheme": "http",
            "host": LOOPBACK,
            "port": port,
            "public-host": f"{LOOPBACK}:{port}",
            "external-url": f"http://{LOOPBACK}:{port}",
            "backend": "memory" if in_memory else "filesystem",
            "log-level": "warn",
            "filesystem-root": directory / "data",
        }
        if not is_ready:
            # What it is to begin with, with the memory too, which is why a bucket is a directory here.
            named["data"] = directory / "data"
        argv = [str(program), *(f"-{name}={value}" for name, value in named.items())]
        return argv, lambda: answers(port, f"/storage/v1/b/{bucket}", below=300)

    server = start(plan, directory / "fake-gcs-server.log")
    try:
        yield GcsPlace(endpoint=f"http://{LOOPBACK}:{ports[0]}", bucket=bucket)
    finally:
        server.stop()
