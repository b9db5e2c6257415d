"""resolve(): a volume request and what the cluster says of it → the class that serves it and the MountSpec."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sidemount.model.class_choice import choose_class, serves, source_denied
from sidemount.model.client_command import client_command
from sidemount.model.driver_class import DriverClass
from sidemount.model.errors import (
    Faults,
    InvalidRequest,
    PolicyDenied,
    Reason,
    VolumeError,
    raise_faults,
    shown,
)
from sidemount.model.facts import Facts, NamespaceFacts, VolumeFacts
from sidemount.model.mountspec import MountSpec, OptionValue
from sidemount.model.option_rules import names_credential
from sidemount.model.options import check_options, parse_mount_options
from sidemount.model.persistent_volumes import volume_of_claim, volume_of_reference, with_attributes
from sidemount.model.provisioned import VOLUME_FILESYSTEM, pool_reached, provisioned_source
from sidemount.model.quantity import parse_quantity
from sidemount.model.source_uri import shown_source
from sidemount.model.volume_request import Claim, Existing, SourceUri, Unsupplied, VolumeRequest

_Options = tuple[tuple[str, OptionValue], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedVolume:
    """A request that may be served.

    `request` keeps its own origin; class, secret, sub-path, read-only and delivery are those that hold, whether the workload
    or its PersistentVolume gave them. `volume` is that PersistentVolume, None if the request names a source.
    """

    request: VolumeRequest
    driver_class: DriverClass
    spec: MountSpec
    volume: VolumeFacts | None = None


def resolve(
    request: VolumeRequest, namespace: NamespaceFacts, facts: Facts, *, existing_enabled: bool = True
) -> ResolvedVolume:
    """Check a request against the allowlist. The same request gives the same MountSpec in whatever form it came.

    Raises VolumeError: the one fault, or Faults with all of them. An unsupplied request must not be brought here.
    """
    completed, volume = _completed(request, namespace, facts, existing_enabled=existing_enabled)
    if not isinstance(completed.origin, SourceUri):
        raise InvalidRequest(f"{request.where}: nothing is supplied, so there is nothing to serve")
    source = completed.origin.uri
    driver_class = choose_class(completed, source, namespace, facts)
    faults: list[VolumeError] = [
        *_policy_faults(completed, driver_class, source, namespace, volume),
        *_pool_faults(completed, driver_class, source, facts),
    ]
    options: _Options = ()
    try:
        options = check_options(
            driver_class.options, _given_options(completed, driver_class, volume), request.where
        )
    except VolumeError as error:
        faults.extend(error.faults if isinstance(error, Faults) else (error,))
    raise_faults(faults)
    spec = _spec(completed, driver_class, source, options)
    held = replace(completed, origin=request.origin, driver_class=driver_class.name)
    return ResolvedVolume(request=held, driver_class=driver_class, spec=spec, volume=volume)


def _completed(
    request: VolumeRequest, namespace: NamespaceFacts, facts: Facts, *, existing_enabled: bool
) -> tuple[VolumeRequest, VolumeFacts | None]:
    """Replace a claim or reference by the source that its PersistentVolume names."""
    match request.origin:
        case SourceUri() | Unsupplied():
            return request, None
        case Claim() as claim:
            volume = volume_of_claim(request, claim, namespace.name, facts)
        case Existing() as existing:
            if not existing_enabled:
                raise PolicyDenied(
                    f"{request.where}: references to existing volumes are disabled here",
                    reason=Reason.EXISTING_DISABLED,
                    hint="ask the admin to enable them, or use a claim",
                )
            volume = volume_of_reference(request, existing, facts)
    return with_attributes(request, volume), volume


def _policy_faults(
    request: VolumeRequest,
    driver_class: DriverClass,
    source: str,
    namespace: NamespaceFacts,
    volume: VolumeFacts | None,
) -> Iterator[VolumeError]:
    shown_class = f"driver class {shown(driver_class.name)}"
    if not driver_class.namespaces.matches(namespace.labels):
        yield PolicyDenied(
            f"{request.where}: {shown_class} is not for namespace {shown(namespace.name)}",
            reason=Reason.NAMESPACE_NOT_PERMITTED,
            hint="ask the admin to label the namespace for it, or name another class",
        )
    if not serves(driver_class, source):
        yield source_denied(request, driver_class, source)
    has_secret = bool(request.secret) or (volume is not None and volume.has_secret)
    if driver_class.credentials.required and not has_secret:
        yield PolicyDenied(
            f"{request.where}: {shown_class} needs credentials and no secret is named",
            reason=Reason.CREDENTIALS_REQUIRED,
            hint=f"name a Secret with {', '.join(driver_class.credentials.secret_keys)} in the field secret",
        )
    if request.secret and not driver_class.credentials.secret_keys:
        yield InvalidRequest(
            f"{request.where}, field secret: {shown_class} reads no credentials", hint="leave secret out"
        )
    for name, _ in request.options:
        if _is_credential(name, driver_class):
            yield InvalidRequest(
                f"{request.where}: {shown(name)} is a credential, which never passes through options",
                reason=Reason.INVALID_OPTION,
                hint="put it into a Secret and name that in the field secret",
            )
    yield from _resource_faults(request, driver_class)


def _pool_faults(
    request: VolumeRequest, driver_class: DriverClass, source: str, facts: Facts
) -> Iterator[VolumeError]:
    """A pool is reached by its provisioned volumes alone: anything else would see the volumes of others, past their budgets."""
    if request.provisioned:
        if not driver_class.provisions:
            yield PolicyDenied(
                f"{request.where}: driver class {shown(driver_class.name)} provisions no volumes, so it has no volume "
                f"{shown(request.provisioned)}",
                reason=Reason.NOT_PROVISIONED,
                hint="leave volume out, or have the admin set provisions: true on the class",
            )
        elif request.is_inline:
            yield PolicyDenied(
                f"{request.where}: volume {shown(request.provisioned)} is a provisioned one, which no pod declares by itself",
                reason=Reason.PROVISIONED_ONLY,
                hint="use a PersistentVolumeClaim",
            )
        return
    owner = pool_reached(source, facts.driver_classes().values())
    if owner is not None:
        yield PolicyDenied(
            f"{request.where}: {shown_source(source)} is in or around a pool of driver class {shown(owner.name)}, whose "
            "volumes are provisioned and never named by their path",
            reason=Reason.PROVISIONED_ONLY,
            hint="use a PersistentVolumeClaim of a StorageClass with that class",
        )


def _resource_faults(request: VolumeRequest, driver_class: DriverClass) -> Iterator[VolumeError]:
    """A pod may ask up to the class's maxLimits, or its limits where it has none."""
    bounds = {**driver_class.resources.limits, **driver_class.resources.max_limits}
    asked = request.resources
    for kind, amounts in (("requests", asked.requests), ("limits", asked.limits)):
        for name, amount in amounts.items():
            if name not in bounds:
                why = f"driver class {shown(driver_class.name)} leaves no {name} to the pod"
            elif parse_quantity(amount) > parse_quantity(bounds[name]):
                why = f"{shown(amount)} is above {shown(bounds[name])} of driver class {shown(driver_class.name)}"
            else:
                continue
            yield PolicyDenied(
                f"{request.where}, field resources.{kind}.{name}: {why}", reason=Reason.RESOURCES_EXCEEDED
            )


