"""PodView: what is kept of a pod that carries volumes of ours. Pure; of a pod of any content."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidemount.model.keeper_log import VOLUMES_MAX
from sidemount.model.names import (
    KEEPER_CONTAINER,
    RESERVED_PREFIX,
    STATUS_ANNOTATION,
    daemon_container,
    subdomain_fault,
    volume_name_fault,
)
from sidemount.model.timestamp import parse_timestamp_ms
from sidemount.model.volume_request import Delivery

_STATUS_MAX = 1 << 16
_ID_MAX = 128
_WORD_MAX = 64
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class VolumeView:
    """One volume, as the webhook said when it injected it."""

    name: str
    driver_class: str
    delivery: str
    reason: str


@dataclass(frozen=True, slots=True)
class ContainerView:
    """The state of a container of ours. `container_id` is "" while none was made; `killed_at_ms`: the last death of memory.

    `is_started`: its startup probe has succeeded, so its volume is live again.
    """

    name: str
    container_id: str
    restarts: int
    state: str
    is_started: bool
    killed_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod. `containers` are those of ours that have a state, by name."""

    namespace: str
    name: str
    uid: str
    created_ms: int
    is_over: bool
    has_keeper: bool
    volumes: tuple[VolumeView, ...]
    containers: tuple[ContainerView, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def keeper(self) -> ContainerView | None:
        """The keeper, None while nothing is known of it."""
        return next((found for found in self.containers if found.name == KEEPER_CONTAINER), None)

    def class_of(self, volume: str) -> str:
        """Return a volume's class, "" if the webhook has not named such a volume."""
        return next((found.driver_class for found in self.volumes if found.name == volume), "")

    def volume_of(self, container: str) -> str:
        """Return the volume that a container serves, "" if it is none's."""
        return next((found.name for found in self.volumes if daemon_container(found.name) == container), "")


def read_pod(manifest: Mapping[str, Any]) -> PodView | None:
    """Return what is kept of a pod, None if it has nothing that could be observed: no name, or no volume that was injected.

    The label by which pods are found is anybody's to set, so it says nothing here, and so is the annotation where the webhook is
    not asked. A pod with a keeper is one that the admission policies have let in, so without one there is no sidecar's volume.
    """
    metadata = _mapping(manifest.get("metadata"))
    namespace, name, uid = (_text(metadata.get(field), 253) for field in ("namespace", "name", "uid"))
    if subdomain_fault(name) or subdomain_fault(namespace) or not uid:
        return None
    inits = _mappings(_mapping(manifest.get("spec")).get("initContainers"))
    has_keeper = any(container.get("name") == KEEPER_CONTAINER for container in inits)
    named = _volumes(_mapping(metadata.get("annotations")).get(STATUS_ANNOTATION))
    volumes = tuple(volume for volume in named if has_keeper or volume.delivery == Delivery.CSI.value)
    if not volumes:
        return None
    status = _mapping(manifest.get("status"))
    return PodView(
        namespace=namespace,
        name=name,
        uid=uid,
        created_ms=parse_timestamp_ms(metadata.get("creationTimestamp")) or 0,
        is_over=status.get("phase") in _OVER,
        has_keeper=has_keeper,
        volumes=volumes,
        containers=_containers(status.get("initContainerStatuses")),
    )


def _volumes(text: object) -> tuple[VolumeView, ...]:
    if not isinstance(text, str) or len(text) > _STATUS_MAX:
        return ()
    try:
        found = _mapping(_mapping(json.loads(text)).get("volumes"))
    except (ValueError, RecursionError):
        return ()
    volumes = []
    for name, told in list(found.items())[:VOLUMES_MAX]:
        fields = _mapping(told)
        driver_class = _text(fields.get("class"), 253)
        if volume_name_fault(name) or (driver_class and subdomain_fault(driver_class)):
            continue
        words = [_word(fields.get(field)) for field in ("delivery", "reason")]
        volumes.append(VolumeView(name, driver_class, *words))
    return tuple(volumes)


def _containers(statuses: object) -> tuple[ContainerView, ...]:
    found = []
    for status in _mappings(statuses)[: VOLUMES_MAX * 2]:
        name = _text(status.get("name"), _WORD_MAX)
        if name.startswith(RESERVED_PREFIX):
            found.append(_container(name, status))
    return tuple(sorted(found, key=lambda container: container.name)[: VOLUMES_MAX + 1])


def _container(name: str, status: Mapping[str, Any]) -> ContainerView:
    state = _mapping(status.get("state"))
    restarts = status.get("restartCount")
    killed = [
        parse_timestamp_ms(ended.get("finishedAt"))
        for ended in (
            _mapping(_mapping(status.get(field)).get("terminated")) for field in ("lastState", "state")
        )
        if ended.get("reason") == "OOMKilled"
    ]
    return ContainerView(
        name=name,
        container_id=_text(status.get("containerID"), _ID_MAX),
        restarts=restarts if isinstance(restarts, int) and 0 <= restarts < 1 << 31 else 0,
        state=next((kind for kind in ("running", "waiting", "terminated") if state.get(kind)), ""),
        is_started=status.get("started") is True,
        killed_at_ms=max((moment for moment in killed if moment is not None), default=None),
    )


def _word(value: object) -> str:
    """Return a code such as SidecarPreferred, "" if it is none."""
    return (
        value
        if isinstance(value, str) and value.isascii() and value.isalnum() and len(value) <= _WORD_MAX
        else ""
    )


def _text(value: object, longest: int) -> str:
    return value if isinstance(value, str) and len(value) <= longest else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
