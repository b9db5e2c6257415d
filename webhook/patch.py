"""JSON Patch operations that bring a pod to its plan: additive, by hand, in an order that applies.

No operation names a whole list of the user's unless it is absent or empty, nor a whole mount or container of the user's.
"""

from collections.abc import Mapping
from typing import Any

from sidemount.model.errors import InvalidRequest, Reason, shown
from sidemount.model.mountspec import encode_keeper_config
from sidemount.model.names import INJECTED_LABEL, KEEPER_CONTAINER, STATUS_ANNOTATION
from webhook.injection_settings import InjectionSettings
from webhook.operations import END, Operation, add, move, replace
from webhook.order import Insertion, Move, arrange
from webhook.own_container import differences, is_same_volume, stripped_fields
from webhook.plan import InjectionPlan
from webhook.present import INIT, Present, hand_made, hand_made_volume
from webhook.shape import PodShape
from webhook.views import Place, fields_to_set, rendered_mount

_SPEC = "spec"
_METADATA = "metadata"


def patch_operations(
    shape: PodShape, plan: InjectionPlan, present: Present, settings: InjectionSettings
) -> tuple[list[Operation], list[Operation]]:
    """Return all operations in their order, and those of them without which the pod would not have its volumes.

    Raises InvalidRequest when something of our name is not ours.
    """
    changes = [*_volume_operations(shape, plan, present), *_mount_operations(shape, plan)]
    repairs = _repairs(plan, present)
    images = _images(plan, present)
    moves = _container_operations(shape, plan, settings)
    better = [*_metadata_operations(shape, plan), *_pod_operations(shape, plan)]
    return [*changes, *repairs, *images, *moves, *better], [*changes, *repairs, *moves]


def _volume_operations(shape: PodShape, plan: InjectionPlan, present: Present) -> list[Operation]:
    operations = [
        replace((_SPEC, "volumes", index), value) for index, value in sorted(plan.changed_volumes.items())
    ]
    missing = []
    for volume in plan.volumes:
        found = present.volumes.get(volume["name"])
        if found is None:
            missing.append(volume)
        elif not is_same_volume(found, volume):
            raise hand_made_volume(volume["name"])
    unknown = present.volumes.keys() - {volume["name"] for volume in plan.volumes}
    if unknown:
        raise hand_made_volume(min(unknown))
    missing += plan.new_volumes
    if missing and not shape.volumes:
        return [*operations, add((_SPEC, "volumes"), missing)]
    return operations + [add((_SPEC, "volumes", END), volume) for volume in missing]


def _mount_operations(shape: PodShape, plan: InjectionPlan) -> list[Operation]:
    operations = []
    for use in plan.uses:
        base = (_SPEC, use.place.section, use.place.index, "volumeMounts", use.index or 0)
        for field, value in fields_to_set(use).items():
            # `add` sets a member whether or not it is there; `name` always is.
            operations.append((replace if field == "name" else add)((*base, field), value))
    added: dict[Place, list[dict[str, object]]] = {}
    for use in plan.added:
        added.setdefault(use.place, []).append(rendered_mount(use))
    for place, mounts in added.items():
        base_path = (_SPEC, place.section, place.index, "volumeMounts")
        containers = shape.containers if place.section == "containers" else shape.init_containers
        if containers[place.index].mounts:
            operations += [add((*base_path, END), mount) for mount in mounts]
        else:
            operations.append(add(base_path, mounts))
    return operations


def _repairs(plan: InjectionPlan, present: Present) -> list[Operation]:
    """Return what puts right the containers of ours that are there; refuse those that are not ours. Before any is moved."""
    operations: list[Operation] = []
    rendered = {container["name"]: container for container in plan.containers}
    for name, own in present.containers.items():
        ours = rendered.get(name)
        if ours is None:
            raise hand_made(name, "belongs to no volume that the pod asks for")
        wrong = differences(own.found, ours, plan.registries)
        if wrong == ["image"]:
            raise _foreign_image(name, own.found.get("image"), ours["image"])
        if wrong:
            raise hand_made(name, f"is not the one that we would add: its {', '.join(wrong)} differ")
        operations += [
            add((_SPEC, INIT, own.index, field), ours[field]) for field in stripped_fields(own.found, ours)
        ]
    keeper = present.containers.get(KEEPER_CONTAINER)
    if keeper is not None:
        operations += _configuration(plan, present, keeper.index)
    return operations


