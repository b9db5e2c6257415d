"""The proof of a patch: applied to the very pod it was made for, it applies, changes nothing of the user's and brings all of ours.

Nothing here trusts how the operations were made; the plan says what must be there, the pod what must stay. What no operation
reaches is the same object before and after, so the comparison costs what the patch touches, not what the pod weighs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sidemount.model.errors import BadMessage
from sidemount.model.mountspec import KeeperConfig, KeeperMount, decode_keeper_config
from sidemount.model.names import INLINE_PREFIX, KEEPER_CONTAINER, MOUNTS_ENV, MOUNTS_VOLUME
from sidemount.model.sub_path import join_sub_paths
from webhook.image import Registries
from webhook.operations import NotApplicable, Operation, apply
from webhook.own_container import differences, is_same_volume, mounts_env, stripped_fields
from webhook.plan import InjectionPlan
from webhook.shape import SAFE_LOCAL_VOLUMES, is_own_container, is_reserved
from webhook.views import HOST_TO_CONTAINER, rendered_mount

_SPEC_FIELDS = frozenset(
    {"volumes", "initContainers", "containers", "imagePullSecrets", "terminationGracePeriodSeconds"}
)
_MOUNT_FIELDS = frozenset({"name", "subPath", "mountPropagation", "readOnly"})
_REPAIRED_FIELDS = frozenset({"restartPolicy", "startupProbe", "livenessProbe", "env", "image"})
_SOURCES = frozenset({"emptyDir", "persistentVolumeClaim", "csi"})
_DEFAULT_GRACE_S = 30

_Json = Mapping[str, Any]
_encode = msgspec.json.Encoder(order="deterministic").encode


class NotProved(Exception):
    """A patch does not do what it is meant to, or does more. It must not be sent."""


class _Planned:
    """What a plan says of mounts, by what the proof looks up; `csi` are the inline volumes that the patched pod has."""

    def __init__(self, plan: InjectionPlan, volumes: list[Any]) -> None:
        self.served = {mount.spec.volume: mount for mount in plan.config.mounts}
        self.views = {view.name: view for mount in plan.config.mounts for view in mount.views}
        self.others = {use.volume: use.keeps_choice for use in plan.uses if use.view is None}
        inline = {
            use.volume for use in (*plan.uses, *plan.added) if use.view is not None
        } - self.served.keys()
        self.csi = {
            name: _mapping(volume, "csi")
            for volume in volumes
            if (name := str(_get(volume, "name"))) in inline or name.startswith(INLINE_PREFIX)
        }
        self.added: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for use in plan.added:
            self.added.setdefault((use.place.section, use.place.index), []).append(rendered_mount(use))


def prove(before: _Json, operations: Sequence[Operation], plan: InjectionPlan) -> _Json:
    """Return the pod as patched. Raises NotProved."""
    try:
        after: Any = apply(before, operations)
    except NotApplicable as error:
        raise NotProved(f"it does not apply: {error}") from error
    if not isinstance(after, dict):
        raise NotProved("the pod is no object any more")
    _unchanged(before, after, frozenset({"metadata", "spec"}), "the pod")
    _prove_metadata(_mapping(before, "metadata"), _mapping(after, "metadata"), plan)
    was, now = _mapping(before, "spec"), _mapping(after, "spec")
    _unchanged(was, now, _SPEC_FIELDS, "spec")
    _prove_pod(was, now, plan)
    _prove_volumes(_list(was, "volumes"), _list(now, "volumes"), plan)
    planned = _Planned(plan, _list(now, "volumes"))
    _prove_containers(_list(was, "containers"), _list(now, "containers"), planned)
    _prove_init_containers(_list(was, "initContainers"), _list(now, "initContainers"), plan, planned)
    return after


def _prove_metadata(was: _Json, now: _Json, plan: InjectionPlan) -> None:
    _unchanged(was, now, frozenset({"annotations", "labels"}), "metadata")
    _prove_labels(_mapping(was, "labels"), _mapping(now, "labels"), plan)
    old, new = _mapping(was, "annotations"), _mapping(now, "annotations")
    _require(set(old) <= set(new), "an annotation is gone")
    _require(plan.marks.annotations.keys() <= new.keys(), "an annotation of ours is not there")
    for key, value in new.items():
        if key not in plan.marks.annotations:
            _require(key in old and old[key] is value, f"annotation {key} changed")
            continue
        _require(value == plan.marks.annotations[key], f"annotation {key} is not as planned")
        if key == SAFE_LOCAL_VOLUMES:
            _require(value.startswith(old.get(key) or ""), "volumes that the user holds safe are gone")


def _prove_labels(was: _Json, now: _Json, plan: InjectionPlan) -> None:
    ours = plan.marks.labels
    _require(set(was) | ours.keys() == set(now), "a label is gone, or one came that is not ours")
    for key, value in now.items():
        if key in ours:
            _require(value == ours[key], f"label {key} is not as planned")
        else:
            _require(was[key] is value, f"label {key} changed")


def _prove_pod(was: _Json, now: _Json, plan: InjectionPlan) -> None:
    old, new = was.get("terminationGracePeriodSeconds"), now.get("terminationGracePeriodSeconds")
    wanted = plan.marks.grace_s
    if wanted is None:
        _require(new is old, "the grace period changed")
    else:
        floor = _DEFAULT_GRACE_S if old is None else old
        _require(type(new) is int and new == wanted > floor, "the grace period is not raised as planned")
    secrets, found = _list(was, "imagePullSecrets"), _list(now, "imagePullSecrets")
    _prove_kept(secrets, found, "imagePullSecrets")
    _require(
        found[len(secrets) :] == [{"name": name} for name in plan.marks.pull_secrets],
        "pull secrets are not as planned",
    )


def _prove_volumes(was: list[Any], now: list[Any], plan: InjectionPlan) -> None:
    ours = {volume["name"]: volume for volume in plan.volumes}
    for index, old in enumerate(was):
        _require(index < len(now), "a volume is gone")
        if index not in plan.changed_volumes:
            _require(now[index] is old, f"volume {index} changed")
            continue
        _prove_changed_volume(old, now[index], plan.changed_volumes[index], f"volume {index}")
    found = [volume for volume in now if isinstance(volume, dict) and is_reserved(str(volume.get("name")))]
    _require(
        sorted(volume["name"] for volume in found) == sorted(ours), "our volumes are not there once each"
    )
    earlier = {id(volume) for volume in was}
    for volume in found:
        rendered = ours[volume["name"]]
        is_ours = is_same_volume(volume, rendered) if id(volume) in earlier else volume == rendered
        _require(is_ours, "a volume of ours differs")
    added = [volume for volume in now[len(was) :] if volume not in found]
    _require(added == list(plan.new_volumes), "volumes were added that nobody planned")


def _prove_changed_volume(old: Any, new: Any, planned: _Json, where: str) -> None:
    """Only the source of a volume may be another; there is exactly one."""
    _require(isinstance(old, dict) and new == planned, f"{where} is not as planned")
    kinds = [key for key in _SOURCES if new.get(key) is not None]
    _require(len(kinds) == 1, f"{where} has not one source")
    for key in (old.keys() | new.keys()) - _SOURCES:
        _require(_encode(old.get(key)) == _encode(new.get(key)), f"{where}: {key} changed")


def _prove_containers(was: list[Any], now: list[Any], planned: _Planned) -> None:
    _require(len(was) == len(now), "a container came or went")
    for index, (old, new) in enumerate(zip(was, now, strict=True)):
        _require(not is_own_container(str(_get(new, "name"))), "a container of ours is among the user's")
        _prove_container(old, new, planned.added.get(("containers", index), []), planned)


def _prove_init_containers(was: list[Any], now: list[Any], plan: InjectionPlan, planned: _Planned) -> None:
    users = [container for container in now if not is_own_container(str(_get(container, "name")))]
    before = [(i, c) for i, c in enumerate(was) if not is_own_container(str(_get(c, "name")))]
    _require(len(users) == len(before), "an init container came or went")
    for (index, old), new in zip(before, users, strict=True):
        _prove_container(old, new, planned.added.get(("initContainers", index), []), planned)
    ours = [container for container in now if is_own_container(str(_get(container, "name")))]
    rendered = {container["name"]: container for container in plan.containers}
    _require(sorted(c["name"] for c in ours) == sorted(rendered), "our containers are not there once each")
    earlier = {c["name"]: c for c in was if is_own_container(str(_get(c, "name")))}
    for container in ours:
        _prove_own(earlier.get(container["name"]), container, rendered[container["name"]], plan.registries)
    if not ours:
        return
    _require(ours[0]["name"] == KEEPER_CONTAINER, "the keeper is not the first of ours")
    _require(_configuration(ours[0]) == plan.config, "the keeper's configuration is not as planned")
    last = max(index for index, container in enumerate(now) if is_own_container(str(_get(container, "name"))))
    dependents = (i for i, container in enumerate(now) if i < last and _shows_view(container))
    _require(
        all(is_own_container(str(now[i]["name"])) for i in dependents), "a view is used before it is there"
    )


def _prove_own(earlier: Any, container: Any, rendered: _Json, registries: Registries) -> None:
    name = rendered["name"]
    if earlier is None:
        _require(container == rendered, f"{name} is not as planned")
        return
    _unchanged(earlier, container, _REPAIRED_FIELDS, name)
    for field in _REPAIRED_FIELDS - {"env"}:
        is_planned = container.get(field) is earlier.get(field) or container.get(field) == rendered.get(field)
        _require(is_planned, f"{name}: {field} is not as planned")
    _prove_env(_list(earlier, "env"), _list(container, "env"), name)
    _require(not differences(container, rendered, registries), f"{name} differs")
    _require(registries.is_current(container.get("image"), rendered["image"]), f"{name} has another image")
    _require(not stripped_fields(container, rendered), f"{name} is no native sidecar with our probe")


def _prove_env(was: list[Any], now: list[Any], name: str) -> None:
    """Nothing but the value of the keeper's configuration may change, which is judged by itself."""
    _require(len(was) == len(now), f"{name}: env gained or lost an entry")
    for old, new in zip(was, now, strict=True):
        is_config = _get(old, "name") == MOUNTS_ENV
        _unchanged(old, new, frozenset({"value"}) if is_config else frozenset(), f"{name}: env")


