"""What obstore does with a bucket, without a filesystem: the ceiling of the object-store benchmark, and who looks what has arrived."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import obstore
from obstore.store import S3Store

from e2e.bench.objects_subjects import Bucket

NAME = "obstore, no filesystem"
_BLOCK = 2 << 20
_READERS = 4
_PART = 8 << 20
_SMALL_READS = 2000
_ARRIVED_S = 120.0


class Direct:
    """One bucket, asked by obstore."""

    def __init__(self, bucket: Bucket) -> None:
        self._store = S3Store(
            bucket.name,
            endpoint=bucket.endpoint,
            access_key_id=bucket.access_key,
            secret_access_key=bucket.secret_key,
            region=bucket.region,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def sequential(self, key: str) -> float:
        """Read an object, four ranges of 2 MiB at a time. Return MB/s."""
        size = obstore.head(self._store, key)["size"]

        def read(start: int) -> int:
            return len(obstore.get_range(self._store, key, start=start, end=min(start + _BLOCK, size)))

        began = time.perf_counter()
        with ThreadPoolExecutor(_READERS) as pool:
            got = sum(pool.map(read, range(0, size, _BLOCK)))
        return got / (time.perf_counter() - began) / 1e6

    def at_random(self, key: str, size: int) -> float:
        """Read ranges of a size at random places, one after the other. Return how many a second."""
        places = obstore.head(self._store, key)["size"] // size
        chosen = random.Random(7)
        began = time.perf_counter()
        for _ in range(_SMALL_READS):
            start = chosen.randrange(places) * size
            obstore.get_range(self._store, key, start=start, end=start + size)
        return _SMALL_READS / (time.perf_counter() - began)

    def listing(self, prefix: str) -> float:
        """List a directory. Return milliseconds."""
        began = time.perf_counter()
        obstore.list_with_delimiter(self._store, prefix)
        return (time.perf_counter() - began) * 1e3

    def write(self, key: str, size: int) -> float:
        """Upload an object in parts. Return MB/s."""
        piece = random.Random(7).randbytes(1 << 20)
        began = time.perf_counter()
        obstore.put(self._store, key, (piece for _ in range(size >> 20)), chunk_size=_PART, max_concurrency=4)
        return size / (time.perf_counter() - began) / 1e6

    def wait_for(self, key: str, size: int) -> None:
        """Wait until an object has arrived whole: some clients upload after the file was closed. Raises TimeoutError."""
        until = time.monotonic() + _ARRIVED_S
        while time.monotonic() < until:
            try:
                if obstore.head(self._store, key)["size"] == size:
                    return
            except FileNotFoundError:
                pass
            time.sleep(0.005)
        raise TimeoutError(f"{key} has not arrived after {_ARRIVED_S:g} s")

    def remove(self, key: str) -> None:
        """Remove an object."""
        obstore.delete(self._store, key)
