"""What is known of one volume while its keeper runs, and what all volumes of a keeper share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sidemount.host.fuse_mount import FuseConnection
from sidemount.host.fusectl import FuseControl
from sidemount.host.jobs import Jobs, Room
from sidemount.host.limited_log import LimitedLog
from sidemount.host.limits import Limits
from sidemount.host.logs import EventLog
from sidemount.host.loop import Loop
from sidemount.host.session import Event, Session
from sidemount.host.volume_backings import Backings
from sidemount.host.volume_daemon import Daemon
from sidemount.host.volume_legacy import Legacy
from sidemount.host.volume_places import VolumePlaces
from sidemount.host.volume_source import SourceDesk
from sidemount.model.errors import HostFailure
from sidemount.model.mountspec import MountSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Shared by all volumes. `room` is for their children. `staging` is a directory for kernels before 5.2; `control` None if the kernel gives none."""

    loop: Loop
    limits: Limits
    control: FuseControl | None
    room: Room
    staging: str


class Post(Protocol):
    """Gives an event to the volume's session. `fault` says why, where the event is a failure."""

    def __call__(self, event: Event, *, able: bool = False, fault: str = "") -> None:
        """Take the event."""
        ...


@dataclass(slots=True, kw_only=True)
class VolumeState:
    """One volume. `number` is the connection's in fusectl, None while unknown; `fault` the latest one, for probes.

    `heard` is the log for what others make us say, as often as they like. `had_daemon`: one has served it under this keeper. `directory` is what a daemon without a path to its source is given. `hung` says why the daemon's container has to be restarted, "" if it has not; `heard_at` is when a daemon was heard of last.
    """

    spec: MountSpec
    source: str
    places: VolumePlaces
    around: Surroundings
    jobs: Jobs
    log: EventLog
    heard: LimitedLog
    post: Post
    finished: Callable[[], None]
    session: Session
    legacy: Legacy
    directory: SourceDesk | None = None
    connection: FuseConnection | None = None
    number: int | None = None
    daemon: Daemon | None = None
    had_daemon: bool = False
    fault: str = ""
    hung: str = ""
    heard_at: float = 0.0
    backings: Backings = field(init=False)

    def __post_init__(self) -> None:
        self.backings = Backings(self)

    def waiting(self) -> int | None:
        """Return how many requests of the volume have no answer; None if that cannot be known, or the connection is gone."""
        if self.number is None or self.around.control is None:
            return None
        try:
            return self.around.control.waiting(self.number)
        except HostFailure:
            return None

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Run `callback` after a while."""
        self.around.loop.call_later(delay_s, callback)
