"""PublishRequest + classes → PublishPlan: the MountSpec that the sidecar would get, and the steps to it. Pure.

Credentials come with the call; else from files of the node, if its caller has found some. One set is never mixed with another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from csi.event_subject import pod_of
from csi.faults import NotFound
from csi.hidden_texts import HiddenTexts
from csi.launch_plan import client_command, plan_pod, plan_process
from csi.publish_request import PublishRequest
from csi.records import Record, Stage, target_name
from sidemount.model.class_choice import choose_class
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import Faults, InvalidRequest, PolicyDenied, Reason, VolumeError, shown
from sidemount.model.facts import Facts, NamespaceFacts
from sidemount.model.mountspec import MountSpec
from sidemount.model.options import parse_mount_options
from sidemount.model.requests import parse_volume_context
from sidemount.model.resolve import resolve
from sidemount.model.volume_request import Delivery, SourceUri, VolumeRequest

_SOURCE = "source"
_NAMESPACE = "csi.storage.k8s.io/pod.namespace"
_SECRETS = "nodePublishSecretRef"


class Step(Enum):
    """What a publish does, in this order. Each is undone by its opposite, which finds done what is done already."""

    REMEMBER = "remember"  # write the record / remove it
    MAKE_TARGET = "make_target"  # make the directory / remove it
    LAUNCH = "launch"  # start the daemon / see it ended, and what it had removed
    HOLD = "hold"  # have the keeper mount and hold / detach, let the daemon flush
    AWAIT_LIVE = "await_live"  # wait until it answers at the target / nothing
    COMMIT = "commit"  # the record says that it is to be kept alive / nothing: it is removed with REMEMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPlan:
    """What is to be done for one publish. `secrets` are the credentials that the class reads, and no others."""

    record: Record
    steps: tuple[Step, ...]
    secrets: Mapping[str, str] = field(repr=False)


def class_without_credentials(request: PublishRequest, path: str, facts: Facts) -> DriverClass | None:
    """Return the class if it reads credentials of which the call brings none; None if there is nothing to look for. Raises VolumeError."""
    _, driver_class = _chosen(request, path, facts)
    credentials = driver_class.credentials
    return driver_class if credentials.secret_keys and not _own_secrets(request, driver_class) else None


def plan_publish(
    request: PublishRequest,
    path: str,
    facts: Facts,
    run_root: str,
    files: Mapping[str, str] | None = None,
) -> PublishPlan:
    """Decide what a publish comes to. `path` is the target with its root resolved, `run_root` has a directory of each target's.

    It is "" if every daemon is in a pod of its own. `files`: credentials of the class that lie on the node. Raises VolumeError.
    """
    asked, driver_class = _chosen(request, path, facts)
    own = _own_secrets(request, driver_class)
    given = HiddenTexts() if own or files is None else HiddenTexts(files)
    completed = _with_flags(request, asked, driver_class, has_secrets=bool(own or given))
    name = target_name(path)
    plan = plan_process if run_root else plan_pod
    spec = _resolved(completed, driver_class, _namespace_of(request, facts), facts)
    record = Record(
        volume_id=request.volume_id,
        target=request.target,
        path=path,
        stage=Stage.PUBLISHING,
        mode=request.mode,
        arguments=request.arguments,
        spec=replace(spec, volume=name, command=client_command(spec, driver_class, run_root, name)),
        launch=plan(spec, driver_class, request.volume_id),
        file_keys=tuple(given),
        consumer=pod_of(request.context),
    )
    return PublishPlan(record=record, steps=tuple(Step), secrets=own or given)


def _resolved(
    asked: VolumeRequest, driver_class: DriverClass, namespace: NamespaceFacts, facts: Facts
) -> MountSpec:
    try:
        return resolve(asked, namespace, facts).spec
    except Faults as error:
        raise Faults(tuple(_with_way_out(fault, driver_class) for fault in error.faults)) from error
    except VolumeError as error:
        raise _with_way_out(error, driver_class) from error


def _with_way_out(fault: VolumeError, driver_class: DriverClass) -> VolumeError:
    """Return the fault with what a caller of CSI can do about it."""
    if fault.reason is not Reason.CREDENTIALS_REQUIRED:
        return fault
    keys = ", ".join(driver_class.credentials.secret_keys)
    hint = f"send {keys} as secrets (nodePublishSecretRef), or keep them on the node (--secrets-dir)"
    return PolicyDenied(fault.message, reason=fault.reason, hint=hint)


def _chosen(request: PublishRequest, path: str, facts: Facts) -> tuple[VolumeRequest, DriverClass]:
    """Return what is asked for, and the class that serves it."""
    asked = _asked(request, target_name(path))
    _check_id(request, asked)
    if not isinstance(asked.origin, SourceUri):
        raise NotFound(
            f"volume {shown(request.volume_id)} is not known, and its volume_context names no source",
            hint="a volume that was not provisioned here needs volumeAttributes with class and source",
        )
    driver_class = choose_class(asked, asked.origin.uri, _namespace_of(request, facts), facts)
    _check_delivery(asked, driver_class)
    return asked, driver_class


def _own_secrets(request: PublishRequest, driver_class: DriverClass) -> HiddenTexts:
    keys = driver_class.credentials.secret_keys
    return HiddenTexts((key, request.secrets[key]) for key in keys if key in request.secrets)


def _namespace_of(request: PublishRequest, facts: Facts) -> NamespaceFacts:
    """Return the pod's namespace where the caller tells it. One that it does not tell has no labels, so no class that asks for some."""
    name = request.context.get(_NAMESPACE, "")
    return facts.namespace(name) or NamespaceFacts(name=name)


