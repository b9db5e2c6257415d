"""One VolumeRequest from its decoded fields: the one parser behind every spelling."""

from collections.abc import Iterable, Mapping
from typing import Any

from sidemount.model.errors import Reason, VolumeError, shown
from sidemount.model.fields import Fields
from sidemount.model.mount_path import mount_path_fault
from sidemount.model.mountspec import OptionValue
from sidemount.model.names import label_fault, subdomain_fault, volume_name_fault
from sidemount.model.provisioned import provisioned_id_fault
from sidemount.model.resource_amounts import read_amounts, report_above
from sidemount.model.source_uri import shown_source, source_fault
from sidemount.model.sub_path import sub_path_fault, unprintable_fault
from sidemount.model.volume_request import (
    AccessMode,
    Claim,
    Delivery,
    Existing,
    Origin,
    ResourceRequest,
    SourceUri,
    Unsupplied,
    VolumeRequest,
)

FLAT_FIELDS = frozenset({"source", "class", "readOnly", "subPath", "secret", "delivery", "optional"})
LIST_FIELDS = FLAT_FIELDS | {"name", "claim", "existing", "options", "mountPath", "containers", "resources"}
ADMIN_FIELDS = frozenset({"image", "command"})
PROVISIONED_FIELD = "volume"  # of volume contexts alone
RESERVED_FIELDS = LIST_FIELDS | ADMIN_FIELDS | {PROVISIONED_FIELD}  # no option of a class may be called so

HANDLE_MAX = 1024
OPTIONS_MAX = 128
_ORIGINS = ("source", "claim", "existing")


def request_from_list(
    raw: Mapping[str, Any], name: str, where: str, faults: list[VolumeError]
) -> VolumeRequest:
    """Build from one entry of the list form. What is returned counts only if no fault was added."""
    _refuse_admin_fields(Fields(raw, where, faults))
    _refuse_provisioned(Fields(raw, where, faults))
    fields = Fields(
        {key: raw[key] for key in raw if key not in ADMIN_FIELDS and key != PROVISIONED_FIELD}, where, faults
    )
    fields.only(LIST_FIELDS)
    return _request(fields, name, _list_options(fields))


def request_from_flat(
    pairs: Iterable[tuple[str, str]],
    name: str,
    where: str,
    faults: list[VolumeError],
    *,
    is_context: bool = False,
) -> VolumeRequest:
    """Build from texts alone: a URI's query or a CSI volume context. Every key that is not reserved is an option.

    `is_context`: a volume context, which alone may name a provisioned volume.
    """
    raw: dict[str, str] = {}
    options: list[tuple[str, OptionValue]] = []
    for key, value in pairs:
        if key in RESERVED_FIELDS:
            raw[key] = value
        else:
            options.append((key, value))
    fields = Fields(raw, where, faults, is_flat=True)
    _refuse_admin_fields(fields)
    if not is_context:
        _refuse_provisioned(fields)
    for key in raw:
        if key in LIST_FIELDS - FLAT_FIELDS:
            fields.fault(key, "cannot be given here", "use the list form, annotation sidemount.io/volumes")
    return _request(fields, name, options)


def _refuse_admin_fields(fields: Fields) -> None:
    for key in sorted(ADMIN_FIELDS & fields.raw.keys()):
        fields.fault(
            key,
            "only the admin's FuseDriverClass sets what runs, never a workload",
            "name a class that has it",
        )


def _refuse_provisioned(fields: Fields) -> None:
    if PROVISIONED_FIELD in fields.raw:
        fields.fault(
            PROVISIONED_FIELD,
            "names a provisioned volume, which only a PersistentVolume does",
            "use a PersistentVolumeClaim",
            reason=Reason.PROVISIONED_ONLY,
        )


