"""Files that are read at random on a real mount, while others put new ones in their place: no byte of another version, and no more memory than was given."""

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.sidecar.objects.scripted_store import content_of
from tests.sidecar.objects.test_mount import mounted

pytestmark = [pytest.mark.fuse, pytest.mark.root, pytest.mark.timeout(120)]

_MIB = 1 << 20
_SIZE = 8 * _MIB + 777
_VERSIONS = 4
_READS = 250
_INTERPRETER_BYTES = 32 * _MIB  # what threads, stacks and libraries may take besides


class ReaderOfVersion(threading.Thread):
    """Reads one open file here and there, past the kernel's cache, and knows what must be there."""

    def __init__(self, path: Path, content: bytes, seed: int) -> None:
        super().__init__()
        self.content = content
        self.wrong: list[str] = []
        self.faults: list[int] = []
        self.done = 0
        self.is_over = threading.Event()
        self._descriptor = os.open(path, os.O_RDONLY)
        self._dice = random.Random(seed)

    def run(self) -> None:
        """Read until told to end, or what is open is not to be had any more."""
        try:
            while not self.is_over.is_set() and not self.wrong:
                self._read()
        except OSError as error:
            self.faults.append(error.errno or 0)
        finally:
            os.close(self._descriptor)

    def _read(self) -> None:
        size = self._dice.choice((512, 4096, 4096, 300_000, _MIB))
        offset = self._dice.randrange(_SIZE)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        got = os.pread(self._descriptor, size, offset)
        # What comes before a part that is gone is told first, the fault at the next read.
        if not got or got != self.content[offset : offset + len(got)]:
            self.wrong.append(f"{len(got)} of {size} at {offset}")
        self.done += 1


def memory_of(pid: int, what: str) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    ("memory", "cache"), [(32 * _MIB, 0), (4 * _MIB, 64 * _MIB)], ids=["in memory", "on the cache volume"]
)
def test_no_reader_sees_bytes_of_another_version(tmp_path: Path, memory: int, cache: int) -> None:
    options: dict[str, Any] = {"memoryCacheBytes": memory, "cacheBytes": cache, "blockSize": 256 << 10}
    with mounted(tmp_path, "one", **options) as volume:
        place = tmp_path / "objects" / "file"
        before = memory_of(volume.process.pid, "VmRSS:")
        readers: list[ReaderOfVersion] = []
        for version in range(_VERSIONS):
            content = content_of(_SIZE, version)
            (tmp_path / "new").write_bytes(content)
            os.replace(tmp_path / "new", place)
            newest = [
                ReaderOfVersion(volume.path / "file", content, version * 10 + number) for number in range(2)
            ]
            readers += newest
            for reader in newest:
                reader.start()
            while any(reader.done < _READS and reader.is_alive() for reader in newest):
                newest[0].is_over.wait(0.01)
            assert [reader.faults for reader in newest] == [[], []]
        for reader in readers:
            reader.is_over.set()
        for reader in readers:
            reader.join(60)
        assert [reader.wrong for reader in readers] == [[]] * len(readers)
        assert {fault for reader in readers for fault in reader.faults} <= {errno.ESTALE}
        taken = memory_of(volume.process.pid, "VmHWM:") - before
        assert taken <= memory + _INTERPRETER_BYTES
        assert cache or taken >= _SIZE
