"""A Secret's volume as kubelet writes it: a directory of a moment, `..data` to it, a link a key; replaced by one rename."""

import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path

_numbers = count(1)


def write_secret(directory: Path, values: Mapping[str, str]) -> None:
    """Write it, or replace what is there.

    Source: https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/volume/util/atomic_writer.go
    """
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "..data"
    before = os.readlink(data) if data.is_symlink() else ""
    moment = directory / f"..2026_11_30_{next(_numbers)}"
    moment.mkdir(mode=0o755)
    for key, value in values.items():
        (moment / key).write_text(value)
    aside = directory / "..data_tmp"
    aside.symlink_to(moment.name)
    aside.rename(data)
    for key in values:
        if not (directory / key).is_symlink():
            (directory / key).symlink_to(f"..data/{key}")
    for link in directory.iterdir():
        if link.is_symlink() and link.name not in values and link.name != "..data":
            link.unlink()
    if before:
        shutil.rmtree(directory / before)