def _configuration(keeper: _Json) -> KeeperConfig | None:
    env = mounts_env(keeper)
    try:
        return decode_keeper_config(env[1]) if env is not None else None
    except BadMessage:
        return None


def _prove_container(old: Any, new: Any, added: list[dict[str, Any]], planned: _Planned) -> None:
    """A user's container may differ in its mounts alone, and in them as planned."""
    name = str(_get(old, "name"))
    if new is not old:
        _unchanged(old, new, frozenset({"volumeMounts"}), f"container {name}")
    mounts, found = _list(old, "volumeMounts"), _list(new, "volumeMounts")
    _require(bool(added) or _get(old, "volumeMounts") is not None or new is old, f"container {name} changed")
    _require(len(found) >= len(mounts), f"a mount of container {name} is gone")
    for before, after in zip(mounts, found, strict=False):
        _prove_mount(before, after, planned, name)
    _require(found[len(mounts) :] == added, f"mounts of container {name} were not added as planned")
    for mount in added:
        is_shown = mount["name"] != MOUNTS_VOLUME or mount["subPath"] in planned.views
        _require(is_shown, f"container {name} mounts no view")


def _prove_mount(old: Any, new: Any, planned: _Planned, container: str) -> None:
    volume = str(_get(old, "name"))
    where = f"mount {_get(old, 'mountPath')} of container {container}"
    if volume in planned.served:
        _prove_view(old, new, planned.served[volume], planned, where)
    elif volume == MOUNTS_VOLUME:
        _require(
            _get(new, "name") == volume and _get(new, "subPath") == _get(old, "subPath"), f"{where} moved"
        )
        view = planned.views.get(str(_get(new, "subPath")))
        _require(view is not None, f"{where} shows no view")
        _prove_shown(old, new, view is not None and view.read_only, where)
    elif volume in planned.csi:
        _prove_inline(old, new, planned.csi, where)
    else:
        _prove_csi_mount(old, new, planned, where)
        return
    if new is not old:
        _unchanged(old, new, _MOUNT_FIELDS, where)


