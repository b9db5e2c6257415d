"""What a pod's annotations ask for, read once for each text of them."""

from dataclasses import dataclass
from functools import lru_cache

from sidemount.model.errors import VolumeError
from sidemount.model.names import INJECT_ANNOTATION
from sidemount.model.requests import parse_annotations, parse_inject
from sidemount.model.volume_request import Unsupplied, VolumeRequest
from webhook.shape import Pairs

_REMEMBERED = 512
_REMEMBERED_TEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What our annotations say.

    `requests` are the supplied ones, sorted by name. `fault` is why the annotations cannot be read; then nothing else counts.
    `asks` says that a volume annotation is there at all. `opted_out` is None where the annotation is absent.
    """

    requests: tuple[VolumeRequest, ...] = ()
    names: frozenset[str] = frozenset()
    asks: bool = False
    opted_out: bool | None = None
    inject_fault: VolumeError | None = None
    fault: VolumeError | None = None

    @property
    def is_nothing_supplied(self) -> bool:
        """Whether volumes are declared and none is supplied: the pod stays as it is."""
        return self.asks and self.fault is None and not self.requests


NOTHING = Asked()


def read_asked(ours: Pairs) -> Asked:
    """Read our annotations, in any order. Never raises: faults are part of the result."""
    if not ours:
        return NOTHING
    if sum([len(value) for _, value in ours]) > _REMEMBERED_TEXT:
        return _read(ours)
    return _remembered(ours)


@lru_cache(maxsize=_REMEMBERED)
def _remembered(ours: Pairs) -> Asked:
    return _read(ours)


def _read(ours: Pairs) -> Asked:
    annotations = dict(ours)
    inject = inject_fault = None
    try:
        inject = parse_inject(annotations)
    except VolumeError as error:
        inject_fault = error
    opted_out = None if inject is None else not inject
    asks = any(key != INJECT_ANNOTATION for key in annotations)
    try:
        requests = parse_annotations(annotations)
    except VolumeError as error:
        return Asked(asks=asks, opted_out=opted_out, inject_fault=inject_fault, fault=error)
    supplied = tuple(request for request in requests if not isinstance(request.origin, Unsupplied))
    return Asked(
        requests=supplied,
        names=frozenset(request.name for request in supplied),
        asks=asks,
        opted_out=opted_out,
        inject_fault=inject_fault,
    )
