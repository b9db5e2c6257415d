"""FuseDriverClass manifests → DriverClass. Every fault of a manifest is told at once, by its path."""

import re
from collections.abc import Mapping
from typing import Any

from sidemount.model.class_client import (
    check_placeholders,
    image_warnings,
    parse_client,
    parse_read_only_arguments,
)
from sidemount.model.credential_templates import PLACES, parse_templates
from sidemount.model.driver_class import (
    Abilities,
    Credentials,
    DriverClass,
    PullPolicy,
    ReadOnlyAbility,
    Resources,
)
from sidemount.model.errors import Faults, InvalidRequest, VolumeError, shown
from sidemount.model.fields import Fields
from sidemount.model.names import API_VERSION, UNPRIVILEGED_UID, subdomain_fault
from sidemount.model.objects_options import objects_warnings
from sidemount.model.option_rules import parse_option_rules
from sidemount.model.options import OptionRule, OptionType, canonical_value
from sidemount.model.provisioned import POOL_SCHEMES
from sidemount.model.quantity import parse_quantity
from sidemount.model.resource_amounts import read_amounts, report_above
from sidemount.model.selector import LabelSelector, parse_selector
from sidemount.model.source_glob import glob_fault, glob_scheme
from sidemount.model.volume_request import Delivery

KIND = "FuseDriverClass"
DIRECTORY_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")
DIRECTORY_SCHEMES = ("dir", "pvc", "nfs")
CAPABILITIES = (
    *DIRECTORY_CAPABILITIES,
    "DAC_READ_SEARCH",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETUID",
    "SYS_ADMIN",
)
UID_MAX = 2**31 - 1
SOURCES_MAX = 128

_SPEC_FIELDS = (
    "deliveries",
    "sources",
    "namespaces",
    "filesystem",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "command",
    "readOnlyArguments",
    "options",
    "credentials",
    "abilities",
    "capabilities",
    "uid",
    "hungAfter",
    "cacheSize",
    "seLinuxType",
    "resources",
    "provisions",
)
_SECRET_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}\Z")
_SELINUX_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}\Z")
_HUNG_AFTER = OptionRule(type=OptionType.DURATION, minimum=1, maximum=24 * 3600)


def parse_driver_class(manifest: Any) -> DriverClass:
    """Parse a decoded FuseDriverClass. Raises Faults."""
    faults: list[VolumeError] = []
    if not isinstance(manifest, Mapping):
        raise Faults((InvalidRequest(f"{KIND}: must be a mapping, not {shown(manifest)}"),))
    top = Fields(manifest, KIND, faults)
    name = top.mapping("metadata").get("name")
    if not isinstance(name, str) or subdomain_fault(name):
        top.fault("metadata.name", f"{shown(name)} is no object name")
        name = name if isinstance(name, str) else ""
    top = Fields(manifest, f"{KIND} {shown(name)}", faults)
    top.only(("apiVersion", "kind", "metadata", "spec", "status"))
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if manifest.get(key) != expected:
            top.fault(key, f"{shown(manifest.get(key))} is not {shown(expected)}")
    if not top.mapping("spec"):
        top.fault("spec", "is missing or empty")
        raise Faults(tuple(faults))
    parsed = _driver_class(name, top.child("spec", _SPEC_FIELDS))
    if faults:
        raise Faults(tuple(faults))
    return parsed


