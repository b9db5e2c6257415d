"""What is tortured and how: who dies, under which load."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

LOAD = ("writer", "log", "blocks", "lister", "keeper", "churn", "mapper", "locker", "ranges")
_LOST = ("ENOTCONN", "ECONNABORTED", "[Errno 107]", "[Errno 103]", "(107,", "(103,")


class Victim(Enum):
    """Whom it hits."""

    CHILD = "child"  # the process that serves
    CONTAINER = "container"  # the daemon's first process, and with it all others
    KEEPER = "keeper"
    HANG = "hang"  # the process that serves, stopped
    UPGRADE = "upgrade"  # nobody is hurt: the daemon is asked to let a fresh process go on
    BOTH = "both"  # keeper and daemon at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One kind of torture. The pause between two blows is drawn from `pause_s`, and begins when all is well again.

    `apps` work on the mount meanwhile. `options` are the volume's. `loses`: the connection may die with its open files, and only what
    is opened afterwards must work.
    """

    name: str
    victims: tuple[Victim, ...]
    apps: tuple[str, ...] = LOAD
    pause_s: tuple[float, float] = (0.02, 0.2)
    hung_after_s: int = 30
    options: tuple[tuple[str, str | int | bool], ...] = ()
    loses: bool = False

    def expects(self, error: str) -> bool:
        """Tell whether an application's error is what a connection that may be lost looks like to it."""
        return self.loses and error.startswith("prober") and any(word in error for word in _LOST)


_ALL = (
    Variant(name="quiet", victims=(Victim.CHILD,), apps=(), pause_s=(0.3, 0.7)),
    Variant(name="child", victims=(Victim.CHILD,)),
    Variant(name="blocks", victims=(Victim.CHILD,), apps=("blocks", "blocks")),
    Variant(name="writeback", victims=(Victim.CHILD,), options=(("writeback", True),)),
    Variant(name="container", victims=(Victim.CONTAINER,)),
    Variant(name="keeper", victims=(Victim.KEEPER,)),
    Variant(name="upgrade", victims=(Victim.UPGRADE,)),
    Variant(name="hang", victims=(Victim.HANG,), hung_after_s=1),
    Variant(name="mixed", victims=(Victim.CHILD, Victim.CONTAINER, Victim.KEEPER, Victim.UPGRADE)),
    Variant(name="both", victims=(Victim.BOTH,), apps=("reopener", "reopener"), loses=True),
)
VARIANTS: Mapping[str, Variant] = {variant.name: variant for variant in _ALL}