def _given_options(request: VolumeRequest, driver_class: DriverClass, volume: VolumeFacts | None) -> _Options:
    """Return the options of PersistentVolume and request together, still to be checked. `_policy_faults` told of credentials."""
    given = tuple(option for option in request.options if not _is_credential(option[0], driver_class))
    if volume is None or not volume.mount_options:
        return given
    # `ro` is every mount's own flag (with_attributes has seen it) and need be no option of the class.
    entries = [entry for entry in volume.mount_options if entry != "ro" or "ro" in driver_class.options]
    where = f"{request.where}: mountOptions of PersistentVolume {shown(volume.name)}"
    return (*parse_mount_options(entries, driver_class.options, where), *given)


def _is_credential(option: str, driver_class: DriverClass) -> bool:
    return option not in driver_class.options and names_credential(
        option, driver_class.credentials.secret_keys
    )


def _spec(request: VolumeRequest, driver_class: DriverClass, source: str, options: _Options) -> MountSpec:
    # A client that must mount by itself is root, whatever its class says: the keeper lets in nobody else.
    uid = driver_class.uid if driver_class.abilities.descriptor else 0
    filesystem = driver_class.filesystem
    if request.provisioned:
        source = provisioned_source(source, request.provisioned)
        if filesystem == "directory":  # which alone has budgets
            filesystem = VOLUME_FILESYSTEM
    return MountSpec(
        volume=request.name,
        driver_class=driver_class.name,
        source=source,
        filesystem=filesystem,
        command=client_command(
            driver_class, source=source, options=options, read_only=request.read_only, where=request.where
        ),
        sub_path=request.sub_path,
        read_only=request.read_only,
        options=options,
        descriptor=driver_class.abilities.descriptor,
        takeover=driver_class.abilities.takeover,
        uid=uid,
        hung_after_s=driver_class.hung_after_s,
    )