def _images(plan: InjectionPlan, present: Present) -> list[Operation]:
    """Return what brings images of another version to ours. A pod that stays without runs all the same."""
    return [
        replace((_SPEC, INIT, present.containers[ours["name"]].index, "image"), ours["image"])
        for ours in plan.containers
        if ours["name"] in present.containers
        and not plan.registries.is_current(present.containers[ours["name"]].found.get("image"), ours["image"])
    ]


def _foreign_image(name: str, found: object, ours: str) -> InvalidRequest:
    return InvalidRequest(
        f"container {shown(name)} has the image {shown(found)}, not {shown(ours)}: it is a copy, or another webhook "
        "sent it through a mirror that the operator has not named",
        reason=Reason.HAND_MADE,
        hint="remove every sidemount-… container from the manifest, or have the operator add the mirror to --image-mirrors",
    )


def _configuration(plan: InjectionPlan, present: Present, keeper_index: int) -> list[Operation]:
    """Return what brings the keeper's configuration up to date. It may only have gained volumes and views."""
    if plan.config == present.config:
        return []
    wanted = {mount.spec.volume: mount for mount in plan.config.mounts}
    for mount in present.config.mounts:
        ours = wanted.get(mount.spec.volume)
        if ours is None or ours.spec != mount.spec or not set(mount.views) <= set(ours.views):
            raise hand_made(
                KEEPER_CONTAINER, f"has a configuration of volume {mount.spec.volume} that is not ours"
            )
    return [
        replace(
            (_SPEC, INIT, keeper_index, "env", present.env_index, "value"), encode_keeper_config(plan.config)
        )
    ]


def _container_operations(
    shape: PodShape, plan: InjectionPlan, settings: InjectionSettings
) -> list[Operation]:
    if not plan.containers:
        return []
    names = [container.name for container in shape.init_containers]
    if not names:
        return [add((_SPEC, INIT), list(plan.containers))]
    rendered = {container["name"]: container for container in plan.containers}
    operations: list[Operation] = []
    for step in arrange(names, list(rendered), _dependents(plan), settings.network_containers):
        match step:
            case Insertion(name=name, index=index):
                operations.append(add((_SPEC, INIT, index), rendered[name]))
            case Move(source=source, index=index):
                operations.append(move((_SPEC, INIT, source), (_SPEC, INIT, index)))
    return operations


def _dependents(plan: InjectionPlan) -> frozenset[int]:
    """Return the init containers, by index, that show a view and so must start after all of ours."""
    return frozenset(
        use.place.index for use in (*plan.uses, *plan.added) if use.is_of_keeper and use.place.section == INIT
    )


def _metadata_operations(shape: PodShape, plan: InjectionPlan) -> list[Operation]:
    annotations = dict(shape.foreign)
    if shape.status is not None:
        annotations[STATUS_ANNOTATION] = shape.status
    labels = {} if shape.injected_label is None else {INJECTED_LABEL: shape.injected_label}
    marks = plan.marks
    if not shape.has_metadata:
        return [add((_METADATA,), {"annotations": dict(marks.annotations), "labels": dict(marks.labels)})]
    return [
        *_entry_operations("annotations", shape.has_annotations, annotations, marks.annotations),
        *_entry_operations("labels", shape.has_labels, labels, marks.labels),
    ]


def _entry_operations(
    field: str, is_there: bool, found: Mapping[str, str], wanted: Mapping[str, str]
) -> list[Operation]:
    missing = {key: value for key, value in wanted.items() if found.get(key) != value}
    if missing and not is_there:
        return [add((_METADATA, field), missing)]
    return [
        (replace if key in found else add)((_METADATA, field, key), value) for key, value in missing.items()
    ]


def _pod_operations(shape: PodShape, plan: InjectionPlan) -> list[Operation]:
    operations: list[Operation] = []
    secrets: list[dict[str, Any]] = [{"name": name} for name in plan.marks.pull_secrets]
    if secrets and not shape.pull_secrets:
        operations.append(add((_SPEC, "imagePullSecrets"), secrets))
    else:
        operations += [add((_SPEC, "imagePullSecrets", END), secret) for secret in secrets]
    if plan.marks.grace_s is not None:
        operations.append(add((_SPEC, "terminationGracePeriodSeconds"), plan.marks.grace_s))
    return operations