def _request(fields: Fields, name: str, options: list[tuple[str, OptionValue]]) -> VolumeRequest:
    if len(options) > OPTIONS_MAX:
        fields.fault("options", f"has {len(options)} options, more than {OPTIONS_MAX}")
    why = volume_name_fault(name)
    if why:
        fields.fault("name", f"{shown(name)} {why}")
    is_optional = fields.flag("optional")
    origin = _origin(fields, is_optional)
    return VolumeRequest(
        name=name,
        origin=origin,
        where=fields.where,
        driver_class=fields.text("class", subdomain_fault),
        sub_path=fields.text("subPath", sub_path_fault),
        read_only=_read_only(fields, origin),
        options=tuple(sorted(options, key=_option_name)),
        secret=fields.text("secret", subdomain_fault, show=_hidden),
        mount_path=fields.text("mountPath", mount_path_fault) if not fields.is_flat else "",
        containers=_containers(fields) if not fields.is_flat else None,
        delivery=fields.choice("delivery", Delivery),
        resources=_resources(fields) if not fields.is_flat else ResourceRequest(),
        provisioned=fields.text(PROVISIONED_FIELD, provisioned_id_fault),
    )


def _option_name(option: tuple[str, OptionValue]) -> str:
    return option[0]


def _hidden(_text: str) -> str:
    """Stand in for what may be a credential by mistake."""
    return "what is given"


def _origin(fields: Fields, is_optional: bool) -> Origin:
    known = ("source",) if fields.is_flat else _ORIGINS
    given = [key for key in known if fields.has(key)]
    if len(given) > 1:
        fields.fault(given[1], f"excludes {given[0]}", f"keep one of {', '.join(known)}")
    if not given:
        if not is_optional:
            fields.fault(
                known[0], "is missing or empty", f"give {' or '.join(known)}, or set optional to true"
            )
        return Unsupplied()
    match given[0]:
        case "source":
            return SourceUri(fields.text("source", source_fault, show=shown_source))
        case "claim":
            return Claim(fields.text("claim", subdomain_fault))
    return _existing(fields)


def _existing(fields: Fields) -> Origin:
    existing = fields.child("existing", ("driver", "handle", "accessMode"))
    driver = existing.required_text("driver", subdomain_fault)
    handle = existing.required_text("handle", _handle_fault)
    if not existing.has("accessMode"):
        existing.fault("accessMode", "is missing or empty", "write READ_WRITE_MANY or READ_ONLY_MANY")
    mode = existing.choice("accessMode", AccessMode) if existing.has("accessMode") else None
    return Existing(driver=driver, handle=handle, access_mode=mode or AccessMode.READ_ONLY_MANY)


def _handle_fault(handle: str) -> str:
    return (
        f"is longer than {HANDLE_MAX} characters" if len(handle) > HANDLE_MAX else unprintable_fault(handle)
    )


def _read_only(fields: Fields, origin: Origin) -> bool:
    is_read_only = fields.flag("readOnly")
    if isinstance(origin, Existing) and origin.access_mode is AccessMode.READ_ONLY_MANY:
        if fields.raw.get("readOnly") is False:
            fields.fault("readOnly", "false contradicts the accessMode READ_ONLY_MANY", "drop one of the two")
        return True
    return is_read_only


def _containers(fields: Fields) -> tuple[str, ...] | None:
    containers = fields.texts("containers", label_fault)
    if containers == ():
        fields.fault("containers", "names none", "leave it out for all containers")
    if containers and not fields.has("mountPath"):
        fields.fault(
            "containers", "needs mountPath", "say where to mount, or use volumeMounts of the containers"
        )
    return containers


def _list_options(fields: Fields) -> list[tuple[str, OptionValue]]:
    options: list[tuple[str, OptionValue]] = []
    for name, value in fields.mapping("options").items():
        if isinstance(value, str | int):
            options.append((name, value))
        else:
            way = "put the value in quotes"
            fields.fault(
                "options", f"option {shown(name)}: {shown(value)} is no text, whole number or boolean", way
            )
    return options


def _resources(fields: Fields) -> ResourceRequest:
    resources = fields.child("resources", ("requests", "limits"))
    requests, limits = read_amounts(resources, "requests"), read_amounts(resources, "limits")
    report_above(resources, "requests", requests, "limits", limits)
    return ResourceRequest(requests=requests, limits=limits)
