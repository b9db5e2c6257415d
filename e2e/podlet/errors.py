"""What can go wrong when a pod is run, told to a person."""


class PodletError(Exception):
    """Base. The message says what, of which object, why, and the way out."""


class PodRefused(PodletError):
    """An API server or a kubelet would refuse this pod, or podlet cannot run it truthfully."""


class NotInTime(PodletError):
    """The pod did not get there before the deadline."""


class PodStuck(PodletError):
    """The pod cannot end: a kubelet would show it Terminating for ever."""


class PodLeaked(PodletError):
    """The pod ended and left something behind."""


class NodeFailure(PodletError):
    """The node itself cannot work on this machine, or it died."""
