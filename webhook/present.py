"""What a pod carries of ours already: a second round of admission, or somebody's copy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidemount.model.errors import BadMessage, InvalidRequest, PolicyDenied, Reason, shown
from sidemount.model.mountspec import KeeperConfig, decode_keeper_config
from sidemount.model.names import (
    KEEPER_CONTAINER,
    MOUNTS_VOLUME,
    STATUS_ANNOTATION,
    daemon_container,
    view_name,
)
from webhook.inline import is_inline_view
from webhook.own_container import mounts_env
from webhook.render import CLAIM_ENV
from webhook.shape import is_own_container, is_reserved
from webhook.views import KnownViews

INIT = "initContainers"
EPHEMERAL = "ephemeralContainers"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnContainer:
    """A container of our name, where it is in initContainers and what it says."""

    index: int
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Everything of ours that a pod carries: without a keeper, at most volumes that show parts of inline ones.

    `claims` is claim by volume, for volumes that no annotation names. `env_index` is where the keeper's configuration is.
    """

    containers: Mapping[str, OwnContainer] = field(default_factory=dict)
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: KeeperConfig = field(default_factory=lambda: KeeperConfig(mounts=()))
    env_index: int = 0
    views: KnownViews = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the pod carries nothing of ours."""
        return not self.containers and not self.volumes


NOTHING = Present()
_REMOVE = "remove every sidemount-… container and volume from the manifest, and let no other webhook change them: ours adds them"


def read_present(pod: Mapping[str, Any]) -> Present:
    """Read what a pod, as plain JSON, carries of ours.

    Raises InvalidRequest when it cannot be a work of ours, PolicyDenied when somebody has undone it.
    """
    spec = _mapping(pod.get("spec"))
    for section in ("containers", EPHEMERAL):
        for container in _mappings(spec.get(section)):
            if is_own_container(_text(container.get("name"))):
                raise hand_made(_text(container.get("name")), f"is in {section}, where none of ours ever is")
    containers = {}
    for index, container in enumerate(_mappings(spec.get(INIT))):
        name = _text(container.get("name"))
        if is_own_container(name):
            if name in containers:
                raise hand_made(name, "is there twice")
            containers[name] = OwnContainer(index=index, found=container)
    volumes: dict[str, Mapping[str, Any]] = {}
    for volume in _mappings(spec.get("volumes")):
        name = _text(volume.get("name"))
        if is_reserved(name) and volumes.setdefault(name, volume) is not volume:
            raise hand_made_volume(name)
    if not containers:
        for name, volume in volumes.items():
            if not is_inline_view(volume):
                raise _undone(name) if _is_marked(pod) else _taken(name)
        return Present(volumes=volumes) if volumes else NOTHING
    keeper = containers.get(KEEPER_CONTAINER)
    if keeper is None:
        raise hand_made(next(iter(containers)), f"is there without {KEEPER_CONTAINER}")
    env_index, config = _config(keeper.found)
    return Present(
        containers=containers,
        volumes=volumes,
        config=config,
        env_index=env_index,
        views=_views(config),
        claims=_claims(config, containers),
    )


def check_foreign_use(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse an ephemeral container that takes a name of ours or reaches behind our volumes. Raises InvalidRequest.

    The mount points themselves may be looked at, for debugging: read-only and from the host's side.
    """
    known = {_text(c.get("name")) for c in _mappings(_mapping(old.get("spec")).get(EPHEMERAL))}
    for container in _mappings(_mapping(new.get("spec")).get(EPHEMERAL)):
        name = _text(container.get("name"))
        if name in known:
            continue
        if is_own_container(name):
            raise hand_made(name, "has a name that is reserved for containers that the webhook adds")
        for mount in _mappings(container.get("volumeMounts")):
            volume = _text(mount.get("name"))
            is_look = mount.get("readOnly") is True and mount.get("mountPropagation") == "HostToContainer"
            if is_reserved(volume) and not (volume == MOUNTS_VOLUME and is_look):
                raise InvalidRequest(
                    f"ephemeral container {shown(name)} mounts volume {shown(volume)}, which is Sidemount's own",
                    reason=Reason.HAND_MADE,
                    hint=f"only {MOUNTS_VOLUME} may be mounted, with readOnly: true and mountPropagation: HostToContainer",
                )


def hand_made(name: str, why: str) -> InvalidRequest:
    """Return the refusal of a container that is not the one we would add."""
    return InvalidRequest(
        f"container {shown(name)} {why}",
        reason=Reason.HAND_MADE,
        hint=_REMOVE,
    )


def hand_made_volume(name: str) -> InvalidRequest:
    """Return the refusal of a volume that has a name of ours and is not the one we would add."""
    return InvalidRequest(
        f"volume {shown(name)} of spec.volumes is not the one that we would add",
        reason=Reason.HAND_MADE,
        hint=_REMOVE,
    )


def _taken(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"volume {shown(name)} of spec.volumes has a name that is reserved for volumes that the webhook adds",
        reason=Reason.NAME_COLLISION,
        hint="rename it; names that are sidemount or start with sidemount- are ours",
    )


def _undone(name: str) -> PolicyDenied:
    return PolicyDenied(
        f"volume {shown(name)} of spec.volumes is there without the containers that go with it: another webhook took them away, "
        "or the manifest was copied from a running pod",
        reason=Reason.NOT_INJECTED,
        hint="let the other webhook keep native sidecars that it does not know, or remove every sidemount-… volume from the manifest",
    )


def _is_marked(pod: Mapping[str, Any]) -> bool:
    """Whether injection has been here: what it left behind is no name that a user happened to choose."""
    return STATUS_ANNOTATION in _mapping(_mapping(pod.get("metadata")).get("annotations"))


def _config(keeper: Mapping[str, Any]) -> tuple[int, KeeperConfig]:
    env = mounts_env(keeper)
    if env is None:
        raise hand_made(KEEPER_CONTAINER, "has no configuration in its env")
    index, text = env
    try:
        return index, decode_keeper_config(text)
    except BadMessage as error:
        raise hand_made(
            KEEPER_CONTAINER, f"has a configuration that cannot be read: {error.message}"
        ) from error


def _views(config: KeeperConfig) -> KnownViews:
    views = {}
    for mount in config.mounts:
        for view in mount.views:
            volume = mount.spec.volume
            is_ours = view.name == view_name(volume, view.sub_path, view.read_only)
            if not is_ours or (mount.spec.read_only and not view.read_only):
                raise hand_made(KEEPER_CONTAINER, f"has a view {shown(view.name)} that we would not make")
            views[view.name] = (volume, view)
    return views


def _claims(config: KeeperConfig, containers: Mapping[str, OwnContainer]) -> dict[str, str]:
    claims = {}
    for mount in config.mounts:
        daemon = containers.get(daemon_container(mount.spec.volume))
        for entry in _mappings(daemon.found.get("env")) if daemon is not None else ():
            if entry.get("name") == CLAIM_ENV and isinstance(entry.get("value"), str):
                claims[mount.spec.volume] = entry["value"]
    return claims


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [_mapping(item) for item in value] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