def _asked(request: PublishRequest, name: str) -> VolumeRequest:
    if _SOURCE not in request.context:
        raise NotFound(
            f"volume {shown(request.volume_id)} is not known, and its volume_context names no source",
            hint="a volume that was not provisioned here needs volumeAttributes with class and source",
        )
    try:
        asked = parse_volume_context(name, request.context)
    except Faults as error:
        raise Faults(tuple(_told_of(request, name, fault) for fault in error.faults)) from error
    return replace(asked, where=f"volume_context of {shown(request.volume_id)}")


def _check_id(request: PublishRequest, asked: VolumeRequest) -> None:
    """A provisioned volume's id alone says which it is: a context that says another one was not made here."""
    if asked.provisioned and asked.provisioned != request.volume_id:
        raise InvalidRequest(
            f"{asked.where}: volume {shown(asked.provisioned)} is not the volume_id",
            hint="use the volume_context that CreateVolume has returned for this volume_id",
        )


def _told_of(request: PublishRequest, name: str, fault: VolumeError) -> VolumeError:
    """Return the fault in words that the caller knows."""
    message = fault.message.replace(
        f"volume context of {shown(name)}", f"volume_context of {shown(request.volume_id)}"
    )
    return InvalidRequest(message, reason=fault.reason, hint=fault.hint)


def _check_delivery(asked: VolumeRequest, driver_class: DriverClass) -> None:
    if Delivery.CSI not in driver_class.deliveries:
        raise PolicyDenied(
            f"{asked.where}: driver class {shown(driver_class.name)} does not offer delivery csi",
            reason=Reason.NOT_IN_CLASS,
            hint="ask the admin to add csi to its deliveries, or name another class",
        )
    if asked.delivery is Delivery.SIDECAR:
        raise PolicyDenied(
            f"{asked.where}: it asks for delivery sidecar",
            reason=Reason.SIDECAR_REQUESTED,
            hint="drop the field",
        )
    if driver_class.command and asked.sub_path:
        raise InvalidRequest(
            f"{asked.where}: a client of class {shown(driver_class.name)} serves no sub-path",
            hint="name it in the source",
        )


def _with_flags(
    request: PublishRequest, asked: VolumeRequest, driver_class: DriverClass, *, has_secrets: bool
) -> VolumeRequest:
    """Return the request with mount flags as options, read-only if anything says so, and whether there are credentials."""
    # `ro` is every mount's own flag and need be no option of the class.
    entries = [flag for flag in request.flags if flag != "ro" or "ro" in driver_class.options]
    where = f"mount_flags of volume {shown(request.volume_id)}"
    options = parse_mount_options(entries, driver_class.options, where)
    return replace(
        asked,
        options=(*options, *asked.options),
        read_only=asked.read_only or request.read_only,
        secret=_SECRETS if has_secrets else "",
    )
