"""The source of the demo's volume: a few files, and what they were before."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

POEM = "The keeper holds the door,\nthe daemon reads aloud;\nif one of them falls silent\nthe other keeps the crowd.\n"


@dataclass(frozen=True, slots=True)
class FileState:
    """What must not change of a file: identity, content, owner, mode and time of modification."""

    inode: int
    digest: str
    mode: int
    owner: tuple[int, int]
    modified_ns: int


def make_library(directory: Path) -> None:
    """Write the files."""
    (directory / "shelf").mkdir(parents=True)
    (directory / "incoming").mkdir(mode=0o777)
    (directory / "incoming").chmod(0o777)
    (directory / "poem.txt").write_text(POEM)
    (directory / "shelf" / "pi.txt").write_text("3.14159265358979\n")
    (directory / "shelf" / "noise.bin").write_bytes(os.urandom(1 << 20))


def read_states(directory: Path) -> dict[str, FileState]:
    """Return the state of every file below the directory, by relative path."""
    return {
        str(path.relative_to(directory)): _state(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _state(path: Path) -> FileState:
    status = path.stat()
    return FileState(
        inode=status.st_ino,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        mode=status.st_mode,
        owner=(status.st_uid, status.st_gid),
        modified_ns=status.st_mtime_ns,
    )
