"""Run by a test in a mount namespace whose source is a tiny tmpfs: fills it through the mount and empties it again."""

import os
import sys
from pathlib import Path

from tests.sidecar.directory.harness import mounted, outcome


def main(scratch: Path, source: Path) -> None:
    """Fill blocks, then inodes."""
    with mounted(scratch, source) as volume:
        fd = os.open(volume.path / "big", os.O_RDWR | os.O_CREAT, 0o644)
        written = 0
        while isinstance(count := outcome(os.write, fd, b"x" * 65536), int):
            written += count
        assert count == "ENOSPC", count
        assert written == os.fstat(fd).st_size == (source / "big").stat().st_size
        assert os.pread(fd, written, 0) == b"x" * written
        assert os.statvfs(volume.path).f_bavail == 0
        os.ftruncate(fd, 0)
        assert os.pwrite(fd, b"y" * 65536, 0) == 65536
        os.close(fd)
        number = 0
        while (result := outcome(os.mkdir, volume.path / f"d{number}")) is None:
            number += 1
        assert result == "ENOSPC", result
        assert outcome(os.symlink, "x", volume.path / "l") == "ENOSPC"
        os.rmdir(volume.path / "d0")
        os.mkdir(volume.path / "again")
        assert (volume.path / "big").read_bytes() == b"y" * 65536


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