def _prove_csi_mount(old: Any, new: Any, planned: _Planned, where: str) -> None:
    """A mount of a volume that CSI delivers sees what is mounted on it later; a mount of anybody else's is as it was."""
    keeps_choice = planned.others.get(str(_get(old, "name")))
    if keeps_choice is None:
        _require(new is old, f"{where} changed")
        return
    _unchanged(old, new, frozenset({"mountPropagation", "readOnly"}), where)
    chosen = old.get("mountPropagation") if keeps_choice else None
    _require(
        new.get("mountPropagation") in (HOST_TO_CONTAINER, chosen or HOST_TO_CONTAINER)
        or (old.get("readOnly") is True and new.get("mountPropagation") is old.get("mountPropagation")),
        f"{where}: propagation",
    )
    is_kept = new.get("readOnly") is old.get("readOnly")
    _require(new.get("readOnly") is True or is_kept, f"{where} became writable")


def _prove_inline(old: Any, new: Any, volumes: Mapping[str, _Json], where: str) -> None:
    """A mount of an inline volume has become one of the volume that shows what it showed, with the same credentials."""
    whole, shown = volumes[str(_get(old, "name"))], volumes.get(str(_get(new, "name")))
    _require(shown is not None, f"{where} shows no volume of ours")
    assert shown is not None
    for field in ("driver", "nodePublishSecretRef"):
        _require(whole.get(field) == shown.get(field), f"{where}: {field} of its volume differs")
    own, other = dict(_mapping(whole, "volumeAttributes")), dict(_mapping(shown, "volumeAttributes"))
    own.pop("readOnly", None), other.pop("readOnly", None)
    was = join_sub_paths(own.pop("subPath", ""), _get(old, "subPath") or "")
    now = join_sub_paths(other.pop("subPath", ""), _get(new, "subPath") or "")
    _require(was == now and own == other, f"{where} shows something else")
    read_only = _get(old, "readOnly") is True or whole.get("readOnly") is True
    _require((shown.get("readOnly") is True) is read_only, f"{where} shows a volume of other writability")
    _prove_shown(old, new, read_only, where)