def _driver_class(name: str, spec: Fields) -> DriverClass:
    client = parse_client(spec)
    filesystem = client.filesystem
    cache_size = _cache_size(spec)
    credentials = _credentials(spec, is_external=not filesystem, has_cache=bool(cache_size))
    options = parse_option_rules(spec, credentials.secret_keys, is_external=not filesystem)
    abilities = _abilities(spec, is_built_in=bool(filesystem))
    uid = spec.integer("uid", 0, UID_MAX, default=0 if filesystem == "directory" else UNPRIVILEGED_UID)
    read_only_arguments = parse_read_only_arguments(spec, client.command)
    check_placeholders(
        spec,
        client.command,
        has_options=bool(options),
        has_secrets=bool(credentials.secret_keys),
        has_files=bool(credentials.files),
        has_cache=bool(cache_size),
    )
    pull_policy = spec.choice("imagePullPolicy", PullPolicy)
    deliveries = _deliveries(spec)
    sources = _sources(spec, filesystem, is_off=not deliveries)
    return DriverClass(
        name=name,
        deliveries=deliveries,
        sources=sources,
        namespaces=_namespaces(spec),
        filesystem=filesystem,
        image=client.image,
        image_pull_policy=pull_policy.value if pull_policy is not None else "",
        image_pull_secrets=spec.texts("imagePullSecrets", subdomain_fault) or (),
        command=client.command,
        read_only_arguments=read_only_arguments,
        options=options,
        credentials=credentials,
        abilities=abilities,
        capabilities=_capabilities(spec, filesystem, uid, abilities),
        uid=uid,
        hung_after_s=_hung_after_s(spec),
        cache_size=cache_size,
        selinux_type=spec.text("seLinuxType", _selinux_fault, default="container_file_t"),
        resources=_resources(spec),
        provisions=_provisions(spec, filesystem, sources),
        warnings=(
            *image_warnings(client.image),
            *(
                objects_warnings(map(glob_scheme, sources), options, cache_size)
                if filesystem == "objects"
                else ()
            ),
        ),
    )


def _deliveries(spec: Fields) -> tuple[Delivery, ...]:
    if spec.raw.get("deliveries") is None:
        spec.fault(
            "deliveries", "is missing", "list sidecar, csi or both by preference; [] turns the class off"
        )
    names = spec.texts("deliveries", _delivery_fault)
    return tuple(Delivery(name) for name in names or ())


def _delivery_fault(text: str) -> str:
    known = [delivery.value for delivery in Delivery]
    return "" if text in known else f"is no delivery; known: {', '.join(known)}"


def _sources(spec: Fields, filesystem: str, *, is_off: bool) -> tuple[str, ...]:
    sources = spec.texts("sources", glob_fault)
    if (sources is None and spec.raw.get("sources") is None) or (sources == () and not is_off):
        spec.fault("sources", "is missing or empty", 'list URI globs such as "s3://**"')
    if sources is not None and len(sources) > SOURCES_MAX:
        spec.fault("sources", f"has {len(sources)} globs, more than {SOURCES_MAX}")
    for i, glob in enumerate(sources or ()):
        if filesystem == "directory" and glob_scheme(glob) not in DIRECTORY_SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in DIRECTORY_SCHEMES)
            spec.fault(
                f"sources[{i}]",
                f"{shown(glob)} is nothing that filesystem directory serves",
                f"it serves {known}",
            )
    return sources or ()


def _provisions(spec: Fields, filesystem: str, sources: tuple[str, ...]) -> bool:
    if not spec.flag("provisions"):
        return False
    schemes = POOL_SCHEMES.get(filesystem, ())
    if not schemes:
        spec.fault("provisions", "needs filesystem directory or objects, which alone have pools of volumes")
    for i, glob in enumerate(sources if schemes else ()):
        if glob_scheme(glob) not in schemes:
            spec.fault(
                f"sources[{i}]",
                f"{shown(glob)} is no pool: a class that provisions makes volumes in directories or buckets",
                "name a directory that every node sees, dir:///path, or with filesystem objects a prefix that can be written, "
                "such as s3://bucket/prefix",
            )
    return True


def _namespaces(spec: Fields) -> LabelSelector:
    if spec.raw.get("namespaces") is None:
        spec.fault(
            "namespaces", "is missing", "write a label selector of the namespaces that may use it; {} is all"
        )
    try:
        return parse_selector(
            spec.raw.get("namespaces"), f"{spec.where}, field {shown(f'{spec.path}.namespaces')}"
        )
    except InvalidRequest as error:
        spec.faults.extend(error.faults if isinstance(error, Faults) else (error,))
        return LabelSelector()


