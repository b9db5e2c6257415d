"""ObservedStore: the pods with volumes of ours, and the classes, as lists and watches tell of them. One event loop's."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sidemount.host.cluster_reader import Trouble
from sidemount.host.live_kinds import FUSE_DRIVER_CLASS, Key, LiveKind
from sidemount.host.live_report import KindReport
from sidemount.model.names import INJECTED, INJECTED_LABEL
from webhook.observer.class_view import ClassView, read_class
from webhook.observer.pod_view import PodView, read_pod

POD = LiveKind(
    name="Pod",
    api_version="v1",
    plural="pods",
    is_namespaced=True,
    selector=f"{INJECTED_LABEL}={INJECTED}",
)
KINDS = (POD, FUSE_DRIVER_CLASS)

View = PodView | ClassView
Told = Callable[[View | None, View | None], None]
"""What an object was and what it is; None for not there."""


@dataclass(slots=True)
class ObservedState:
    """One kind. `heard_at` is the clock's time when the API server last spoke of it."""

    objects: dict[Key, View] = field(default_factory=dict)
    is_synced: bool = False
    is_live: bool = False
    trouble: str = ""
    heard_at: float | None = None
    lists: int = 0
    errors: Counter[Trouble] = field(default_factory=Counter)


class ObservedStore:
    """Implements `sidemount.host.kind_watch.WatchStore`."""

    def __init__(self, clock: Callable[[], float], told: Told) -> None:
        self._clock = clock
        self._told = told
        self.states = {kind.name: ObservedState() for kind in KINDS}

    @property
    def pods(self) -> Mapping[Key, PodView]:
        """Every pod that has a volume of ours."""
        found: Mapping[Key, Any] = self.states[POD.name].objects
        return found

    @property
    def classes(self) -> Mapping[Key, ClassView]:
        """Every class, in force or not."""
        found: Mapping[Key, Any] = self.states[FUSE_DRIVER_CLASS.name].objects
        return found

    @property
    def is_synced(self) -> bool:
        """Whether all kinds were listed once."""
        return all(state.is_synced for state in self.states.values())

    def reports(self) -> tuple[KindReport, ...]:
        """Return how well each kind is followed."""
        now = self._clock()
        return tuple(
            KindReport(
                kind=name,
                is_synced=state.is_synced,
                is_live=state.is_live,
                age_s=float("inf") if state.heard_at is None else now - state.heard_at,
                objects=len(state.objects),
                faults=sum(
                    isinstance(found, ClassView) and bool(found.faults) for found in state.objects.values()
                ),
                lists=state.lists,
                errors=dict(state.errors),
            )
            for name, state in self.states.items()
        )

    # What a watch tells ------------------------------------------------------------------------------

    def heard(self, kind: LiveKind) -> None:
        """Note that the API server spoke of a kind."""
        self.states[kind.name].heard_at = self._clock()

    def give_up(self, kind: LiveKind, why: str) -> None:
        """Refuse: there is nothing to observe without either kind."""
        raise AssertionError(f"{kind.name} is not optional")

    def begin_list(self, kind: LiveKind) -> dict[Key, View | None]:
        """Return what a list is gathered in."""
        return {}

    def read_listed(
        self, kind: LiveKind, manifest: Mapping[str, Any], listing: dict[Key, View | None]
    ) -> None:
        """Add an object of a list."""
        self.read(kind, manifest, listing)

    def end_list(self, kind: LiveKind, listing: dict[Key, View | None]) -> None:
        """Take over a whole list: what is not in it is gone."""
        state = self.states[kind.name]
        state.lists += 1
        self.heard(kind)
        gone = dict.fromkeys(state.objects.keys() - listing.keys())
        self.apply(kind, {**gone, **listing})
        state.is_synced = True

    def read(self, kind: LiveKind, manifest: Mapping[str, Any], into: dict[Key, View | None]) -> Key | None:
        """Add an object; None for one that there is nothing to keep of. Return its key, None if it has none."""
        key = _key(kind, manifest)
        if key is None:
            self.states[kind.name].errors[Trouble.MALFORMED] += 1
            return None
        into[key] = read_pod(manifest) if kind is POD else read_class(manifest)
        return key

    def read_deleted(self, kind: LiveKind, manifest: Mapping[str, Any], into: dict[Key, Any]) -> None:
        """Add that an object is gone, or has lost what it was found by."""
        key = _key(kind, manifest)
        if key is not None:
            into[key] = None

    def apply(self, kind: LiveKind, changes: Mapping[Key, View | None]) -> None:
        """Take over what objects are now."""
        objects = self.states[kind.name].objects
        for key, now in changes.items():
            before = objects.get(key)
            if now is None:
                objects.pop(key, None)
            else:
                objects[key] = now
            if now != before:
                self._told(before, now)


def _key(kind: LiveKind, manifest: Mapping[str, Any]) -> Key | None:
    metadata = manifest.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, namespace = metadata.get("name"), metadata.get("namespace", "")
    if not isinstance(name, str) or not name or not isinstance(namespace, str):
        return None
    return kind.key(namespace, name)