def _prove_view(old: Any, new: Any, served: KeeperMount, planned: _Planned, where: str) -> None:
    """A mount of a volume that we serve has become a mount of the view of its sub-path and read-only flag."""
    _require(_get(new, "name") == MOUNTS_VOLUME, f"{where} is not converted")
    view = planned.views.get(str(_get(new, "subPath")))
    _require(view is not None, f"{where} shows no view")
    assert view is not None
    _require(view.name.partition(".")[0] == served.spec.volume, f"{where} shows a view of another volume")
    _require(view.sub_path == (_get(old, "subPath") or ""), f"{where} shows another directory")
    read_only = _get(old, "readOnly") is True or served.spec.read_only
    _require(view.read_only is read_only, f"{where} shows a view of other writability")
    _prove_shown(old, new, read_only, where)


def _prove_shown(old: Any, new: Any, read_only: bool, where: str) -> None:
    _require(_get(new, "mountPropagation") == HOST_TO_CONTAINER, f"{where} has another propagation")
    wanted = True if read_only else _get(old, "readOnly")
    _require(_get(new, "readOnly") is wanted, f"{where} is not as writable as planned")


def _shows_view(container: Any) -> bool:
    return any(_get(mount, "name") == MOUNTS_VOLUME for mount in _list(container, "volumeMounts"))


def _prove_kept(was: list[Any], now: list[Any], what: str) -> None:
    _require(
        len(now) >= len(was) and all(new is old for old, new in zip(was, now, strict=False)),
        f"{what} changed",
    )


def _unchanged(old: Any, new: Any, except_for: frozenset[str], what: str) -> None:
    """Both must hold the very same values but for some fields; a field may come, none may go."""
    if new is old:
        return
    _require(isinstance(old, dict) and isinstance(new, dict), f"{what} is replaced")
    _require(old.keys() - except_for == new.keys() - except_for, f"{what} gained or lost a field")
    for key, value in new.items():
        _require(key in except_for or value is old[key], f"{what}: {key} changed")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise NotProved(what)


def _mapping(value: Any, field: str) -> _Json:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _list(value: Any, field: str) -> list[Any]:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _get(value: Any, field: str) -> Any:
    return value.get(field) if isinstance(value, dict) else None
