"""The one sentence that a container leaves when it ends with a failure, for `kubectl describe pod` to show.

Source: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

import contextlib
import os

from sidemount.model.errors import VolumeError

_PLACE = "/dev/termination-log"  # kubelet's file; there is none outside of a pod
_BYTES_MAX = 2048


def leave_last_words(error: VolumeError, place: str = _PLACE) -> None:
    """Leave what went wrong, why, and the way out. That it cannot be left is no failure of its own."""
    way_out = f"; {error.hint}" if error.hint else ""
    text = f"{error.message} ({error.reason.value}){way_out}\n".encode("utf-8", "replace")
    with contextlib.suppress(OSError):
        descriptor = os.open(place, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, text[:_BYTES_MAX])
        finally:
            os.close(descriptor)
