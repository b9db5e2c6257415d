"""PodView: what a pod on a cluster tells of our volumes in it. Anything may stand in one: nothing here raises."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sidemount.model.errors import BadMessage
from sidemount.model.keeper_log import told
from sidemount.model.mountspec import KeeperMount, decode_keeper_config
from sidemount.model.names import (
    CSI_DRIVER,
    INJECT_ANNOTATION,
    INLINE_PREFIX,
    KEEPER_CONTAINER,
    MOUNTS_ENV,
    RESERVED_PREFIX,
    STATUS_ANNOTATION,
    daemon_container,
    inline_volume,
)
from sidemount.model.source_uri import redacted_source
from webhook.asked import read_asked
from webhook.shape import is_request

PATIENT = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Why a container waits while nothing is wrong."""
_STATUS_MAX = 1 << 20
_NAME_MAX = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """One of our containers. `state` is running, waiting, terminated, or "" while kubelet has said nothing of it."""

    name: str
    state: str = ""
    reason: str = ""
    message: str = ""
    is_started: bool = False
    restarts: int = 0
    started_ms: int = 0
    last_end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolume:
    """One volume of ours. `views` are (sub-path, read-only) pairs; `container` serves it, None if the pod lacks it.

    `is_inline`: it is a CSI volume of the pod itself, not a claim's.
    """

    name: str
    driver_class: str = ""
    source: str = ""
    delivery: str = ""
    reason: str = ""
    sub_path: str = ""
    read_only: bool = False
    is_inline: bool = False
    takeover: bool = False
    views: tuple[tuple[str, bool], ...] = ()
    container: ContainerView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """One pod. `missing` are volumes that it asks for and does not carry; `faults` what of it cannot be read."""

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    phase: str = ""
    is_ending: bool = False
    is_initialized: bool = False
    pending: str = ""
    created_ms: int = 0
    keeper: ContainerView | None = None
    volumes: tuple[PodVolume, ...] = ()
    missing: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.phase in ("Succeeded", "Failed")


def read_pod(manifest: Mapping[str, Any]) -> PodView | None:
    """Return what a pod tells, None if it has nothing to do with us."""
    metadata, spec, status = (mapping(manifest.get(key)) for key in ("metadata", "spec", "status"))
    annotations = {k: v for k, v in mapping(metadata.get("annotations")).items() if isinstance(v, str)}
    containers = {text(each.get("name")): each for each in mappings(spec.get("initContainers"))}
    ours = {name: each for name, each in containers.items() if name.startswith(RESERVED_PREFIX)}
    asked = tuple(
        pair for pair in annotations.items() if is_request(pair[0]) and pair[0] != INJECT_ANNOTATION
    )
    inline, parts = _inline(spec)
    if not ours and not asked and STATUS_ANNOTATION not in annotations and not inline:
        return None
    faults: list[str] = []
    views = {name: container_view(name, status.get("initContainerStatuses")) for name in ours}
    stated = _stated(annotations.get(STATUS_ANNOTATION), faults)
    mounts = _mounts(ours.get(KEEPER_CONTAINER), faults)
    volumes = tuple(_volumes(mounts, stated, inline, parts, views))
    wanted = {
        *_wanted(annotations),
        *(name for name, said in stated.items() if said.get("delivery") == "sidecar"),
    }
    conditions = {text(each.get("type")): each for each in mappings(status.get("conditions"))}
    return PodView(
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        node=text(spec.get("nodeName")),
        phase=text(status.get("phase")),
        is_ending=metadata.get("deletionTimestamp") is not None,
        is_initialized=mapping(conditions.get("Initialized")).get("status") == "True",
        pending=pending(mapping(conditions.get("PodScheduled"))),
        created_ms=moment_ms(metadata.get("creationTimestamp")),
        keeper=views.get(KEEPER_CONTAINER),
        volumes=volumes,
        missing=tuple(sorted(wanted - {volume.name for volume in volumes}))
        if KEEPER_CONTAINER not in ours or mounts
        else (),
        faults=tuple(faults),
    )


def _volumes(
    mounts: tuple[KeeperMount, ...],
    stated: Mapping[str, Mapping[str, str]],
    inline: Mapping[str, Mapping[str, Any]],
    parts: Mapping[str, tuple[tuple[str, bool], ...]],
    views: Mapping[str, ContainerView],
) -> Iterator[PodVolume]:
    for mount in mounts:
        spec = mount.spec
        yield PodVolume(
            name=spec.volume,
            driver_class=told(spec.driver_class),
            source=told(redacted_source(spec.source)),
            delivery="sidecar",
            reason=stated.get(spec.volume, {}).get("reason", ""),
            sub_path=spec.sub_path,
            read_only=spec.read_only,
            takeover=spec.takeover,
            views=tuple((view.sub_path, view.read_only) for view in mount.views),
            container=views.get(daemon_container(spec.volume)),
        )
    served = {mount.spec.volume for mount in mounts}
    for name in sorted(
        {*inline, *(name for name, said in stated.items() if said.get("delivery") == "csi")} - served
    ):
        said, source = stated.get(name, {}), inline.get(name, {})
        context = mapping(source.get("volumeAttributes"))
        yield PodVolume(
            name=name,
            driver_class=said.get("class") or told(text(context.get("class"))),
            source=told(redacted_source(text(context.get("source")))),
            delivery="csi",
            reason=said.get("reason", ""),
            sub_path=told(text(context.get("subPath"))),
            read_only=source.get("readOnly") is True,
            is_inline=name in inline,
            views=parts.get(name, ()),
        )