def _credentials(spec: Fields, *, is_external: bool, has_cache: bool) -> Credentials:
    fields = spec.child("credentials", ("secretKeys", "required", "files", "environment"))
    keys = fields.texts("secretKeys", _secret_key_fault) or ()
    is_required = fields.flag("required")
    if is_required and not keys and not fields.has("secretKeys"):
        fields.fault("required", "is true, but secretKeys names none", "list the keys that the client reads")
    files, environment = parse_templates(fields, keys, is_external=is_external, has_cache=has_cache)
    for key in sorted({*keys} & {*PLACES}) if files or environment else ():
        fields.fault("secretKeys", f"{shown(key)} means a directory in a template", "call the key otherwise")
    return Credentials(secret_keys=keys, required=is_required, files=files, environment=environment)


def _abilities(spec: Fields, *, is_built_in: bool) -> Abilities:
    fields = spec.child("abilities", ("descriptor", "takeover", "readOnly"))
    defaults = Abilities(takeover=True, read_only="enforced") if is_built_in else Abilities()
    descriptor = fields.flag("descriptor", default=defaults.descriptor)
    # A built-in class that gives up the descriptor gives up the takeover that rests on it.
    takeover = fields.flag("takeover", default=defaults.takeover and descriptor)
    if takeover and not descriptor:
        fields.fault("takeover", "needs descriptor: a new client continues a connection by its descriptor")
    if is_built_in and not descriptor:
        fields.fault("descriptor", "false is not for a built-in filesystem, which never mounts by itself")
    read_only = fields.choice("readOnly", ReadOnlyAbility)
    return Abilities(
        descriptor=descriptor,
        takeover=takeover,
        read_only=read_only.value if read_only is not None else defaults.read_only,
    )


def _capabilities(spec: Fields, filesystem: str, uid: int, abilities: Abilities) -> tuple[str, ...]:
    if spec.raw.get("capabilities") is None:
        return DIRECTORY_CAPABILITIES if filesystem == "directory" and uid == 0 else ()
    capabilities = spec.texts("capabilities", _capability_fault) or ()
    if "SYS_ADMIN" in capabilities and abilities.descriptor:
        spec.fault(
            "capabilities",
            "SYS_ADMIN is only for a client that mounts by itself",
            "set abilities.descriptor to false",
        )
    if capabilities and uid != 0:
        spec.fault(
            "capabilities",
            f"are lost by uid {uid}: Kubernetes gives them to uid 0 only",
            "set uid to 0, or keep none",
        )
    return tuple(sorted(capabilities))


def _capability_fault(text: str) -> str:
    if text in CAPABILITIES:
        return ""
    if text.removeprefix("CAP_").upper() in CAPABILITIES:
        return f"is written {text.removeprefix('CAP_').upper()} here"
    return f"is not a capability that a client may keep; known: {', '.join(sorted(CAPABILITIES))}"


def _hung_after_s(spec: Fields) -> int:
    value = spec.raw.get("hungAfter")
    if value is None:
        return 30
    try:
        return int(canonical_value(_HUNG_AFTER, value))
    except InvalidRequest as error:
        spec.fault("hungAfter", error.message, error.hint)
        return 30


def _cache_size(spec: Fields) -> str:
    value = spec.raw.get("cacheSize")
    if value is None:
        return ""
    try:
        if parse_quantity(value) > 0:
            return value if isinstance(value, str) else shown(value)
        spec.fault("cacheSize", f"{shown(value)} is not above zero", "leave it out for no cache")
    except InvalidRequest as error:
        spec.fault("cacheSize", error.message, error.hint)
    return ""


def _resources(spec: Fields) -> Resources:
    fields = spec.child("resources", ("requests", "limits", "maxLimits"))
    requests, limits, most = (read_amounts(fields, key) for key in ("requests", "limits", "maxLimits"))
    report_above(fields, "requests", requests, "limits", limits)
    report_above(fields, "limits", limits, "maxLimits", most)
    report_above(fields, "requests", requests, "maxLimits", most)
    return Resources(requests=requests, limits=limits, max_limits=most)


def _secret_key_fault(text: str) -> str:
    return "" if _SECRET_KEY.match(text) else "is no key of a Secret"


def _selinux_fault(text: str) -> str:
    return "" if _SELINUX_TYPE.match(text) else "is no SELinux type"
