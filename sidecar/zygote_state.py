"""Where a volume's takeover state lies, and which connection it belongs to."""

import contextlib
import os
from typing import Protocol

from sidecar.takeover.state import resumable_id
from sidemount.host.fuse_init import can_resend
from sidemount.host.handover import Serve

PARK_ENDS = 2  # of a `sidecar.takeover.park.Park`
_STATE = "state"


class Abilities(Protocol):
    """What decides whether this daemon's processes can succeed each other."""

    @property
    def runtime(self) -> str:
        """What pyfuse3 runs on."""
        ...

    @property
    def resend(self) -> bool:
        """Whether the kernel's RESEND may be used."""
        ...


def may_be_succeeded(serve: Serve, abilities: Abilities) -> bool:
    """Tell whether who serves this is to leave it to a successor. Only our own runtime runs what that takes."""
    is_possible = abilities.resend and abilities.runtime == "poll" and can_resend(serve.init)
    return serve.spec.takeover and is_possible


def lacks_resend(serve: Serve, abilities: Abilities) -> bool:
    """Tell whether a volume that is to have takeover goes without, because of the kernel alone (or as if)."""
    has_it = abilities.resend and can_resend(serve.init)
    return serve.spec.takeover and abilities.runtime == "poll" and not has_it


def state_dir(run_dir: str) -> str:
    """Return the directory of the state: in the volume's own of the pod, so it outlives the container and goes with the pod."""
    return f"{run_dir}/{_STATE}"


def make_state_dir(run_dir: str) -> str:
    """Make it, for this user alone, and return it. What is wrong with it is told by whoever wants to write into it."""
    directory = state_dir(run_dir)
    with contextlib.suppress(OSError):
        os.mkdir(directory, 0o700)
    return directory


def resumable_state(run_dir: str) -> str:
    """Return the id of the state that is there, "" if there is none that could be resumed."""
    return resumable_id(state_dir(run_dir))