def _wanted(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the volumes that annotations ask for; none where they cannot be read, or opt out."""
    asked = read_asked(tuple(pair for pair in annotations.items() if is_request(pair[0])))
    return frozenset() if asked.opted_out else asked.names


def _inline(
    spec: Mapping[str, Any],
) -> tuple[dict[str, Mapping[str, Any]], dict[str, tuple[tuple[str, bool], ...]]]:
    """Return the inline volumes of ours by their names, and of each the parts that further volumes show: sub-path, read-only."""
    found: dict[str, Mapping[str, Any]] = {}
    for volume in mappings(spec.get("volumes")):
        source = mapping(volume.get("csi"))
        if source.get("driver") == CSI_DRIVER:
            found[text(volume.get("name"))] = source
    parts: dict[str, tuple[tuple[str, bool], ...]] = {}
    for name in sorted(name for name in found if name.startswith(INLINE_PREFIX)):
        sub_path, read_only = _sub_path(found[name]), found[name].get("readOnly") is True
        for owner, source in found.items():
            root = _sub_path(source)
            beneath = sub_path.removeprefix(root).removeprefix("/") if root else sub_path
            if inline_volume(owner, beneath, read_only) == name:
                parts[owner] = (*parts.get(owner, ()), (told(beneath), read_only))
                del found[name]
                break
    return found, parts


def _sub_path(source: Mapping[str, Any]) -> str:
    return text(mapping(source.get("volumeAttributes")).get("subPath"))


def _stated(annotation: str | None, faults: list[str]) -> dict[str, dict[str, str]]:
    """Return what the status annotation says of each volume."""
    if annotation is None:
        return {}
    try:
        found = json.loads(annotation) if len(annotation) <= _STATUS_MAX else None
    except (ValueError, RecursionError):
        found = None
    volumes = mapping(found).get("volumes")
    if not isinstance(volumes, dict):
        faults.append(f"the annotation {STATUS_ANNOTATION} is not as the webhook writes it")
        return {}
    return {
        told(name): {key: told(value) for key, value in said.items() if isinstance(value, str)}
        for name, said in volumes.items()
        if isinstance(said, dict) and 0 < len(name) <= _NAME_MAX
    }


def _mounts(keeper: Mapping[str, Any] | None, faults: list[str]) -> tuple[KeeperMount, ...]:
    """Return what the keeper was told to mount."""
    if keeper is None:
        return ()
    values = [each.get("value") for each in mappings(keeper.get("env")) if each.get("name") == MOUNTS_ENV]
    try:
        return decode_keeper_config(text(values[0] if values else "")).mounts
    except BadMessage as error:
        faults.append(f"the volumes of its {KEEPER_CONTAINER} cannot be read ({told(str(error))})")
        return ()


def container_view(name: str, statuses: object) -> ContainerView:
    """Return what the statuses of a pod's containers tell of one of them."""
    found = next((each for each in mappings(statuses) if each.get("name") == name), {})
    state = mapping(found.get("state"))
    kind = next(
        (kind for kind in ("running", "waiting", "terminated") if isinstance(state.get(kind), dict)), ""
    )
    present, last = mapping(state.get(kind)), mapping(mapping(found.get("lastState")).get("terminated"))
    restarts = found.get("restartCount")
    return ContainerView(
        name=name,
        state=kind,
        reason=_end(present) if kind == "terminated" else told(text(present.get("reason"))),
        message=told(text(present.get("message"))),
        is_started=found.get("started") is True,
        restarts=restarts if type(restarts) is int and restarts >= 0 else 0,
        started_ms=moment_ms(present.get("startedAt")),
        last_end=_end(last) if last else "",
    )


def _end(terminated: Mapping[str, Any]) -> str:
    reason, code = told(text(terminated.get("reason"))), terminated.get("exitCode")
    return f"{reason or 'ended'}, exit code {code}" if type(code) is int else reason or "ended"


def pending(scheduled: Mapping[str, Any]) -> str:
    """Return why a pod is not scheduled, by its condition PodScheduled; "" if it is."""
    if scheduled.get("status") != "False":
        return ""
    return told(
        ": ".join(part for part in (text(scheduled.get("reason")), text(scheduled.get("message"))) if part)
    )


def moment_ms(value: object) -> int:
    """Return a moment of Kubernetes' in milliseconds since 1970, 0 if it is none."""
    if not isinstance(value, str):
        return 0
    try:
        at = datetime.fromisoformat(value)
        return max(0, int(at.timestamp() * 1000)) if at.tzinfo is not None else 0
    except (ValueError, OverflowError):
        return 0


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping, empty if the value is none."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings of a list, none if the value is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """Return a text, empty if the value is none."""
    return value if isinstance(value, str) else ""
