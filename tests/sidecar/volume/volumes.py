"""Volumes, and what they hold."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from sidemount.host import budget
from sidemount.model.mountspec import OptionValue
from tests.sidecar.directory.harness import Mounted, mounted

KI = 1 << 10
MI = 1 << 20


def make_volume(directory: Path, limit: int) -> Path:
    """Make a volume that holds nothing."""
    (directory / "data").mkdir(parents=True)
    budget.create(str(directory), limit)
    return directory


def used(source: Path) -> int:
    """Return how much a volume says that it holds."""
    return budget.read(str(source)).used


def held(source: Path) -> int:
    """Return how much a volume's files with a name hold."""
    return budget.measure(str(source))


def mount(
    scratch: Path, source: Path, *arguments: str, **options: OptionValue
) -> AbstractContextManager[Mounted]:
    """Mount a volume."""
    scratch.mkdir(exist_ok=True)
    return mounted(
        scratch, source, "--filesystem", "volume", "--runtime", "poll", *arguments, options=options
    )


def df(path: Path) -> tuple[int, int]:
    """Return size and room in bytes, as `df` works them out."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
