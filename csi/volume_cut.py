"""Consistent cuts: the files of a volume as they were at one moment, though it is mounted and written to."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from csi.volume_copy import Copied, Progress, Round, TreeCopy
from csi.volume_tree import Stop, check_no_mounts
from sidemount.host import budget
from sidemount.host.logs import log
from sidemount.model.pool_layout import data_dir

COPIED = "copied"  # in the directory of what is being made
_ROUNDS = 6
_LITTLE_BYTES = 32 << 20
_LITTLE_FILES = 500
_HOLD_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What was copied, and when it was so."""

    size_bytes: int
    cut_ns: int


def cut_volume(
    volume: str,
    target: str,
    clock: Callable[[], int],
    stop: Stop,
    observe: Callable[[str], None],
    progress: Progress,
) -> Cut:
    """Make the files in `target` those of `volume` at one moment; both are directories with `data` in them.

    Goes on where an earlier one was. Raises VolumeError, OSError.
    """
    check_no_mounts(volume)
    copied = Copied(f"{target}/{COPIED}")
    try:
        copy = TreeCopy(data_dir(volume), data_dir(target), copied, stop, clock, progress)
        for _ in range(_ROUNDS):
            observe("before round")
            done = copy.run(is_still=False)
            _tell(volume, done)
            if done.copied_bytes <= _LITTLE_BYTES and done.copied_files <= _LITTLE_FILES:
                break
        observe("before hold")
        began = time.monotonic()
        with budget.hold_still(volume, _HOLD_S):
            cut_ns = time.time_ns()
            done = copy.run(is_still=True)
        _tell(volume, done, held_s=round(time.monotonic() - began, 3))
        observe("after hold")
    finally:
        copied.close()
    return Cut(size_bytes=done.size_bytes, cut_ns=cut_ns)


def copy_snapshot(
    snapshot: str, target: str, stop: Stop, observe: Callable[[str], None], progress: Progress
) -> Cut:
    """Make the files in `target` those of a snapshot, which never change. Raises VolumeError, OSError."""
    check_no_mounts(snapshot)
    copied = Copied(f"{target}/{COPIED}")
    try:
        observe("before copy")
        copy = TreeCopy(data_dir(snapshot), data_dir(target), copied, stop, None, progress)
        done = copy.run(is_still=True)
        _tell(snapshot, done)
        observe("after copy")
    finally:
        copied.close()
    return Cut(size_bytes=done.size_bytes, cut_ns=time.time_ns())


def _tell(source: str, done: Round, **more: object) -> None:
    log("csi.pool").info(
        "copied",
        source=os.path.basename(source),
        files=done.files,
        copied_files=done.copied_files,
        copied_bytes=done.copied_bytes,
        **more,
    )
